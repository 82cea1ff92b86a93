"""Boxes: half-open boxes of integer points, which pairs of them overlap, and joining of those that form one."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import final

from maniple.process.error import RequestError

_set = object.__setattr__


@final
@dataclass(frozen=True, slots=True)
class Rect:
    """A half-open box of integer points: every p with lo <= p < hi on each axis.

    A box of no axes has one point, so it is the index space of a scalar. A box without points keeps its shape
    (``Rect((4, 0), (4, 8))`` has shape ``(0, 8)``): an upper bound below the lower one is raised to it, and an
    empty intersection is the empty box at the origin.

    Args:
        lo: first index on each axis.
        hi: one past the last index on each axis; as many as ``lo``.

    Raises:
        RequestError: ``lo`` and ``hi`` have different lengths.
    """

    lo: tuple[int, ...]
    hi: tuple[int, ...]

    def __post_init__(self) -> None:
        lo, hi = self.lo, self.hi
        if len(lo) != len(hi):
            msg = f"expected bounds of one length, got lo {lo} and hi {hi}: give one number per axis in both"
            raise RequestError(msg)
        for low, high in zip(lo, hi, strict=True):
            if high < low:
                _set(self, "hi", tuple(map(max, lo, hi)))
                return

    @staticmethod
    def of_shape(shape: Sequence[int]) -> Rect:
        """The box at the origin with the given extents."""
        return Rect((0,) * len(shape), tuple(shape))

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.lo)

    @property
    def bounds(self) -> Rect:
        """The box itself: what contains a dense index space most closely."""
        return self

    @property
    def rects(self) -> tuple[Rect, ...]:
        """The box as disjoint boxes: itself, or none if it is empty."""
        return () if self.is_empty else (self,)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extent on each axis."""
        return tuple([high - low for low, high in zip(self.lo, self.hi, strict=True)])

    @property
    def volume(self) -> int:
        """The number of points."""
        return math.prod(map(operator.sub, self.hi, self.lo))

    @property
    def is_empty(self) -> bool:
        """Whether the box has no points."""
        return any(map(operator.eq, self.lo, self.hi))

    def positions(self) -> EllipsisType:
        """The index of all points in an array over the box: all of it, as a sparse index space has places to list."""
        return ...

    def overlaps(self, other: Rect) -> bool:
        """Whether the two boxes share a point."""
        if len(self.lo) != len(other.lo):
            raise _ndim_error(self, other)
        for low, high, other_low, other_high in zip(self.lo, self.hi, other.lo, other.hi):  # noqa: B905  (hot)
            if low >= other_high or other_low >= high or low == high or other_low == other_high:
                return False
        return True

    def contains(self, other: Rect) -> bool:
        """Whether every point of ``other`` is in this box; an empty box is contained in everything."""
        if len(self.lo) != len(other.lo):
            raise _ndim_error(self, other)
        for low, high, other_low, other_high in zip(self.lo, self.hi, other.lo, other.hi):  # noqa: B905  (hot)
            if other_low < low or other_high > high:
                return other.is_empty
        return True

    def intersect(self, other: Rect) -> Rect:
        """The box of the points that both have; without any, the empty box at the origin."""
        if len(self.lo) != len(other.lo):
            raise _ndim_error(self, other)
        lo: list[int] = []
        hi: list[int] = []
        for low, high, other_low, other_high in zip(self.lo, self.hi, other.lo, other.hi):  # noqa: B905  (hot)
            first = max(other_low, low)
            last = min(other_high, high)
            if first >= last:
                return nothing(len(self.lo))
            lo.append(first)
            hi.append(last)
        lows, highs = tuple(lo), tuple(hi)
        if lows == self.lo and highs == self.hi:
            return self
        if lows == other.lo and highs == other.hi:
            return other
        return _box(lows, highs)

    def subtract(self, other: Rect) -> tuple[Rect, ...]:
        """The points that ``other`` lacks, as disjoint boxes in ascending order of ``lo``.

        The middle box is the one taken away::

            +-----------------+
            |        0        |
            +----+-------+----+
            | 1  | other |  2 |
            +----+-------+----+
            |        3        |
            +-----------------+
        """
        hole = self.intersect(other)
        if hole is self or self.is_empty:
            return ()
        if hole.is_empty:
            return (self,)
        lo, hi = self.lo, self.hi
        before: list[Rect] = []
        after: list[Rect] = []
        for axis, (low, high) in enumerate(zip(hole.lo, hole.hi)):  # noqa: B905  (hot)
            if lo[axis] < low:
                before.append(_box(lo, (*hi[:axis], low, *hi[axis + 1 :])))
                lo = (*lo[:axis], low, *lo[axis + 1 :])
            if high < hi[axis]:
                after.append(_box((*lo[:axis], high, *lo[axis + 1 :]), hi))
                hi = (*hi[:axis], high, *hi[axis + 1 :])
        after.reverse()
        return (*before, *after)

    def hull(self, other: Rect) -> Rect:
        """The smallest box that contains both."""
        if self.contains(other):
            return self
        if other.contains(self):
            return other
        return _box(tuple(map(min, self.lo, other.lo)), tuple(map(max, self.hi, other.hi)))

    def shift(self, offset: Sequence[int]) -> Rect:
        """The box moved by ``offset``, one number per axis."""
        if len(offset) != len(self.lo):
            msg = f"expected an offset of {len(self.lo)} numbers for {self}, got {tuple(offset)}"
            raise RequestError(msg)
        return _box(
            tuple([a + b for a, b in zip(self.lo, offset, strict=True)]),
            tuple([a + b for a, b in zip(self.hi, offset, strict=True)]),
        )

    def slices(self, origin: Sequence[int]) -> tuple[slice, ...]:
        """The index of this box in an array whose element 0 is the point ``origin``.

        Raises:
            RequestError: ``origin`` has another number of axes, or the box has points before it.
        """
        if len(origin) != len(self.lo):
            msg = f"expected an origin of {len(self.lo)} numbers for {self}, got {tuple(origin)}"
            raise RequestError(msg)
        if self.is_empty:
            return tuple([slice(0, extent) for extent in self.shape])
        for low, start in zip(self.lo, origin, strict=True):
            if low < start:
                msg = f"expected a box that starts at {tuple(origin)} or later, got {self}: it is outside the array"
                raise RequestError(msg)
        return tuple([slice(low - o, high - o) for low, high, o in zip(self.lo, self.hi, origin, strict=True)])

    def split(self, axis: int, parts: int) -> tuple[Rect, ...]:
        """The box cut into ``parts`` along ``axis``: sizes differ by at most one, larger first, empty ones last.

        Raises:
            RequestError: the axis is not one of this box's, or ``parts`` is not positive.
        """
        if not 0 <= axis < len(self.lo):
            msg = f"expected an axis from 0 to {len(self.lo) - 1} of {self}, got {axis}"
            raise RequestError(msg)
        if parts < 1:
            msg = f"expected at least 1 part of {self}, got {parts}"
            raise RequestError(msg)
        size, larger = divmod(self.hi[axis] - self.lo[axis], parts)
        pieces: list[Rect] = []
        start = self.lo[axis]
        for part in range(parts):
            stop = start + size + (part < larger)
            lo = (*self.lo[:axis], start, *self.lo[axis + 1 :])
            pieces.append(_box(lo, (*self.hi[:axis], stop, *self.hi[axis + 1 :])))
            start = stop
        return tuple(pieces)

    def points(self) -> Iterator[tuple[int, ...]]:
        """Every point, the last axis fastest."""
        return itertools.product(*map(range, self.lo, self.hi))

    def __str__(self) -> str:
        inside = ", ".join([f"{low}:{high}" for low, high in zip(self.lo, self.hi, strict=True)])
        return f"[{inside}]"


def _box(lo: tuple[int, ...], hi: tuple[int, ...]) -> Rect:
    """A box whose bounds are known to be in order; this is the hot path, so it is not checked again."""
    rect = object.__new__(Rect)
    _set(rect, "lo", lo)
    _set(rect, "hi", hi)
    return rect


@functools.cache
def nothing(ndim: int) -> Rect:
    """The empty box at the origin."""
    return _box((0,) * ndim, (0,) * ndim)


def _ndim_error(first: Rect, second: Rect) -> RequestError:
    return RequestError(
        f"expected boxes with one number of axes, got {first} with {first.ndim} and {second} with {second.ndim}: "
        "compare boxes of one region only"
    )


def overlapping(rects: Sequence[Rect]) -> Iterator[tuple[int, int]]:
    """Every pair of positions (i < j) whose boxes share a point.

    A sweep along the axis on which the boxes start at the most places, so a tiling costs about n log n comparisons
    where all pairs would cost n squared.
    """
    boxes = [(index, rect) for index, rect in enumerate(rects) if not rect.is_empty]
    if len(boxes) < 2:
        return
    first = boxes[0][1]
    for _, rect in boxes:
        if len(rect.lo) != len(first.lo):
            raise _ndim_error(first, rect)
    if not first.lo:
        yield from itertools.combinations([index for index, _ in boxes], 2)
        return
    starts = [len(set(column)) for column in zip(*[rect.lo for _, rect in boxes], strict=True)]
    axis = starts.index(max(starts))
    boxes.sort(key=lambda entry: entry[1].lo[axis])
    active: list[tuple[int, Rect]] = []
    for index, rect in boxes:
        start = rect.lo[axis]
        active = [entry for entry in active if entry[1].hi[axis] > start]
        for other, box in active:
            if rect.overlaps(box):
                yield (other, index) if other < index else (index, other)
        active.append((index, rect))


def by_bounds(rect: Rect) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What boxes are ordered by."""
    return rect.lo, rect.hi


def merge(rects: Iterable[Rect]) -> tuple[Rect, ...]:
    """Disjoint boxes joined where two form one box, until none do; in ascending order."""
    boxes = sorted(rects, key=by_bounds)
    if len(boxes) < 2:
        return tuple(boxes)
    before = -1
    while len(boxes) > 1 and len(boxes) != before:
        before = len(boxes)
        for axis in reversed(range(boxes[0].ndim)):
            boxes = _join(boxes, axis)
    return tuple(sorted(boxes, key=by_bounds))


def recut(rects: Sequence[Rect]) -> Sequence[Rect]:
    """Disjoint boxes of the same points, cut where any of them ends and joined again, if that makes fewer of them."""
    boxes = list(rects)
    for axis in range(boxes[0].ndim - 1):
        cuts = sorted({bound for box in boxes for bound in (box.lo[axis], box.hi[axis])})
        boxes = [piece for box in boxes for piece in _cut(box, axis, cuts)]
    return min(rects, merge(boxes), key=len)


def _cut(box: Rect, axis: int, cuts: Sequence[int]) -> Iterator[Rect]:
    """The parts of a box between cuts of one axis, of which its own ends are some."""
    within = [cut for cut in cuts if box.lo[axis] <= cut <= box.hi[axis]]
    for low, high in itertools.pairwise(within):
        yield _box((*box.lo[:axis], low, *box.lo[axis + 1 :]), (*box.hi[:axis], high, *box.hi[axis + 1 :]))


def _join(boxes: list[Rect], axis: int) -> list[Rect]:
    """The boxes after joining, along one axis, each to the one that it ends at with the same sides."""
    rows: dict[tuple[tuple[int, ...], ...], list[Rect]] = {}
    for box in boxes:
        sides = (box.lo[:axis], box.hi[:axis], box.lo[axis + 1 :], box.hi[axis + 1 :])
        rows.setdefault(sides, []).append(box)
    if len(rows) == len(boxes):
        return boxes
    result: list[Rect] = []
    for row in rows.values():
        row.sort(key=lambda box: box.lo[axis])
        last = row[0]
        for box in row[1:]:
            if last.hi[axis] == box.lo[axis]:
                last = _box(last.lo, box.hi)
            else:
                result.append(last)
                last = box
        result.append(last)
    return result
