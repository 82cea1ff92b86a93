"""What tests of launched programs share: small tasks, a mapper that places points, and worlds to run in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch

import maniple as mp
from maniple.runtime.control.world import World
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.machine.world_machine import host_machine
from maniple.runtime.program.mapper import LaunchView, Mapper, TaskView
from maniple.runtime.session.session import Session
from maniple.testing import local_worlds, run_on_worlds

TIMEOUT_S = 90.0  # programs that take a third of a second have taken 8 s on a machine where others come first


@mp.task
def fill(value: float, x: mp.WriteDiscard) -> None:
    x.fill_(value)


@mp.task
def add(a: float, x: mp.Read, y: mp.ReadWrite) -> None:
    y += a * x


@mp.task
def total(x: mp.Read, sums: mp.ReduceSum) -> None:
    sums += x.sum()


@mp.task
def extremes(x: mp.Read, low: mp.ReduceMin, high: mp.ReduceMax, product: mp.ReduceProduct) -> None:
    low.copy_(torch.minimum(low, x.min()))
    high.copy_(torch.maximum(high, x.max()))
    product *= x.prod()


@mp.task
def where(color: mp.Color) -> list[int]:
    return list(color)


@mp.task
def summed(x: mp.Read) -> float:
    return float(x.sum())


@mp.task
def liar(x: mp.Read) -> None:
    x += 1


@mp.task
def explode(x: mp.ReadWrite) -> None:
    raise ZeroDivisionError("one over zero")


@mp.task
def wait(event: threading.Event, x: mp.ReadWrite) -> None:
    assert event.wait(TIMEOUT_S)
    x += 1


@mp.task
def tell(event: threading.Event, x: mp.ReadWrite) -> None:
    event.set()
    x += 1


class Place(Mapper):
    """Every point on the processor that a function of its index says."""

    def __init__(self, choose: Callable[[int], int]) -> None:
        self.choose = choose

    def shard(self, launch: LaunchView) -> Sequence[int]:
        return [launch.machine.rank_of(self.choose(index)) for index in range(len(launch.colors))]

    def select_processor(self, task: TaskView) -> int:
        return self.choose(task.index)


def made(world: World) -> Session:
    return Session(RankRuntime.of(world), host_machine(world), Mapper())


def on_ranks(size: int, body: Callable[[Session], object]) -> list[object]:
    """Run one program on several ranks that are threads."""
    return run_on_worlds(local_worlds(size), lambda world: body(made(world)), TIMEOUT_S)
