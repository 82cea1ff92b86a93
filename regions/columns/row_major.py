"""Row-major order: how a region's points lie in a row, the last axis fastest, and the cache lines that boxes touch.

A *run* is as many points as follow each other. A box is made of runs of one length: the inner axes that it spans whole,
and its part of the next one. Boxes may continue each other's:

    a region of 8 x 8           runs
    [0:8, 2:4]                  8 of 2 points
    [2:4, 0:8]                  1 of 16
    [2:4, 0:8] and [4:5, 0:3]   1 of 19

To copy a byte a CPU reads and writes the whole cache line, so a tile touches at least a line for each of its runs. The
region's bounds stand in for the instances at both ends, and nobody knows where in a line a run begins:

    8 x 8 elements of 4 bytes, lines of 64 bytes      runs           bytes     touched to read, and again to write
    a fourth by x (the inner axis)                    8 of 8 bytes   64        512
    a fourth by y                                     1 of 64        64        64
    all                                               1 of 256       256       256
"""

# pyright: reportArgumentType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import leaf
from maniple.regions.columns.boxes import LOW, Boxes

Layout = np.ndarray[tuple[int], np.dtype[np.int64]]
"""A region's extents, the bytes of an element, and those of a cache line: 0 where nobody counts lines."""
Column = np.ndarray[tuple[int], np.dtype[np.int64]]
ITEMSIZE, LINE = -2, -1


@leaf
def touched_bytes(table: Boxes, layout: Layout) -> int:
    """The bytes that a processor touches to read or to write disjoint boxes; 0 where nobody counts lines."""
    if layout[LINE] == 0:
        return 0
    axes, points, ascending = len(layout) - 2, 0, True
    for box in range(len(table)):
        volume = 1
        for axis in range(axes):
            volume *= table[box, LOW + axes + axis] - table[box, LOW + axis]
        points += volume
        ascending &= axes == 0 or box == 0 or table[box - 1, LOW] <= table[box, LOW]
    runs = points
    for one in range(len(table)):
        for other in range(one, len(table)):
            # Where boxes ascend, all later ones begin past this one's end, too, and continue none of its runs.
            if ascending and axes and table[other, LOW] > table[one, LOW + axes]:
                break
            runs -= _count_continued(table, one, other, layout)
            if other != one:
                runs -= _count_continued(table, other, one, layout)
    return int(max(points * layout[ITEMSIZE], runs * layout[LINE]))


@leaf
def _count_continued(table: Boxes, one: int, other: int, layout: Layout) -> int:
    """The points of another box whose predecessor is in one, by one less on an axis and at the end of those within."""
    axes, continued = len(layout) - 2, 0
    for axis in range(axes - 1, -1, -1):
        continued += _count_on_axis(table, one, other, axis, axes)
        # Further out the inner axes end and begin anew between the two.
        if table[one, LOW + axes + axis] != layout[axis] or table[other, LOW + axis] != 0:
            break
    return continued


@leaf
def _count_on_axis(table: Boxes, one: int, other: int, axis: int, axes: int) -> int:
    """The points of another box that begin its inner axes and are one more on an axis than points of one."""
    low, high = LOW + axis, LOW + axes + axis
    count = min(table[one, high] + 1, table[other, high]) - max(table[one, low] + 1, table[other, low])
    if count <= 0:
        return 0
    for outer in range(axis):
        low, high = LOW + outer, LOW + axes + outer
        span = min(table[one, high], table[other, high]) - max(table[one, low], table[other, low])
        if span <= 0:
            return 0
        count *= span
    return int(count)
