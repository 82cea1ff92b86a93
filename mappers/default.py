"""The default mapper: points in blocks over the processors, or the plan's placement where there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from maniple.runtime.program.mapper import Mapper, TaskOptions

if TYPE_CHECKING:
    from maniple.runtime.program.mapper import LaunchView

__all__ = ["DefaultMapper"]


@final
class DefaultMapper(Mapper):
    """Spreads the points of a launch over all processors in blocks.

    6 points on 4 processors:

        point      0   1   2   3   4   5
        processor  p0  p0  p1  p2  p2  p3

    A task that a plan places goes where the plan says.
    """

    def task_options(self, launch: LaunchView) -> TaskOptions:
        """Keep the answers: they depend on the launch alone."""
        del launch
        return TaskOptions(keep=True)
