"""Ranks that do not do the same are stopped, whatever the difference: no mixture of two programs is ever a result."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from thread_ranks import run_on_ranks

import maniple as mp
from maniple.models import digits_cnn
from maniple.runtime.control.control import RankStopped
from maniple.runtime.control.world import World
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.machine.world_machine import host_machine
from maniple.runtime.program.mapper import LaunchView, Mapper, TaskMapping, TaskView
from maniple.runtime.session.session import Session


@mp.task
def add(a: object, x: mp.ReadWrite) -> None:
    x += a if isinstance(a, int | float) else 1


@add.variant("cpu", name="twice")
def add_twice(a: object, x: mp.ReadWrite) -> None:
    x += 2


class ByRank(Mapper):
    """Answers differently on each rank, which no mapper may."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def map_task(self, task: TaskView) -> TaskMapping:
        return TaskMapping(task.variants[self.rank])


class Priority(ByRank):
    def map_task(self, task: TaskView) -> TaskMapping:
        return TaskMapping(task.variants[0])

    def order(self, task: TaskView) -> int:
        return self.rank


class Placement(ByRank):
    def map_task(self, task: TaskView) -> TaskMapping:
        return TaskMapping(task.variants[0])

    def shard(self, launch: LaunchView) -> list[int]:
        return [self.rank] * len(launch.colors)

    def select_processor(self, task: TaskView) -> int:
        return self.rank


Program = Callable[[Session, int], object]
ROWS = mp.blocks((2,))


def region(session: Session, extent: int = 4) -> mp.Region:
    made = session.region((extent,))
    made.fill(0.0)
    return made


def replayed(session: Session, rank: int, *, length: int) -> None:
    """The third run of a trace has another value, or another length, on each rank."""
    x = region(session)
    for number in range(3):
        differs = rank if number == 2 else 0
        with session.trace("step", on_mismatch="rerecord"):
            for _ in range(2 + length * differs):
                session.launch(add, 1 + (1 - length) * differs, x)


PROGRAMS: dict[str, Program] = {
    "replayed value": lambda session, rank: replayed(session, rank, length=0),
    "replayed length": lambda session, rank: replayed(session, rank, length=1),
    "fill": lambda session, rank: region(session).fill(float(rank)),
    "write": lambda session, rank: region(session).write(torch.full((4,), float(rank))),
    "shape": lambda session, rank: session.region((4 + rank,)),
    "tile": lambda session, rank: session.launch(add, 1, region(session)[ROWS][rank]),
    "partition": lambda session, rank: session.index_launch(
        add, ROWS.colors, 1, region(session)[mp.rectangles([((0,), (1 + rank,)), ((1 + rank,), (4,))])]
    ),
    "value": lambda session, rank: session.launch(add, rank, region(session)),
    "container": lambda session, rank: session.launch(add, (1, [rank]), region(session)),
    "tensor": lambda session, rank: session.launch(add, torch.tensor([rank]), region(session)),
    "variant": lambda session, rank: session.launch(add, 1, region(session), mapper=ByRank(rank)),
    "priority": lambda session, rank: session.launch(add, 1, region(session), mapper=Priority(rank)),
    "placement": lambda session, rank: session.launch(add, 1, region(session), mapper=Placement(rank)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_launch_that_differs_stops_every_rank(name: str) -> None:
    def body(world: World) -> None:
        session = Session(RankRuntime.of(world), host_machine(world), Mapper())
        PROGRAMS[name](session, world.rank)
        world.control.gather(b"")

    with pytest.raises(RankStopped, match=r"node 1 \(rank 1\)"):
        run_on_ranks(2, body)


@pytest.mark.parametrize("call", ["step", "evaluate", "order"])
@pytest.mark.parametrize("at", [0, 3])
def test_a_trainer_that_is_used_differently_stops_every_rank(call: str, at: int) -> None:
    def body(world: World) -> None:
        graph = digits_cnn(8)
        plan = mp.search(graph, host_machine(world), strategy="data_parallel")
        trainers = [mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.1), world=world) for _ in range(2)]
        images, labels = torch.zeros(8, 1, 8, 8), torch.arange(8)
        for step in range(5):
            differs = world.rank == 1 and step == at
            trainers[differs and call == "order"].step(images + (differs and call == "step"), labels)
            trainers[0].evaluate(images + (differs and call == "evaluate"))

    with pytest.raises(RankStopped, match=r"node 1 \(rank 1\)"):
        run_on_ranks(2, body)
