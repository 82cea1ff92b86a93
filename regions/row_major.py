"""Row-major order: how a region's points lie in a row, the last axis fastest, and which of them lie together there.

A *run* is as many points as follow each other. A box is made of runs of one length: the inner axes that it spans whole,
and its part of the next one. Boxes may continue each other's:

    a region of 8 x 8           runs
    [0:8, 2:4]                  8 of 2 points
    [2:4, 0:8]                  1 of 16
    [2:4, 0:8] and [4:5, 0:3]   1 of 19
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.regions.rectangle import Rect, overlapping

if TYPE_CHECKING:
    from maniple.regions.index_space import IndexSpace

__all__: list[str] = []


def runs(space: IndexSpace, bounds: Rect) -> int:
    """Count the runs that some points of a region are made of.

    Args:
        space: the points.
        bounds: the region.
    """
    if isinstance(space, Rect):
        return 0 if space.is_empty else _runs_of_box(space, bounds)
    if not space.is_empty and space.ndim == 1:
        lo, hi = space.columns
        return 1 + int((lo[1:] != hi[:-1]).sum())
    return space.volume - sum(_count_continued(space.rects, bounds, axis) for axis in range(bounds.ndim))


def _runs_of_box(box: Rect, bounds: Rect) -> int:
    count, together = 1, True
    for span, extent in zip(reversed(box.shape), reversed(bounds.shape), strict=True):
        if not together:
            count *= span
        together = together and span == extent
    return count


def _count_continued(boxes: tuple[Rect, ...], bounds: Rect, axis: int) -> int:
    """Count the points whose predecessor is there too and is one less on an axis: the inner ones end and begin anew."""
    inner = axis + 1
    step = (0,) * axis + (1,)
    ends = [Rect(box.lo[:inner], box.hi[:inner]).shift(step) for box in boxes if box.hi[inner:] == bounds.hi[inner:]]
    begins = [Rect(box.lo[:inner], box.hi[:inner]) for box in boxes if box.lo[inner:] == bounds.lo[inner:]]
    both = [*ends, *begins]
    return sum(both[i].intersect(both[j]).volume for i, j in overlapping(both) if i < len(ends) <= j)
