"""Compiled counting of the cache lines that boxes touch, as `regions/row_major.py` and `schedule/traffic.py` have."""

# pyright: reportArgumentType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.strategies.lowering import boxes
from maniple.strategies.lowering.boxes import AXES, HIGH, LOW, Boxes
from maniple.strategies.lowering.compiled import leaf

Layout = np.ndarray[tuple[int], np.dtype[np.int64]]
"""A region's extents, the bytes of an element, and those of a cache line: 0 where nobody counts lines."""
ITEMSIZE, LINE = AXES, AXES + 1


@leaf
def touched_bytes(table: Boxes, layout: Layout) -> int:
    """The bytes that a processor touches to read or to write disjoint boxes; 0 where nobody counts lines."""
    if layout[LINE] == 0:
        return 0
    points = boxes.volume_of(table)
    runs = points
    for axis in range(AXES):
        for one in range(len(table)):
            if _ends(table, one, layout, axis):
                for other in range(len(table)):
                    runs -= _count_continued(table, one, other, axis)
    return int(max(points * layout[ITEMSIZE], runs * layout[LINE]))


@leaf
def _ends(table: Boxes, box: int, layout: Layout, axis: int) -> bool:
    """Whether a box reaches the end of all axes within one."""
    for inner in range(axis + 1, AXES):
        if table[box, HIGH + inner] != layout[inner]:
            return False
    return True


@leaf
def _count_continued(table: Boxes, one: int, other: int, axis: int) -> int:
    """The points of another box whose predecessor is in one, by one less on an axis and at the end of those within."""
    low, high = LOW + axis, HIGH + axis
    count = min(table[one, high] + 1, table[other, high]) - max(table[one, low] + 1, table[other, low])
    if count <= 0:
        return 0
    for inner in range(axis + 1, AXES):
        if table[other, LOW + inner] != 0:
            return 0
    for outer in range(axis):
        low, high = LOW + outer, HIGH + outer
        span = min(table[one, high], table[other, high]) - max(table[one, low], table[other, low])
        if span <= 0:
            return 0
        count *= span
    return int(count)
