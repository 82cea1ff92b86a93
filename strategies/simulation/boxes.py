"""Boxes for compiled code: tables with a label, the lows and the highs (half-open) in each row."""

# pyright: reportArgumentType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.strategies.simulation.kernel import inner, kernel

AXES = 5
"""Axes of a box; a region with fewer has further axes of one point."""
LOW, HIGH, WIDTH = 1, 1 + AXES, 1 + 2 * AXES
NO_AXIS = -WIDTH

Boxes = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Column = np.ndarray[tuple[int], np.dtype[np.int64]]


@inner
def grown(table: Boxes, need: int) -> Boxes:
    """The table, or a larger copy where it has not that many rows."""
    if need <= len(table):
        return table
    larger = np.empty((2 * need + 8, table.shape[1]), dtype=np.int64)
    larger[: len(table)] = table
    return larger


@inner
def overlap(a: Boxes, i: int, b: Boxes, j: int) -> bool:
    """Whether two boxes that are not empty share a point."""
    for axis in range(AXES):
        if a[i, LOW + axis] >= b[j, HIGH + axis] or b[j, LOW + axis] >= a[i, HIGH + axis]:
            return False
    return True


@kernel
def are_disjoint(table: Boxes) -> bool:
    """Whether no two boxes, none of them empty, share a point."""
    order = ordered(table, NO_AXIS)
    for place in range(len(order)):
        for other in range(place + 1, len(order)):
            if table[order[other], LOW] >= table[order[place], HIGH]:
                break
            if overlap(table, order[place], table, order[other]):
                return False
    return True


@inner
def contains(a: Boxes, i: int, b: Boxes, j: int) -> bool:
    """Whether all points of the second box are in the first."""
    for axis in range(AXES):
        if a[i, LOW + axis] > b[j, LOW + axis] or b[j, HIGH + axis] > a[i, HIGH + axis]:
            return False
    return True


@inner
def volume(a: Boxes, i: int) -> int:
    """The number of points."""
    product = 1
    for axis in range(AXES):
        product *= a[i, HIGH + axis] - a[i, LOW + axis]
    return product


@inner
def put(table: Boxes, i: int, source: Boxes, j: int) -> None:
    """Copy a row."""
    for column in range(WIDTH):
        table[i, column] = source[j, column]


@inner
def _taken(source: Boxes, rows: Column) -> Boxes:
    """The rows with the given numbers."""
    result = np.empty((len(rows), WIDTH), dtype=np.int64)
    for place in range(len(rows)):
        put(result, place, source, rows[place])
    return result


@inner
def subtract(boxes: Boxes, holes: Boxes) -> Boxes:
    """The points of the boxes that no hole has, as disjoint boxes."""
    rest = boxes.copy()
    for hole in range(len(holes)):
        count = 0
        result = np.empty((len(rest) * 2 * AXES, WIDTH), dtype=np.int64)
        for box in range(len(rest)):
            if not overlap(rest, box, holes, hole):
                put(result, count, rest, box)
                count += 1
                continue
            for axis in range(AXES):
                low, high = LOW + axis, HIGH + axis
                if rest[box, low] < holes[hole, low]:
                    put(result, count, rest, box)
                    result[count, high] = holes[hole, low]
                    count += 1
                if holes[hole, high] < rest[box, high]:
                    put(result, count, rest, box)
                    result[count, low] = holes[hole, high]
                    count += 1
                rest[box, low] = max(rest[box, low], holes[hole, low])
                rest[box, high] = min(rest[box, high], holes[hole, high])
        rest = result[:count]
    return rest


@inner
def _before(table: Boxes, i: int, j: int, axis: int) -> bool:
    """Whether row i sorts before row j: by label and bounds, the bounds on `axis` (if there is one) last."""
    for column in range(WIDTH):
        if column != LOW + axis and column != HIGH + axis and table[i, column] != table[j, column]:
            return table[i, column] < table[j, column]
    return axis >= 0 and table[i, LOW + axis] < table[j, LOW + axis]


@inner
def ordered(table: Boxes, axis: int) -> Column:
    """The row numbers in `_before`'s order (a merge sort)."""
    count = len(table)
    order = np.arange(count)
    other = np.empty(count, dtype=np.int64)
    width = 1
    while width < count:
        for start in range(0, count, 2 * width):
            middle, stop = min(start + width, count), min(start + 2 * width, count)
            left, right = start, middle
            for place in range(start, stop):
                if left < middle and (right >= stop or not _before(table, order[right], order[left], axis)):
                    other[place] = order[left]
                    left += 1
                else:
                    other[place] = order[right]
                    right += 1
        order, other = other, order
        width *= 2
    return order


@inner
def _is_cut(table: Boxes, axis: int) -> bool:
    """Whether boxes have different bounds on an axis; otherwise none joins another there."""
    low, high = LOW + axis, HIGH + axis
    for row in range(1, len(table)):
        if table[row, low] != table[0, low] or table[row, high] != table[0, high]:
            return True
    return False


@inner
def merged(boxes: Boxes) -> Boxes:
    """Disjoint boxes of one label joined where two form one box, until none do; by ascending label and bounds."""
    before = -1
    while len(boxes) > 1 and len(boxes) != before:
        before = len(boxes)
        for axis in range(AXES - 1, -1, -1):
            if not _is_cut(boxes, axis):
                continue
            order = ordered(boxes, axis)
            result = np.empty_like(boxes)
            count = 0
            for number in order:
                if count > 0 and boxes[number, LOW + axis] == result[count - 1, HIGH + axis]:
                    same = True
                    for column in range(WIDTH):
                        if column != LOW + axis and column != HIGH + axis:
                            same &= boxes[number, column] == result[count - 1, column]
                    if same:
                        result[count - 1, HIGH + axis] = boxes[number, HIGH + axis]
                        continue
                put(result, count, boxes, number)
                count += 1
            boxes = result[:count]
    return _taken(boxes, ordered(boxes, NO_AXIS))


@inner
def grouped(table: Boxes) -> tuple[Boxes, Column]:
    """Boxes with those of one label together, labels by the bounds of all their boxes; and where each label starts.

    Args:
        table: boxes by ascending label.
    """
    count = 0
    bounds, first = np.empty_like(table), np.empty(len(table) + 1, dtype=np.int64)
    for row in range(len(table)):
        if row == 0 or table[row, 0] != table[row - 1, 0]:
            put(bounds, count, table, row)
            first[count] = row
            count += 1
        for axis in range(AXES):
            bounds[count - 1, LOW + axis] = min(bounds[count - 1, LOW + axis], table[row, LOW + axis])
            bounds[count - 1, HIGH + axis] = max(bounds[count - 1, HIGH + axis], table[row, HIGH + axis])
    first[count] = len(table)
    result, starts = np.empty_like(table), np.zeros(count + 1, dtype=np.int64)
    used = 0
    order = _placed(bounds, count)
    for place in range(count):
        starts[place] = used
        for row in range(first[order[place]], first[order[place] + 1]):
            put(result, used, table, row)
            used += 1
    starts[count] = used
    return result, starts


@inner
def _placed(bounds: Boxes, count: int) -> Column:
    """The numbers of the first `count` boxes by bounds, then by label (a merge sort)."""
    order = np.arange(count)
    other = np.empty(count, dtype=np.int64)
    width = 1
    while width < count:
        for start in range(0, count, 2 * width):
            middle, stop = min(start + width, count), min(start + 2 * width, count)
            left, right = start, middle
            for place in range(start, stop):
                if left < middle and (right >= stop or not _lower(bounds, order[right], order[left])):
                    other[place] = order[left]
                    left += 1
                else:
                    other[place] = order[right]
                    right += 1
        order, other = other, order
        width *= 2
    return order


@inner
def _lower(table: Boxes, i: int, j: int) -> bool:
    for column in range(LOW, WIDTH):
        if table[i, column] != table[j, column]:
            return table[i, column] < table[j, column]
    return table[i, 0] < table[j, 0]


@inner
def volume_of(table: Boxes) -> int:
    """The number of points of disjoint boxes."""
    total = 0
    for row in range(len(table)):
        total += volume(table, row)
    return total


@inner
def bounding_volume(table: Boxes) -> int:
    """The number of points of the smallest box that contains all."""
    product = 1
    for axis in range(AXES):
        low, high = table[0, LOW + axis], table[0, HIGH + axis]
        for row in range(1, len(table)):
            low, high = min(low, table[row, LOW + axis]), max(high, table[row, HIGH + axis])
        product *= high - low
    return product


@kernel
def hulls(table: Boxes, labels: Column, count: int) -> Boxes:
    """The smallest box around all boxes of each label below `count` that there is, by ascending label."""
    result = np.empty((count, WIDTH), dtype=np.int64)
    result[:, 0] = -1
    for row in range(len(table)):
        label = labels[row]
        if result[label, 0] < 0:
            put(result, label, table, row)
            result[label, 0] = label
        for axis in range(AXES):
            result[label, LOW + axis] = min(result[label, LOW + axis], table[row, LOW + axis])
            result[label, HIGH + axis] = max(result[label, HIGH + axis], table[row, HIGH + axis])
    return result[result[:, 0] >= 0]
