"""Programs of launches whose points a test places itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from drawn_launches import Argument, Step
from launched_work import task_of

import maniple as mp
from maniple.mappers.registry import make_mapper
from maniple.runtime.control.world import World
from maniple.runtime.execution import rank
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.machine.world_machine import host_machine
from maniple.runtime.session.session import Session


def opened(world: World, credit_bytes: int | None = None, machine: mp.Machine | None = None) -> Session:
    """A session at this rank of a world.

    Args:
        world: the rank.
        credit_bytes: bound of the bytes in flight to another rank; by default the runtime's own.
        machine: whose processors there are; by default the world's own.
    """
    if credit_bytes is not None:
        tighten(world, credit_bytes)
    return Session(RankRuntime.of(world), machine or host_machine(world), make_mapper("default"))


def tighten(world: World, credit_bytes: int) -> RankRuntime:
    """Give a world's runtime, not yet made at this rank, other credits."""
    assert world not in rank._RUNTIMES
    made = rank._RUNTIMES[world] = RankRuntime(world, credit_bytes)
    return made


class Placed(mp.Mapper):
    """Runs point i of a launch on the i-th of some processors.

    Args:
        processors: one per point.
    """

    def __init__(self, processors: Sequence[int]) -> None:
        self.processors = tuple(processors)

    def shard(self, launch: mp.plugins.LaunchView) -> Sequence[int]:
        """The ranks of those processors."""
        return [launch.machine.rank_of(processor) for processor in self.processors]

    def select_processor(self, task: mp.plugins.TaskView) -> int:
        """The processor of that point."""
        return self.processors[task.index]


def given_to(session: Session, region: mp.Region, argument: Argument, single: bool) -> object:
    """What a program passes for an argument: a field, its partition, or a sub-region of it."""
    if argument.atomic:
        region = region.atomic
    if argument.tiles is None:
        return region
    if isinstance(argument.made, mp.Rect):
        cut = region[mp.rectangles([argument.made])][0][mp.rectangles(argument.tiles)]
    elif argument.made is not None:
        colors = session.region(region.shape, "int64", "colors")
        colors.write(torch.tensor(argument.made).reshape(region.shape))
        cut = region[colors.by_field(len(argument.tiles))]
    else:
        cut = region[mp.rectangles(argument.tiles)]
    return cut[0] if single else cut


def launched(session: Session, regions: Sequence[mp.Region], step: Step) -> object:
    """What a program gets from a launch: a future, or a map of them."""
    arguments = [given_to(session, regions[argument.region], argument, step.single) for argument in step.arguments]
    task = task_of(tuple([argument.privilege for argument in step.arguments]))
    mapper = Placed(step.places)
    if step.single:
        return session.launch(task, step.factor, *arguments, mapper=mapper)
    return session.index_launch(task, len(step.places), step.factor, *arguments, mapper=mapper)


def resolved(entry: object) -> object:
    """What a program sees of a single launch's future: a list of its one result."""
    return [entry.get()] if isinstance(entry, mp.Future) else entry
