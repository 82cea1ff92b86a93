"""Runs, counted axis by axis: what a tile of a region touches in cache lines, box by box and without compiled code."""

from __future__ import annotations

from maniple.regions.index_space import IndexSpace
from maniple.regions.rectangle import Rect, overlapping


def touched_bytes(space: IndexSpace, bounds: Rect, itemsize: int, line: int) -> int:
    """The bytes that a processor touches to read or to write a tile: a cache line for each run, and all its own."""
    return max(space.volume * itemsize, runs(space, bounds) * line)


def runs(space: IndexSpace, bounds: Rect) -> int:
    """How many runs some points of a region are made of: every point begins one that does not continue another's."""
    return space.volume - sum(_count_continued(space.rects, bounds, axis) for axis in range(bounds.ndim))


def _count_continued(boxes: tuple[Rect, ...], bounds: Rect, axis: int) -> int:
    """The points whose predecessor is there too and is one less on an axis: the inner ones end and begin anew."""
    inner = axis + 1
    step = (0,) * axis + (1,)
    ends = [Rect(box.lo[:inner], box.hi[:inner]).shift(step) for box in boxes if box.hi[inner:] == bounds.hi[inner:]]
    begins = [Rect(box.lo[:inner], box.hi[:inner]) for box in boxes if box.lo[inner:] == bounds.lo[inner:]]
    both = [*ends, *begins]
    return sum(both[i].intersect(both[j]).volume for i, j in overlapping(both) if i < len(ends) <= j)
