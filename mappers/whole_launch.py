"""Mappers that place all points of a launch in one go."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from maniple.runtime.program.mapper import Mapper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.runtime.program.mapper import LaunchView, TaskView

__all__: list[str] = []


class WholeLaunchMapper(Mapper):
    """Chooses the processors of all points when a launch is sharded, and remembers them for `select_processor`.

    A task that a plan places goes where the plan says.
    """

    def __init__(self) -> None:
        self._chosen: Sequence[int] = ()

    @abstractmethod
    def place(self, launch: LaunchView) -> Sequence[int]:
        """Choose a processor for each point, in the order of `launch.colors`."""

    def shard(self, launch: LaunchView) -> Sequence[int]:
        """Give the ranks of the processors chosen."""
        self._chosen = launch.suggested if launch.suggested is not None else self.place(launch)
        return [launch.machine.rank_of(processor) for processor in self._chosen]

    def select_processor(self, task: TaskView) -> int:
        """Give the processor chosen."""
        return self._chosen[task.index]
