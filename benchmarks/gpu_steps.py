"""Steps on a GPU beside torch's on the same device: how they are run and timed. See ``gpu_checks.py``."""

from __future__ import annotations

import copy
import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gpu_networks import Net, nets

import maniple as mp
from maniple.runtime.control.world import World
from maniple.runtime.execution.rank import RankRuntime
from maniple.testing import local_worlds, run_on_worlds

SGD = mp.SGD(lr=0.05, momentum=0.9)
Line = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """What the checks run on.

    Args:
        device: `cuda`, or `null` to rehearse.
        small: whether sizes are such that a CPU rehearses them in seconds.
        out: where the recording goes.
    """

    device: str
    small: bool
    out: Path

    @property
    def torch(self) -> torch.device:
        """Where torch runs beside it."""
        return torch.device("cuda" if self.device == "cuda" else "cpu")

    @property
    def rounds(self) -> int:
        """How often what is timed is timed."""
        return 2 if self.small else 11

    @property
    def warm(self) -> int:
        """How many rounds of them are not counted."""
        return 1 if self.small else 3

    @property
    def run(self) -> int:
        """How many steps a run of them has."""
        return 2 if self.small else 10

    def nets(self) -> dict[str, Net]:
        """The networks that are timed; of a rehearsal two."""
        found = nets(small=self.small)
        return {name: net for name, net in found.items() if not self.small or name in {"cnn", "gpt"}}

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device == "cuda":
            torch.cuda.synchronize()


def on(bench: Bench, ranks: int, program: Callable[[World], Any]) -> list[Any]:
    """Run a program on ranks that are threads of this process and share the device."""
    worlds = local_worlds(ranks, device=bench.device)
    try:
        return run_on_worlds(worlds, program, deadline_s=600.0)
    finally:
        for world in worlds:
            RankRuntime.of(world).close()


def failure(error: Exception) -> Line:
    """What a line says of an error."""
    told = traceback.format_exception(error, limit=-5)
    return {"error": f"{type(error).__name__}: {error}"[:600], "where": "".join(told)[-2000:]}


def tried(line: Line, find: Callable[[], Line]) -> Line:
    """A line with what a case found, or with its error: the next case may show something."""
    try:
        return line | find()
    except Exception as error:  # noqa: BLE001
        return line | failure(error)


def made(net: Net, size: int) -> tuple[mp.Graph, tuple[torch.Tensor, ...], torch.nn.Module]:
    """A network's graph, a batch, and its module, which trains by itself."""
    torch.manual_seed(0)
    module, batch = net.module(), net.batch(size)
    return mp.from_torch(copy.deepcopy(module), batch), batch, module


class Cast(torch.nn.Module):
    """A module under torch's autocast to bfloat16."""

    def __init__(self, module: torch.nn.Module, device: str) -> None:
        super().__init__()
        self.module, self.device = module, device

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        """The loss, of the module under autocast; without a cache of casts, which a graph cannot hold."""
        with torch.autocast(self.device, torch.bfloat16, cache_enabled=False):
            return self.module(*batch)


class Rounded(torch.nn.Module):
    """A module of which products may be of TF32, whoever has switched it off: forward here, and backward after it."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        """The loss."""
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
        return self.module(*batch)


def torch_step(module: torch.nn.Module, descent: torch.optim.Optimizer, batch: tuple[torch.Tensor, ...]) -> float:
    """A step of torch; gives its loss."""
    descent.zero_grad()
    loss = module(*batch)
    loss.backward()
    descent.step()
    return float(loss.item())


def losses(graph: mp.Graph, world: World, given: list[tuple[torch.Tensor, ...]]) -> list[float]:
    """The losses of a rank that trains on some batches."""
    plan = mp.search(graph, mp.Machine.cpu(1), strategy="data_parallel")
    with mp.Trainer(graph, plan, optimizer=SGD, world=world) as trainer:
        return [trainer.step(*batch) for batch in given]


def median(bench: Bench, work: Callable[[], object]) -> float:
    """The median time of some work on the device, after one round that is not counted."""
    times = []
    for _ in range(bench.rounds + 1):
        bench.synchronize()
        begun = time.perf_counter()
        work()
        bench.synchronize()
        times.append(time.perf_counter() - begun)
    return statistics.median(times[1:])


def median_step(bench: Bench, graph: mp.Graph, batch: tuple[torch.Tensor, ...]) -> float:
    """The median time of a step on one device."""

    def program(world: World) -> float:
        plan = mp.search(graph, mp.Machine.cpu(1), strategy="data_parallel")
        with mp.Trainer(graph, plan, optimizer=SGD, world=world) as trainer:
            for _ in range(3):
                trainer.step(*batch)
            return median(bench, lambda: trainer.step(*batch))

    return float(on(bench, 1, program)[0])


def race(bench: Bench, net: Net, size: int, precision: str) -> Line:
    """Medians in turns of ours, torch eager, and torch's graph of a whole step: of a step, and of a step of a run.

    The loss of every step is brought home before the next begins; in a run all are left to the end by torch, and ours
    gives each as it comes. Batches lie on the device, and graphs copy them to where they read, as torch's documentation
    shows. Under ``bf16`` torch steps inside its autocast. Nobody uses TF32 but under ``tf32``: a device of ours that is
    open switches it off, and torch's graph is captured before one is.
    """
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    graph, batch, module = made(net, size)
    near = tuple(tensor.to(bench.torch) for tensor in batch)
    module.to(bench.torch)
    descent = torch.optim.SGD(module.parameters(), 0.05, 0.9)
    if precision == "bf16":
        module = Cast(module, bench.torch.type)
    if precision == "tf32":
        module = Rounded(module)
    eager = Rival.eager(module, descent, near, bench.run)
    wanted = [float(eager.step()) for _ in range(3)]
    rivals = {"torch": eager}
    if bench.device == "cuda":
        rivals["torch_graph"] = Rival.graph(module, descent, near, bench.run)

    def program(world: World) -> tuple[float, dict[str, list[float]], dict[str, list[float]]]:
        plan = mp.search(graph, mp.Machine.cpu(1), strategy="data_parallel", semantics={"precision": precision})
        with mp.Trainer(graph, plan, optimizer=SGD, world=world) as trainer:
            apart = max(abs(trainer.step(*near) - loss) for loss in wanted)
            rivals["ours"] = Rival(lambda: trainer.step(*near), lambda: sum(trainer.run([near] * bench.run)))
            steps = _in_turns(bench, {name: rival.step for name, rival in rivals.items()}, bench.rounds)
            if size != net.sizes[0]:  # where a step takes long, a run of them shows nothing more
                return apart, steps, {}
            return (
                apart,
                steps,
                _in_turns(bench, {name: rival.run for name, rival in rivals.items()}, bench.rounds // 2),
            )

    if bench.device != "cuda":
        near = batch
    ((apart, steps, runs),) = on(bench, 1, program)
    line: Line = {"losses_apart": apart}
    for kind, found, count in (("", steps, 1), ("run_", runs, bench.run)):
        medians = {name: statistics.median(times) / count for name, times in found.items()}
        line |= {f"{name}_{kind}s": taken for name, taken in medians.items()}
        line |= {f"{kind}over_{name}": taken / medians["ours"] for name, taken in medians.items() if name != "ours"}
    return {**line, "spread": max(steps["ours"]) / min(steps["ours"])}


def _in_turns(bench: Bench, works: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """The times of some works in turns."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + bench.warm):
        for name, work in works.items():
            bench.synchronize()
            begun = time.perf_counter()
            work()
            bench.synchronize()
            if turn >= bench.warm:
                times[name].append(time.perf_counter() - begun)
    return times


@dataclass(frozen=True)
class Rival:
    """Somebody who trains.

    Args:
        step: takes a step and gives its loss.
        run: takes a run of them.
    """

    step: Callable[[], float]
    run: Callable[[], object]

    @staticmethod
    def eager(
        module: torch.nn.Module, descent: torch.optim.Optimizer, batch: tuple[torch.Tensor, ...], count: int
    ) -> Rival:
        """Torch as it comes."""

        def queue() -> torch.Tensor:
            descent.zero_grad()
            loss: torch.Tensor = module(*batch)
            loss.backward()
            descent.step()
            return loss.detach()

        def run() -> float:
            return float(torch.stack([queue() for _ in range(count)]).sum().item())

        return Rival(lambda: torch_step(module, descent, batch), run)

    @staticmethod
    def graph(
        module: torch.nn.Module, descent: torch.optim.Optimizer, batch: tuple[torch.Tensor, ...], count: int
    ) -> Rival:
        """A step of torch as one CUDA graph, as its documentation shows."""
        descent.zero_grad(set_to_none=True)
        static = tuple(tensor.clone() for tensor in batch)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = module(*static)
            loss.backward()
            descent.step()

        def queue() -> torch.Tensor:
            for place, values in zip(static, batch, strict=True):
                place.copy_(values, non_blocking=True)
            graph.replay()
            return loss.detach()

        def run() -> float:
            return float(torch.stack([queue().clone() for _ in range(count)]).sum().item())

        return Rival(lambda: float(queue().item()), run)
