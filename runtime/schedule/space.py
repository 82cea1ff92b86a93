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

__all__: list[str] = []


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

    def item(self, number: int) -> IndexSpace:
        """Give one of them."""
        part = bisect_right(self.starts, number) - 1
        return self._parts[part][number - self.starts[part]]
