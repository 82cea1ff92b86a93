"""The round-robin mapper: every point on the next processor, launch after launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from maniple.mappers.whole_launch import WholeLaunchMapper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.runtime.program.mapper import LaunchView

__all__ = ["RoundRobinMapper"]


@final
class RoundRobinMapper(WholeLaunchMapper):
    """Deals points out to all processors and goes on where the launch before ended, as Legion's default does for tasks.

    Launches of 3 and of 2 points on 4 processors:

        point      0   1   2   0   1
        processor  p0  p1  p2  p3  p0
    """

    def __init__(self) -> None:
        super().__init__()
        self._next = 0

    def place(self, launch: LaunchView) -> Sequence[int]:
        """Deal out the points."""
        count = len(launch.machine.processors)
        chosen = [(self._next + index) % count for index in range(len(launch.colors))]
        self._next = (self._next + len(chosen)) % count
        return chosen
