"""Step tables: the steps of lanes as columns, with what each waits for and uses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__: list[str] = []

Bits = np.ndarray[tuple[int, int], np.dtype[np.bool_]]
Clock = np.ndarray[tuple[int, int], np.dtype[np.int32]]
Column = np.ndarray[tuple[int], np.dtype[np.int64]]
Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]

NEVER = np.iinfo(np.int32).max
"""Later than any step of a lane."""
# Columns of `waits` and of `uses`.
STEP, NEED, CARRIED = range(3)
INSTANCE, BEGIN, OR_BEGIN, END, OR_END = range(5)


@dataclass(frozen=True, eq=False, slots=True)
class StepTable:
    """The steps of some lanes and the ends of what engines move, each after those that it waits for.

    Args:
        lanes: how many lanes there are.
        lane: that of each step; -1 for the end of a movement.
        index: its place there.
        waits: rows of a step, one that it waits for, and whether (1) that one's run before this one is meant.
        uses: rows of an instance, the step of a lane with which a use of it begins, another such step or the same, the
            step with which it has ended, and another or the same: it begins once both have begun, and has ended once
            either has.
    """

    lanes: int
    lane: Column
    index: Column
    waits: Table
    uses: Table
