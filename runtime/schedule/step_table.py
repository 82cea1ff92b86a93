"""Step tables: the steps of lanes as columns, with what each waits for and uses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from maniple.runtime.schedule.space import corners

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maniple.regions.columns.conflict import Spaces
    from maniple.regions.index_space import IndexSpace
    from maniple.runtime.schedule.schedule import Schedule

__all__: list[str] = []

Bits = np.ndarray[tuple[int, int], np.dtype[np.bool_]]
Clock = np.ndarray[tuple[int, int], np.dtype[np.int32]]
Column = np.ndarray[tuple[int], np.dtype[np.int64]]
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]
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


@dataclass(frozen=True, eq=False, slots=True)
class StepUses:
    """What steps of rows use, one use after the other.

    Args:
        rows: how many rows there are.
        row: the row of each use.
        step: the step.
        instance: what it uses.
        space: the number of the elements that it uses of that.
        writes: whether it writes them.
    """

    rows: int
    row: Column
    step: Column
    instance: Column
    space: Column
    writes: Flags

    def where(self, kept: Flags) -> StepUses:
        """Give some of them."""
        parts = (self.row, self.step, self.instance, self.space, self.writes)
        return StepUses(self.rows, *(part[kept] for part in parts))  # type: ignore[arg-type]

    def renamed(self, names: Mapping[int, int]) -> StepUses:
        """Give the same uses of instances by other numbers, as far as these have any."""
        if not names:
            return self
        table = np.arange(1 + max(int(self.instance.max(initial=0)), *names, *names.values()))
        table[[*names]] = [*names.values()]
        return replace(self, instance=table[self.instance])


def moved_uses(schedule: Schedule, place: Column, firsts: Column) -> tuple[StepUses, StepUses, StepUses]:
    """Give what pushes read, what they write, and what folds inside collectives use, where each of these is a step.

    Args:
        schedule: the schedule.
        place: of each row the one under which its uses are; -1 for none.
        firsts: by such place the number of the first step, which are folds, and then pushes.
    """
    rows = len(firsts) - 1
    starts, source, target, rect, *_ = schedule.transfer
    counts, folds = np.diff(starts), np.diff(schedule.pieces.columns[0])
    row = place[np.repeat(np.arange(len(schedule)), counts)]
    step = firsts[row] + np.repeat(folds - starts[:-1], counts) + np.arange(len(row))
    reads, writes = np.zeros(len(row), np.bool_), np.ones(len(row), np.bool_)
    sent, got = StepUses(rows, row, step, source, rect, reads), StepUses(rows, row, step, target, rect, writes)
    begins, _, _, rect, *_ = schedule.pieces.columns
    row = place[np.repeat(np.arange(len(schedule)), folds)]
    step = firsts[row] + np.arange(len(row)) - np.repeat(begins[:-1], folds)
    piece, instance = schedule.pieces.uses()
    is_target = np.concatenate(([True], piece[1:] != piece[:-1]))[: len(piece)]
    return sent, got, StepUses(rows, row[piece], step[piece], instance, rect[piece], is_target)


def joined(*parts: StepUses) -> StepUses:
    """Give the uses of all parts, one part after the other."""
    names = ("row", "step", "instance", "space", "writes")
    return StepUses(parts[0].rows, *(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True, eq=False, slots=True)
class ComparedUses:
    """Uses as compiled rules compare them: by row and instance, and of one by where they begin on the instance's axis.

    Args:
        rows: where those of each row begin, and the uses.
        spaces: what is used.
        numbers: of each space of the schedule its number among these.
        axes: by instance the axis along which most of its uses begin elsewhere than one of them.
        steps: more than any step's number.
    """

    rows: tuple[Column, Table]
    spaces: Spaces
    numbers: Column
    axes: Column
    steps: int

    @classmethod
    def of(cls, uses: StepUses, rects: Sequence[IndexSpace], like: ComparedUses | None = None) -> ComparedUses:
        """Compare some uses.

        Args:
            uses: the uses.
            rects: the spaces that they refer to.
            like: uses with which these are compared, of all the same spaces or more; None: of themselves alone.
        """
        if like is None:
            used = np.zeros(len(rects), dtype=np.bool_)
            used[uses.space] = True
            spaces, numbers = corners(rects, np.flatnonzero(used)), np.cumsum(used) - 1
        else:
            spaces, numbers = like.spaces, like.numbers
        lows, highs = _hulls(spaces)
        space = numbers[uses.space]
        axes = _axes(uses.instance, lows[space]) if like is None else like.axes
        axis = axes[np.minimum(uses.instance, len(axes) - 1)]
        begins, ends = lows[space, axis], highs[space, axis]
        columns = np.stack((uses.instance, uses.step, space, uses.writes, begins, ends), axis=1)
        some = np.flatnonzero(begins < ends)
        order = some[np.lexsort((begins[some], uses.instance[some], uses.row[some]))]
        starts = np.searchsorted(uses.row[order], np.arange(uses.rows + 1))
        table = np.ascontiguousarray(columns[order], np.int64)
        return cls((starts, table), spaces, numbers, axes, 1 + int(uses.step.max(initial=0)))

    def conflicts(self, earlier: ComparedUses, pairs: Table) -> Table:
        """Find which steps of rows conflict with which of earlier ones: one of them writes what both touch.

        Args:
            earlier: the uses of the rows that are the first of a pair; these are of those that are the second.
            pairs: (earlier row, later row).

        Returns:
            (pair, step of the later row, step of the earlier one), each once, ascending.
        """
        from maniple.regions.columns import conflict

        found = conflict.conflicts(np.ascontiguousarray(pairs), earlier.rows, self.rows, self.spaces)
        steps = max(self.steps, earlier.steps)
        both = np.unique((found[:, 0] * steps + found[:, 1]) * steps + found[:, 2])
        ordered: Table = np.stack((both // (steps * steps), both // steps % steps, both % steps), axis=1)
        return ordered


def _hulls(spaces: Spaces) -> tuple[Table, Table]:
    """The smallest boxes around spaces: first indices, and one past the last; those without points are empty."""
    lows, highs, first, last = spaces
    some, hulls = first < last, np.zeros((2, len(first), lows.shape[1]), dtype=np.int64)
    if len(lows):
        hulls[0, some] = np.minimum.reduceat(lows, first[some])
        hulls[1, some] = np.maximum.reduceat(highs, first[some])
    return hulls[0], hulls[1]


def _axes(instances: Column, lows: Table) -> Column:
    """By instance the axis along which most of its uses begin elsewhere than one of them.

    Args:
        instances: what each use is of.
        lows: where each use begins.
    """
    count = 1 + int(instances.max(initial=0))
    one = np.zeros(count, dtype=np.int64)
    one[instances] = np.arange(len(instances))
    differs = np.zeros((count, lows.shape[1]), dtype=np.int64)
    for axis, begins in enumerate(lows.T):
        differs[:, axis] = np.bincount(instances, weights=begins != begins[one[instances]], minlength=count)
    found: Column = differs.argmax(axis=1)
    return found
