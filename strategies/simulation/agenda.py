"""Agendas: compiled queues of rows by (time, key), for times that do not fall.

A calendar queue (R. Brown, Calendar queues: a fast O(1) priority queue implementation for the simulation event set
problem, CACM 1988): a row is put into the bucket of its time, unordered. When the time of a bucket comes, its rows are
sorted; a row that is put into the open bucket finds its place among them. The tasks of a launch become ready together
and by rising key, so there is little to sort, where a heap of all rows would compare every row with ten others.
"""

# pyright: reportArgumentType=false, reportReturnType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.strategies.simulation.kernel import inner, kernel

Column = np.ndarray[tuple[int], np.dtype[np.int64]]
Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Numbers = np.ndarray[tuple[int], np.dtype[np.int32]]
Buckets = tuple[Numbers, Numbers]
"""The last row of each bucket, and the row before each."""
Line = tuple[Column, Column, Numbers, Numbers, Numbers]
"""The rows of the open bucket: times, keys, rows; their order, and room to sort it."""
Agenda = tuple[Buckets, Line]
"""What runs for every row takes its arrays one by one: an array that comes out of a tuple is counted each time."""
NONE = -1
FEW = 64
"""So many rows find their places one by one; more are merged."""


@kernel
def empty(rows: int) -> Agenda:
    """Room for an agenda of so many rows, with more buckets than rows."""
    times, ranks = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    numbers, order, spare = np.zeros(rows, np.int32), np.zeros(rows, np.int32), np.zeros(rows, np.int32)
    size = 4
    while size <= 2 * rows:
        size *= 2
    return (np.full(size, NONE, np.int32), np.zeros(rows, np.int32)), (times, ranks, numbers, order, spare)


@inner
def put(buckets: Numbers, before: Numbers, row: int, bucket: int) -> None:
    """Put a row into a bucket; what is later than all buckets, into the last."""
    bucket = min(bucket, len(buckets) - 1)
    before[row] = buckets[bucket]
    buckets[bucket] = row


@inner
def opened(before: Numbers, line: Line, keys: Column, ready: Table, row: int) -> int:
    """Line up the rows of a bucket, of which one is the last, by (time, key). Returns how many there are."""
    times, ranks, rows, order, _ = line
    count = 0
    while row != NONE:
        times[count], ranks[count], rows[count] = ready[row, 0], keys[row], row
        count += 1
        row = before[row]
    if count > FEW:
        return _sorted(line, count)
    for place in range(count):
        entry = count - 1 - place
        behind = place
        while behind > 0 and _is_before(times, ranks, entry, order[behind - 1]):
            order[behind] = order[behind - 1]
            behind -= 1
        order[behind] = entry
    return count


@inner
def _sorted(line: Line, count: int) -> int:
    """Order many rows: those that are in order already are merged, two runs at a time."""
    times, ranks, _, order, spare = line
    for place in range(count):
        order[place] = count - 1 - place
    while True:
        left = 0
        while left < count:
            middle = _run(times, ranks, order, left, count)
            if left == 0 and middle == count:
                return count
            stop = _run(times, ranks, order, middle, count) if middle < count else count
            _merge(times, ranks, order, spare, left, middle, stop)
            left = stop
        order[:count] = spare[:count]


@inner
def _is_before(times: Column, ranks: Column, i: int, j: int) -> bool:
    return bool(times[i] < times[j] or (times[i] == times[j] and ranks[i] < ranks[j]))


@inner
def _run(times: Column, ranks: Column, order: Numbers, first: int, count: int) -> int:
    """Where the ordered run that begins at a place ends."""
    place = first + 1
    while place < count and not _is_before(times, ranks, order[place], order[place - 1]):
        place += 1
    return place


@inner
def _merge(times: Column, ranks: Column, order: Numbers, result: Numbers, left: int, middle: int, stop: int) -> None:
    """Merge two ordered runs that follow one another."""
    right, start = middle, left
    end = middle
    for place in range(start, stop):
        if left < end and (right >= stop or not _is_before(times, ranks, order[right], order[left])):
            result[place] = order[left]
            left += 1
        else:
            result[place] = order[right]
            right += 1


@inner
def insert(
    times: Column, ranks: Column, rows: Numbers, order: Numbers, place: int, lined: int, time: int, key: int, row: int
) -> int:
    """Put a row into the open bucket, of whose rows some have been taken. Returns how many there are.

    Most come after all that are there, so they are looked at from the end.
    """
    times[lined], ranks[lined], rows[lined] = time, key, row
    behind = lined
    while behind > place and _is_before(times, ranks, lined, order[behind - 1]):
        order[behind] = order[behind - 1]
        behind -= 1
    order[behind] = lined
    return lined + 1
