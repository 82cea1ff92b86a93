"""The ways in which torch trains a raced model: eager, data parallel, sharded, pipelined; and sides that take turns."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from training.models import Race

Step = Callable[[], float]
"""One step of training; its loss, where this process has it."""
RATE = 0.01
SCHEDULES = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved_1f1b": ScheduleInterleaved1F1B,
    "zbv": ScheduleZBVZeroBubble,
}
SLOW_S = 5.0
"""A first step that takes longer is told."""
PEERS = 2
"""Processes that train together."""
WAIT = timedelta(seconds=60)
"""How long a stage waits for another: one that fails sends nothing."""


def make_optimizer(module: nn.Module, kind: str, *, fused: bool = True) -> torch.optim.Optimizer:
    """An optimizer of torch's, as the race has it."""
    if kind == "adamw":
        return torch.optim.AdamW(module.parameters(), lr=RATE / 10, fused=fused)
    return torch.optim.SGD(module.parameters(), lr=RATE, momentum=0.9, fused=fused)


def descend(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Step:
    """A step of a module whose forward gives the loss."""

    def step() -> float:
        optimizer.zero_grad()
        loss = module(x, y)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def eager(race: Race, samples: int, optimizer: str, *, fused: bool, compiled: bool = False) -> Step:
    """One process; the module as it is, or compiled by ``torch.compile``."""
    module = race.module()
    descent = make_optimizer(module, optimizer, fused=fused)
    if compiled:
        compile_here(module)
    return descend(module, descent, *race.data(samples))


def compile_here(module: nn.Module) -> None:
    """Have a module compiled at its first call, for the threads that torch has now (its cache does not ask)."""
    module.compile(dynamic=False, options={"cpp.threads": torch.get_num_threads()})


def data_parallel(race: Race, samples: int, optimizer: str, *, compiled: Literal["", "module", "whole"] = "") -> Step:
    """Each process has its part of the batch; gradients are averaged.

    Args:
        race: the model.
        samples: of all processes.
        optimizer: its kind.
        compiled: what is: nothing, the module within, or the whole with its sums of gradients.
    """
    inner = race.module()
    if compiled == "module":
        compile_here(inner)
    module = DistributedDataParallel(inner)
    if compiled == "whole":
        compile_here(module)
    x, y = race.data(samples)
    mine = slice(dist.get_rank() * samples // PEERS, (dist.get_rank() + 1) * samples // PEERS)
    return descend(module, make_optimizer(module, optimizer), x[mine], y[mine])


def sharded(race: Race, samples: int, optimizer: str, *, compiled: bool = False) -> Step:
    """The same with weights that are cut over the processes (FSDP2), each block by itself."""
    module = race.module()
    mesh = dist.device_mesh.init_device_mesh("cpu", (PEERS,))
    for block in module.blocks:
        if any(True for _ in block.parameters()):
            if compiled:
                compile_here(block)  # as torch advises: what gathers weights stands between blocks
            fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)
    x, y = race.data(samples)
    mine = slice(dist.get_rank() * samples // PEERS, (dist.get_rank() + 1) * samples // PEERS)
    # Foreach and fused forms of sharded tensors are those of torch's default.
    kind = torch.optim.AdamW(module.parameters(), lr=RATE / 10) if optimizer == "adamw" else None
    descent = kind or torch.optim.SGD(module.parameters(), lr=RATE, momentum=0.9)
    return descend(module, descent, x[mine], y[mine])


class _DenseFunction(torch.autograd.Function):
    """A value and its gradient, dense."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        del ctx
        return x.contiguous()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        del ctx
        return gradient.contiguous()


class Dense(nn.Module):
    """The ends of a stage: torch sends dense tensors alone, and what an LSTM gives, batch first, lies otherwise."""

    def forward(self, x: Tensor) -> Tensor:
        """Give the same, dense."""
        return _DenseFunction.apply(x)  # type: ignore[no-any-return,no-untyped-call]


def pipelined(race: Race, samples: int, optimizer: str, schedule: str, micro_batches: int, stages: int) -> Step:
    """Blocks in stages, one or two for each process, in an order of torch's."""
    from training.models import mean_loss

    rank, device = dist.get_rank(), torch.device("cpu")
    borders = (0, *race.cuts[stages], len(race.module().blocks))
    held = stages_of(rank, stages, schedule)
    blocks = race.module().blocks
    cuts = [list(blocks)[borders[number] : borders[number + 1]] for number in held]
    parts = [nn.Sequential(Dense(), *cut, Dense()) for cut in cuts]
    # A group of its own: of a pipeline that fails messages may stay under way.
    group = dist.new_group(timeout=WAIT)
    made = [PipelineStage(part, number, stages, device, group=group) for part, number in zip(parts, held, strict=True)]
    form = SCHEDULES[schedule]
    plan = form(made if stages > PEERS else made[0], micro_batches, loss_fn=mean_loss)  # type: ignore[arg-type]
    descent = make_optimizer(nn.ModuleList(parts), optimizer)
    x, y = race.data(samples)
    first, last = 0 in held, stages - 1 in held

    def step() -> float:
        descent.zero_grad()
        losses: list[Tensor] = []
        given = (x,) if first else ()
        plan.step(*given, **({"target": y, "losses": losses} if last else {}))
        descent.step()
        return float(torch.stack(losses).mean()) if losses else 0.0

    return step


def stages_of(rank: int, stages: int, schedule: str) -> Sequence[int]:
    """The stages of a process: in turn, or, where two meet in a V, from both ends."""
    if stages == PEERS:
        return [rank]
    return [rank, stages - 1 - rank] if schedule == "zbv" else list(range(rank, stages, PEERS))


def threads() -> list[int]:
    """The numbers of this process's threads."""
    folder = Path("/proc/self/task")
    return [int(task.name) for task in folder.iterdir()] if folder.exists() else []


@contextmanager
def spread_over(cores: Sequence[int], count: int) -> Iterator[None]:
    """Let torch have so many threads on some cores, and give back what was."""
    before = torch.get_num_threads()
    kept = {thread: os.sched_getaffinity(thread) for thread in threads()}
    for thread in kept:
        os.sched_setaffinity(thread, cores)
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        for thread in threads():
            os.sched_setaffinity(thread, kept.get(thread, set(cores)))


def race_of(sides: dict[str, Step], rounds: int, seconds: float, meet: Callable[[int], int]) -> dict[str, list[float]]:
    """Time sides in turn: milliseconds a step, a figure a round.

    Args:
        sides: by name.
        rounds: how many.
        seconds: how long a turn takes at least.
        meet: has all processes at one place, and gives the first one's number.
    """
    steps = {}
    for name, step in sides.items():
        meet(0)
        begun = time.perf_counter()
        step()
        if (took := time.perf_counter() - begun) > SLOW_S:
            print(f"{name}: the first step took {took:.1f} s", file=sys.stderr)  # it compiles
        for _ in range(2):
            step()
        begun = time.perf_counter()
        for _ in range(2):
            step()
        took = (time.perf_counter() - begun) / 2
        steps[name] = meet(max(2, round(seconds / max(took, 1e-4))))
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, step in sides.items():
            meet(0)
            step()  # not timed: the first step of a turn finds the other side's data in the caches
            begun = time.perf_counter()
            for _ in range(steps[name]):
                step()
            found[name].append(1e3 * (time.perf_counter() - begun) / steps[name])
    return found
