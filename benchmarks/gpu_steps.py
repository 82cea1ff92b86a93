"""Steps on a GPU beside torch's on the same device: how they are run and timed. See ``gpu_checks.py``."""

from __future__ import annotations

import copy
import statistics
import time
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


def made(net: Net, size: int) -> tuple[mp.Graph, tuple[torch.Tensor, ...], torch.nn.Module]:
    """A network's graph, a batch, and its module, which trains by itself."""
    torch.manual_seed(0)
    module, batch = net.module(), net.batch(size)
    return mp.from_torch(copy.deepcopy(module), batch), batch, module


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


def race(bench: Bench, net: Net, size: int) -> Line:
    """Medians of steps in turns: ours, torch eager, torch's graph of a whole step; each with its loss brought home."""
    graph, batch, module = made(net, size)
    near = tuple(tensor.to(bench.torch) for tensor in batch)
    module.to(bench.torch)
    descent = torch.optim.SGD(module.parameters(), 0.05, 0.9)
    rivals: dict[str, Callable[[], object]] = {"torch": lambda: torch_step(module, descent, near)}
    for _ in range(3):
        rivals["torch"]()
    if bench.device == "cuda":
        rivals["torch_graph"] = whole_step(module, descent, near)

    def program(world: World) -> dict[str, list[float]]:
        plan = mp.search(graph, mp.Machine.cpu(1), strategy="data_parallel")
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
