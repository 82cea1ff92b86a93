"""Pieces of spaces: index spaces cut into parts that movements take one after the other. Pure."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.regions.columns.boxes import AXES, HIGH, LOW
from maniple.regions.index_space import IndexSpace, RectSet
from maniple.regions.rectangle import Rect, recut
from maniple.runtime.schedule.space import BoxSpaces

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []

Column = np.ndarray[tuple[int], np.dtype[np.int64]]
Corners = tuple[list[int], list[int]]
"""The first index of a box on each axis, and one past the last."""


@final
class PiecedSpaces:
    """The spaces of a region, to which the pieces of some of them are added.

    A box is cut along its first axis, or along its longest where that has too few elements; each piece of a space has
    a piece of each of its boxes:

        (8, 3) in 4 pieces    rows 0 and 1, 2 and 3, 4 and 5, 6 and 7
        (2, 9) in 3 pieces    columns 0 to 2, 3 to 5, 6 to 8

    Args:
        spaces: what there is.
    """

    def __init__(self, spaces: Sequence[IndexSpace]) -> None:
        self._spaces = spaces
        self._made: list[list[Corners]] = []
        self._cut: dict[tuple[int, int], list[int]] = {}
        self._hulls: dict[int, int] = {}

    def cut(self, number: int, count: int) -> list[int]:
        """Give the numbers of a space's pieces: so many, or as many as there are that are not empty."""
        if count == 1:
            return [number]
        if (number, count) not in self._cut:
            cuts = [_cut(box, count) for box in self._boxes(number)]
            pieces = [[cut[piece] for cut in cuts if piece < len(cut)] for piece in range(max(map(len, cuts)))]
            first = len(self._spaces) + len(self._made)
            self._made += pieces
            self._cut[number, count] = list(range(first, first + len(pieces)))
        return self._cut[number, count]

    def hulls(self, numbers: Column) -> tuple[Column, Column]:
        """Give the numbers of the smallest boxes around spaces of a table, and how many elements they have."""
        known = self._spaces
        if not isinstance(known, BoxSpaces):
            raise TypeError(f"spaces: expected those of a table, got {type(known).__name__}")
        found = numbers.copy()
        for place in np.flatnonzero(known.last[numbers] - known.first[numbers] != 1).tolist():
            found[place] = self._hull(int(numbers[place]))
        low, high = known.boxes[known.first[numbers]][:, LOW:HIGH], known.boxes[known.first[numbers]][:, HIGH:]
        volumes = (high - low).prod(axis=1)
        for place in np.flatnonzero(found != numbers).tolist():
            (corners,) = self._made[int(found[place]) - len(known)]
            volumes[place] = prod(last - first for first, last in zip(*corners, strict=True))
        return found, volumes

    def _hull(self, number: int) -> int:
        """The number of the smallest box around a space."""
        if number not in self._hulls:
            lows, highs = zip(*self._boxes(number), strict=True)
            box = [min(low) for low in zip(*lows, strict=True)], [max(high) for high in zip(*highs, strict=True)]
            self._hulls[number] = len(self._spaces) + len(self._made)
            self._made.append([box])
        return self._hulls[number]

    def all(self) -> Sequence[IndexSpace]:
        """Give the spaces, and behind them all pieces."""
        if not self._made:
            return self._spaces
        if not isinstance(self._spaces, BoxSpaces):
            return [
                *self._spaces,
                *(_space([Rect(tuple(low), tuple(high)) for low, high in made]) for made in self._made),
            ]
        known, counts = self._spaces, [len(made) for made in self._made]
        boxes = np.zeros((len(known.boxes) + sum(counts), known.boxes.shape[1]), dtype=np.int64)
        boxes[: len(known.boxes)] = known.boxes
        boxes[len(known.boxes) :, LOW:HIGH] = [low for made in self._made for low, _ in made]
        boxes[len(known.boxes) :, HIGH:] = [high for made in self._made for _, high in made]
        ends = len(known.boxes) + np.cumsum([0, *counts])
        first, last = np.concatenate([known.first, ends[:-1]]), np.concatenate([known.last, ends[1:]])
        return BoxSpaces(known.bounds, known.axes, boxes, first, last)

    def _boxes(self, number: int) -> list[Corners]:
        """The boxes of a space, with the axes that the spaces' table has."""
        if isinstance(self._spaces, BoxSpaces):
            table = self._spaces.boxes[self._spaces.first[number] : self._spaces.last[number]]
            return [(row[LOW:HIGH], row[HIGH : HIGH + AXES]) for row in table.tolist()]
        return [(list(rect.lo), list(rect.hi)) for rect in self._spaces[number].rects]


def _cut(box: Corners, count: int) -> list[Corners]:
    """Cut a box into so many pieces, or as many as its side has elements."""
    low, high = box
    sides = [last - first for first, last in zip(low, high, strict=True)]
    axis = next((axis for axis, side in enumerate(sides) if side > 1), 0)
    if sides[axis] < count:
        axis = sides.index(max(sides))
    side, parts = sides[axis], min(count, sides[axis])
    found = []
    for part in range(parts):
        first, last = list(low), list(high)
        first[axis], last[axis] = low[axis] + side * part // parts, low[axis] + side * (part + 1) // parts
        found.append((first, last))
    return found


def _space(rects: list[Rect]) -> IndexSpace:
    return rects[0] if len(rects) == 1 else RectSet(recut(rects))
