"""Programs of launches whose points a test places itself."""

from __future__ import annotations

from collections.abc import Sequence

import maniple as mp
from maniple.mappers.registry import make_mapper
from maniple.runtime import rank
from maniple.runtime.hosting import host_machine
from maniple.runtime.rank import RankRuntime
from maniple.runtime.session import Session
from maniple.runtime.world import World


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

    def shard(self, launch: mp.LaunchView) -> Sequence[int]:
        """The ranks of those processors."""
        return [launch.machine.rank_of(processor) for processor in self.processors]

    def select_processor(self, task: mp.TaskView) -> int:
        """The processor of that point."""
        return self.processors[task.index]
