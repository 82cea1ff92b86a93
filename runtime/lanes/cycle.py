"""Cycles: which run of a schedule is next where values live over several runs, and what such a run leaves out.

A row of lag 2 works on what began two runs ago. The first two runs after a start have nothing for it, the ramp; and
once nothing more is given it goes on for two runs, the drain. With three batches given, and rows of lags 0, 1 and 2:

    run      0    1    2    3    4
    lag 0    0    1    2    .    .
    lag 1    .    0    1    2    .
    lag 2    .    .    0    1    2

A row that does nothing is a step like any other: counters move, and nothing is computed or sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection

    from maniple.runtime.schedule.schedule import Schedule

__all__: list[str] = []


@final
class Moment(NamedTuple):
    """What distinguishes a run from others of its schedule.

    Args:
        turn: its number, since the schedule was bound.
        low: the least lag of rows that have something to do.
        high: the greatest.
    """

    turn: int = 0
    low: int = 0
    high: int = 0


@final
class Cycle:
    """The runs of a schedule whose values live over several.

    Args:
        schedule: the schedule.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._lags = np.asarray(schedule.lags, np.int64)
        self.longest = int(self._lags.max(initial=0))
        """How many runs a drain takes."""
        self._turn = self._since = self._given = 0

    @property
    def is_drained(self) -> bool:
        """Whether nothing that was given is left to work on."""
        return not self._since

    @property
    def turn(self) -> int:
        """The number of the next run."""
        return self._turn

    @property
    def settled(self) -> int:
        """How many of the batches given since the start all rows have worked on."""
        return max(0, min(self._given, self._since - self.longest))

    def next(self, *, gives: bool) -> Moment:
        """Give the moment of the next run.

        Args:
            gives: whether it begins with something that is new.
        """
        given = self._given + gives
        return Moment(self._turn, max(0, self._since - given + 1), min(self._since, self.longest))

    def advance(self, *, gives: bool) -> None:
        """Take note that the next run was started."""
        self._given += gives
        self._turn += 1
        self._since += 1
        if self._since - self.longest >= self._given:
            self._since = self._given = 0

    def idle(self, moment: Moment) -> frozenset[int]:
        """Give the rows that have nothing to do."""
        idle = (self._lags < moment.low) | (self._lags > moment.high)
        return frozenset(np.flatnonzero(idle).tolist())

    def period(self, rows: Collection[int]) -> int:
        """After how many runs what some rows use lies where it lay."""
        starts, instances, *_ = self._schedule.access
        used = {int(number) for row in rows for number in instances[starts[row] : starts[row + 1]]}
        return self._schedule.rotation.periods(used) if self._schedule.rings else 1
