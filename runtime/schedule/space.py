"""Spaces: the index spaces that a schedule refers to, as columns of boxes; one is made when somebody asks for it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from maniple.regions.columns.boxes import AXES, HIGH, LOW, distinct
from maniple.regions.index_space import IndexSpace, RectSet
from maniple.regions.rectangle import Rect, recut
from maniple.runtime.schedule.on_demand import OnDemand

if TYPE_CHECKING:
    from maniple.regions.columns.boxes import Boxes, Column
    from maniple.regions.columns.conflict import Spaces

__all__: list[str] = []

Corners = tuple["Boxes", "Boxes", "Column"]
"""Of boxes the first index and one past the last, by axis; and how many of them each space has."""


def corners(spaces: Sequence[IndexSpace], numbers: Column) -> Spaces:
    """Some spaces, ascending and each once, as compiled rules compare them; axes that a region lacks have one index."""
    parts = spaces.parts_of(numbers) if isinstance(spaces, JoinedSpaces) else [(spaces, numbers)]
    found = [_corners(part, own) for part, own in parts]
    axes = max((low.shape[1] for low, _, _ in found), default=0)
    boxes = sum(len(low) for low, _, _ in found)
    lows, highs = np.zeros((boxes, max(1, axes)), dtype=np.int64), np.ones((boxes, max(1, axes)), dtype=np.int64)
    at = 0
    for low, high, _ in found:
        lows[at : at + len(low), : low.shape[1]], highs[at : at + len(low), : low.shape[1]] = low, high
        at += len(low)
    counts = np.concatenate([np.empty(0, dtype=np.int64), *[count for _, _, count in found]])
    filled = (lows < highs).all(axis=1)
    if not filled.all():
        of_space = np.repeat(np.arange(len(counts)), counts)
        lows, highs, counts = lows[filled], highs[filled], np.bincount(of_space[filled], minlength=len(counts))
    ends = np.cumsum(counts)
    if counts.max(initial=0) > 1:
        order = np.lexsort((lows[:, 0], np.repeat(np.arange(len(counts)), counts)))
        lows, highs = lows[order], highs[order]
    return lows, highs, ends - counts, ends


def _corners(spaces: Sequence[IndexSpace], numbers: Column) -> Corners:
    """The boxes of some spaces of one region."""
    if isinstance(spaces, BoxSpaces):
        return spaces.corners(numbers)
    columns = []
    for number in numbers.tolist():
        space = spaces[number]
        if isinstance(space, Rect):
            columns.append((np.asarray([space.lo], dtype=np.int64), np.asarray([space.hi], dtype=np.int64)))
        else:
            columns.append(space.columns)
    axes = max((low.shape[1] for low, _ in columns), default=0)
    boxes = [(low, high) for low, high in columns if len(low)]
    return (
        np.concatenate([np.empty((0, axes), dtype=np.int64), *[low for low, _ in boxes]]),
        np.concatenate([np.empty((0, axes), dtype=np.int64), *[high for _, high in boxes]]),
        np.asarray([len(low) for low, _ in columns], dtype=np.int64),
    )


class BoxSpaces(OnDemand[IndexSpace]):
    """Spaces of one region, each some boxes that are next to each other in a table.

    Args:
        bounds: the region's elements, from 0 on each axis.
        axes: those that the table's boxes have; on all others the region is one element long.
        boxes: the table.
        first: the first box of each space.
        last: one past the last.
    """

    def __init__(self, bounds: Rect, axes: Sequence[int], boxes: Boxes, first: Column, last: Column) -> None:
        self.bounds, self.axes, self.boxes, self.first, self.last = bounds, tuple(axes), boxes, first, last
        self._made: dict[tuple[int, int], IndexSpace] = {}

    @cached_property
    def _ends(self) -> tuple[list[int], list[int]]:
        return self.first.tolist(), self.last.tolist()

    @cached_property
    def _alike(self) -> list[int]:
        """For each box the first one of the same elements."""
        table = self.boxes.copy()
        table[:, 0] = 0
        _, number = distinct(table)
        _, first = np.unique(number, return_index=True)
        alike: list[int] = first[number].tolist()
        return alike

    def __len__(self) -> int:
        """Count them."""
        return len(self.first)

    def item(self, number: int) -> IndexSpace:
        """Give one of them."""
        first, last = self._ends[0][number], self._ends[1][number]
        if last - first == 1:
            first = self._alike[first]
            last = first + 1
        found = self._made.get((first, last))
        if found is None:
            rects = self.rects(self.boxes[first:last, LOW:])
            found = self._made[first, last] = rects[0] if len(rects) == 1 else RectSet(recut(rects))
        return found

    def rects(self, table: Boxes) -> list[Rect]:
        """Give boxes, without their labels, as rectangles of the region."""
        low, high = list(self.bounds.lo), list(self.bounds.hi)
        found = []
        for row in table.tolist():
            for place, axis in enumerate(self.axes):
                low[axis], high[axis] = row[place], row[AXES + place]
            found.append(Rect(tuple(low), tuple(high)))
        return found

    def corners(self, numbers: Column) -> Corners:
        """Give the boxes of some of them, on all axes of the region."""
        counts = self.last[numbers] - self.first[numbers]
        rows = np.arange(int(counts.sum())) + np.repeat(self.first[numbers] - (np.cumsum(counts) - counts), counts)
        low = np.tile(np.asarray(self.bounds.lo, dtype=np.int64), (len(rows), 1))
        high = np.tile(np.asarray(self.bounds.hi, dtype=np.int64), (len(rows), 1))
        table = self.boxes[rows]
        low[:, self.axes] = table[:, LOW : LOW + len(self.axes)]
        high[:, self.axes] = table[:, HIGH : HIGH + len(self.axes)]
        return low, high, counts

    def volumes(self) -> Column:
        """Count the elements of each."""
        volumes = (self.boxes[:, HIGH:] - self.boxes[:, LOW:HIGH]).prod(axis=1)
        sums = np.concatenate(([0], np.cumsum(volumes)))
        counted: Column = sums[self.last] - sums[self.first]
        return counted


class JoinedSpaces(OnDemand[IndexSpace]):
    """Spaces of several regions, one region after the other.

    Args:
        parts: those of each.
    """

    def __init__(self, parts: Sequence[Sequence[IndexSpace]]) -> None:
        self._parts = parts
        self.starts = [0]
        for part in parts:
            self.starts.append(self.starts[-1] + len(part))

    def __len__(self) -> int:
        """Count them."""
        return self.starts[-1]

    def parts_of(self, numbers: Column) -> list[tuple[Sequence[IndexSpace], Column]]:
        """Give the parts that some of them, ascending, are of, and their numbers there."""
        ends = np.searchsorted(numbers, self.starts)
        return [
            (part, numbers[first:last] - start)
            for part, start, first, last in zip(self._parts, self.starts, ends, ends[1:], strict=False)
            if first < last
        ]

    def item(self, number: int) -> IndexSpace:
        """Give one of them."""
        part = bisect_right(self.starts, number) - 1
        return self._parts[part][number - self.starts[part]]
