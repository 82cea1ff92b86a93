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
        return run_on_worlds(worlds, program, deadline_s=240.0)
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
    """Medians of steps in turns: ours, torch eager, torch's graph of a whole step; each with its loss brought home.

    Under ``bf16`` torch steps inside its autocast. Nobody uses TF32: a device of ours that is open switches it off, and
    torch's graph is captured before one is.
    """
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    graph, batch, module = made(net, size)
    near = tuple(tensor.to(bench.torch) for tensor in batch)
    module.to(bench.torch)
    descent = torch.optim.SGD(module.parameters(), 0.05, 0.9)
    if precision == "bf16":
        module = Cast(module, bench.torch.type)
    rivals: dict[str, Callable[[], object]] = {"torch": lambda: torch_step(module, descent, near)}
    for _ in range(3):
        rivals["torch"]()
    if bench.device == "cuda":
        rivals["torch_graph"] = whole_step(module, descent, near)

    def program(world: World) -> dict[str, list[float]]:
        plan = mp.search(graph, mp.Machine.cpu(1), strategy="data_parallel", semantics={"precision": precision})
        with mp.Trainer(graph, plan, optimizer=SGD, world=world) as trainer:
            rivals["ours"] = lambda: trainer.step(*near)
            times: dict[str, list[float]] = {name: [] for name in rivals}
            for turn in range(bench.rounds + 3):
                for name, step in rivals.items():
                    bench.synchronize()
                    begun = time.perf_counter()
                    step()
                    bench.synchronize()
                    if turn >= 3:
                        times[name].append(time.perf_counter() - begun)
            return times

    if bench.device != "cuda":
        near = batch
    (times,) = on(bench, 1, program)
    medians = {f"{name}_s": statistics.median(found) for name, found in times.items()}
    ratios = {f"over_{name}": medians[f"{name}_s"] / medians["ours_s"] for name in rivals if name != "ours"}
    return {**medians, **ratios, "spread": max(times["ours"]) / min(times["ours"])}


def whole_step(
    module: torch.nn.Module, descent: torch.optim.Optimizer, batch: tuple[torch.Tensor, ...]
) -> Callable[[], object]:
    """A step of torch as one CUDA graph, as its documentation shows."""
    descent.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = module(*batch)
        loss.backward()
        descent.step()

    def step() -> float:
        graph.replay()
        return float(loss.item())

    return step
