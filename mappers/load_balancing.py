"""The load-balancing mapper: every point where the least work waits, by what tasks were measured to take."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, final

from maniple.mappers.whole_launch import WholeLaunchMapper
from maniple.runtime.program.mapper import TaskOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.runtime.program.mapper import LaunchView, TaskProfile

__all__ = ["LoadBalancingMapper"]


@final
class LoadBalancingMapper(WholeLaunchMapper):
    """Gives each point to the processor that will be free first, ties to the lowest: greedy list scheduling.

    The bound is Graham's, "Bounds on multiprocessing timing anomalies" (SIAM J. Appl. Math. 17, 1969): at most 2 - 1/m
    times the best for m processors. A task counts as long as it was measured to take on average, up to the last
    `fence()`, and before the first measurement as long as any other. Measured: `long` 3 s, `short` 1 s; launches of
    one point of `long` and four of `short` on 2 processors:

        task       long  short  short  short  short
        point      0     0      1      2      3
        processor  p0    p1     p1     p1     p0
    """

    def __init__(self) -> None:
        super().__init__()
        self._seconds: dict[str, float] = {}
        self._loads: list[tuple[float, int]] = []

    def task_options(self, launch: LaunchView) -> TaskOptions:
        """Have every launch measured."""
        del launch
        return TaskOptions(profile=True)

    def place(self, launch: LaunchView) -> Sequence[int]:
        """Give out the points."""
        if len(self._loads) != len(launch.machine.processors):
            self._loads = [(0.0, processor.id) for processor in launch.machine.processors]
        known = self._seconds.values()
        seconds = self._seconds.get(launch.name, sum(known) / len(known) if known else 1.0)
        if launch.must_epoch:
            return [processor for _, processor in sorted(self._loads)[: len(launch.colors)]]
        chosen = []
        for _ in launch.colors:
            load, processor = self._loads[0]
            chosen.append(processor)
            heapq.heapreplace(self._loads, (load + seconds, processor))
        return chosen

    def report_profiling(self, profile: tuple[TaskProfile, ...]) -> None:
        """Take the averages, and count the work that waits from none: all that was given out has ended."""
        totals: dict[str, tuple[int, float]] = {}
        for row in profile:
            count, seconds = totals.get(row.name, (0, 0.0))
            totals[row.name] = (count + row.count, seconds + row.seconds)
        self._seconds.update({name: seconds / count for name, (count, seconds) in sorted(totals.items())})
        self._loads = []
