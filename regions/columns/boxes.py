"""Boxes for compiled code: tables with a label, the lows and the highs (half-open) in each row."""

# pyright: reportArgumentType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import inner, kernel, leaf

AXES = 5
"""Axes of a box; a region with fewer has further axes of one point."""
LOW, HIGH, WIDTH = 1, 1 + AXES, 1 + 2 * AXES
NO_AXIS = -WIDTH

Boxes = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Column = np.ndarray[tuple[int], np.dtype[np.int64]]


@inner
def grow(table: Boxes, need: int) -> Boxes:
    """The table, or a larger copy where it has not that many rows."""
    if need <= len(table):
        return table
    # Twice as many as are needed: a table that is filled row by row copies no row more than twice, all in all.
    larger = np.empty((2 * need + 8, table.shape[1]), dtype=np.int64)
    # A loop: numba would compile an assignment with all that puts its error into words, for longer than most of this.
    for row in range(len(table)):
        for column in range(table.shape[1]):
            larger[row, column] = table[row, column]
    return larger


@leaf
def overlap(a: Boxes, i: int, b: Boxes, j: int) -> bool:
    """Whether two boxes that are not empty share a point."""
    for axis in range(AXES):
        if a[i, LOW + axis] >= b[j, HIGH + axis] or b[j, LOW + axis] >= a[i, HIGH + axis]:
            return False
    return True


@kernel
def are_disjoint(table: Boxes) -> bool:
    """Whether no two boxes, none of them empty, share a point."""
    order = order_rows(table)
    for place in range(len(order)):
        for other in range(place + 1, len(order)):
            # The low on axis 0 is what boxes are ordered by first: all later ones begin past this one's end, too.
            if table[order[other], LOW] >= table[order[place], HIGH]:
                break
            if overlap(table, order[place], table, order[other]):
                return False
    return True


@leaf
def contains(a: Boxes, i: int, b: Boxes, j: int) -> bool:
    """Whether all points of the second box are in the first."""
    for axis in range(AXES):
        if a[i, LOW + axis] > b[j, LOW + axis] or b[j, HIGH + axis] > a[i, HIGH + axis]:
            return False
    return True


@leaf
def volume(a: Boxes, i: int) -> int:
    """The number of points."""
    product = 1
    for axis in range(AXES):
        product *= a[i, HIGH + axis] - a[i, LOW + axis]
    return product


@leaf
def put(table: Boxes, i: int, source: Boxes, j: int) -> None:
    """Copy a row."""
    for column in range(WIDTH):
        table[i, column] = source[j, column]


@inner
def _take(source: Boxes, rows: Column) -> Boxes:
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
        # Of a box that a hole meets at most two slabs an axis are left, one on each side of the hole.
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
                # What is cut off is in the result; the box is what is left to cut on the next axes. After the last
                # one it lies within the hole and is dropped. So slabs are disjoint.
                rest[box, low] = max(rest[box, low], holes[hole, low])
                rest[box, high] = min(rest[box, high], holes[hole, high])
        rest = result[:count]
    return rest


@leaf
def same(a: Boxes, i: int, b: Boxes, j: int) -> bool:
    """Whether two boxes are equal."""
    for column in range(LOW, WIDTH):
        if a[i, column] != b[j, column]:
            return False
    return True


@leaf
def _before(table: Boxes, i: int, j: int, axis: int) -> bool:
    """Whether row i sorts before row j: by bounds, those on `axis` (if there is one) last."""
    # With these last, boxes that are alike on all other axes stand next to each other, in the order in which they lie
    # along this one: whoever joins there looks at neighbours only.
    for column in range(LOW, WIDTH):
        if column != LOW + axis and column != HIGH + axis and table[i, column] != table[j, column]:
            return table[i, column] < table[j, column]
    return axis >= 0 and table[i, LOW + axis] < table[j, LOW + axis]


@leaf
def _sort(table: Boxes, first: int, last: int, axis: int, order: Column, spare: Column) -> None:
    """Put the numbers of the rows from `first` to `last` into `order`, in `_before`'s order (a merge sort)."""
    count = last - first
    for place in range(count):
        order[place] = first + place
    width = 1
    while width < count:
        for start in range(0, count, 2 * width):
            middle, stop = min(start + width, count), min(start + 2 * width, count)
            left, right = start, middle
            for place in range(start, stop):
                # Of equals the left one: callers are promised equal boxes as they are.
                if left < middle and (right >= stop or not _before(table, order[right], order[left], axis)):
                    spare[place] = order[left]
                    left += 1
                else:
                    spare[place] = order[right]
                    right += 1
        for place in range(count):
            order[place] = spare[place]
        width *= 2


@inner
def order_rows(table: Boxes) -> Column:
    """The row numbers by bounds, equal ones as they are."""
    order, spare = np.empty(len(table), dtype=np.int64), np.empty(len(table), dtype=np.int64)
    _sort(table, 0, len(table), NO_AXIS, order, spare)
    return order


@inner
def _by_label(table: Boxes) -> Column:
    """The row numbers by ascending label (a radix sort)."""
    count, most, ascends = len(table), 0, True
    for row in range(count):
        most = max(most, table[row, 0])
        ascends &= row == 0 or table[row - 1, 0] <= table[row, 0]
    order, spare = np.arange(count), np.empty(count, dtype=np.int64)
    if ascends:
        return order
    starts = np.empty(257, dtype=np.int64)
    shift = 0
    # Eight bits at a time, the lowest first: each pass keeps what the passes before it have ordered.
    while most >> shift:
        starts[:] = 0
        for row in range(count):
            starts[((table[row, 0] >> shift) & 255) + 1] += 1
        for digit in range(256):
            starts[digit + 1] += starts[digit]
        for place in range(count):
            digit = (table[order[place], 0] >> shift) & 255
            spare[starts[digit]] = order[place]
            starts[digit] += 1
        order, spare = spare, order
        shift += 8
    return order


@leaf
def _is_cut(table: Boxes, first: int, last: int, axis: int) -> bool:
    """Whether boxes have different bounds on an axis; otherwise none joins another there."""
    low, high = LOW + axis, HIGH + axis
    for row in range(first + 1, last):
        if table[row, low] != table[first, low] or table[row, high] != table[first, high]:
            return True
    return False


@leaf
def _continues(table: Boxes, row: int, other: Boxes, before: int, axis: int) -> bool:
    """Whether a box begins where another ends on an axis, and is the same on the others."""
    if table[row, LOW + axis] != other[before, HIGH + axis]:
        return False
    for column in range(LOW, WIDTH):
        if column != LOW + axis and column != HIGH + axis and table[row, column] != other[before, column]:
            return False
    return True


@leaf
def _join(table: Boxes, first: int, last: int, order: Column, spare: Column, joined: Boxes) -> int:
    """Join the boxes from `first` to `last` where two form one box, until none do, and sort them; one past the last."""
    before = first
    # A join on one axis may make boxes alike that can be joined on another, so the axes take turns until a whole round
    # has joined nothing. Which boxes result depends on the order of the axes: last ones first, as `regions/` has it.
    while last - first > 1 and last != before:
        before = last
        for axis in range(AXES - 1, -1, -1):
            if not _is_cut(table, first, last, axis):
                continue
            _sort(table, first, last, axis, order, spare)
            count = 0
            for place in range(last - first):
                if count > 0 and _continues(table, order[place], joined, count - 1, axis):
                    joined[count - 1, HIGH + axis] = table[order[place], HIGH + axis]
                else:
                    put(joined, count, table, order[place])
                    count += 1
            # Where nothing was joined there is nothing to copy back: the next axis sorts anew in any case.
            if count < last - first:
                last = first + count
                for row in range(count):
                    put(table, first + row, joined, row)
    if last - first > 1:
        _sort(table, first, last, NO_AXIS, order, spare)
        for place in range(last - first):
            put(joined, place, table, order[place])
        for place in range(last - first):
            put(table, first + place, joined, place)
    return last


@inner
def merge(table: Boxes) -> Boxes:
    """Disjoint boxes of one label joined where two form one box, until none do; by ascending label and bounds."""
    rows = _take(table, _by_label(table))
    order, spare = np.empty(len(rows), dtype=np.int64), np.empty(len(rows), dtype=np.int64)
    joined = np.empty_like(rows)
    first = count = 0
    while first < len(rows):
        last = first + 1
        while last < len(rows) and rows[last, 0] == rows[first, 0]:
            last += 1
        stop = first + 1 if last == first + 1 else _join(rows, first, last, order, spare, joined)
        # Never more than were read: what is written to has been joined already.
        for row in range(first, stop):
            put(rows, count, rows, row)
            count += 1
        first = last
    return rows[:count]


@inner
def group(table: Boxes) -> tuple[Boxes, Column]:
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
            continue
        for axis in range(AXES):
            bounds[count - 1, LOW + axis] = min(bounds[count - 1, LOW + axis], table[row, LOW + axis])
            bounds[count - 1, HIGH + axis] = max(bounds[count - 1, HIGH + axis], table[row, HIGH + axis])
    first[count] = len(table)
    result, starts = np.empty_like(table), np.zeros(count + 1, dtype=np.int64)
    used = 0
    order = _order_few(bounds[:count])
    for place in range(count):
        starts[place] = used
        for row in range(first[order[place]], first[order[place] + 1]):
            put(result, used, table, row)
            used += 1
    starts[count] = used
    return result, starts


@inner
def _order_few(bounds: Boxes) -> Column:
    """The row numbers by bounds, equal ones as they are: few differ, so only those that do are compared."""
    different, number = distinct(bounds)
    order, spare = np.empty(len(different), dtype=np.int64), np.empty(len(different), dtype=np.int64)
    _sort(different, 0, len(different), NO_AXIS, order, spare)
    starts = np.zeros(len(different) + 1, dtype=np.int64)
    for place in range(len(different)):
        spare[order[place]] = place
    for row in range(len(bounds)):
        starts[spare[number[row]] + 1] += 1
    for place in range(len(different)):
        starts[place + 1] += starts[place]
    result = np.empty(len(bounds), dtype=np.int64)
    for row in range(len(bounds)):
        place = spare[number[row]]
        result[starts[place]] = row
        starts[place] += 1
    return result


@kernel
def distinct(table: Boxes) -> tuple[Boxes, Column]:
    """The boxes that differ from all before them, and for each box which of these it is."""
    size = 16
    # At least half of the places stay empty, so a search ends.
    while size < 2 * len(table):
        size *= 2
    index, number = np.full(size, NO_AXIS), np.empty(len(table), dtype=np.int64)
    result = np.empty_like(table)
    count = 0
    for row in range(len(table)):
        code = 1
        for column in range(LOW, WIDTH):
            code = (code ^ table[row, column]) * 0x9E3779B97F4A7C1
            code ^= code >> 29
        place = code & (size - 1)
        while index[place] >= 0 and not same(result, index[place], table, row):
            place = (place + 1) & (size - 1)
        if index[place] < 0:
            index[place] = count
            put(result, count, table, row)
            count += 1
        number[row] = index[place]
    return result[:count], number


@leaf
def volume_of(table: Boxes) -> int:
    """The number of points of disjoint boxes."""
    total = 0
    for row in range(len(table)):
        total += volume(table, row)
    return total


@leaf
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
