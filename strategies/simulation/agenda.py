"""Agendas: compiled queues of rows by (time, key), for times that do not fall.

A calendar queue (R. Brown, Calendar queues: a fast O(1) priority queue implementation for the simulation event set
problem, CACM 1988): a row is put into the bucket of its time, unordered. When the time of a bucket comes, its rows are
sorted; a row that is put into the open bucket waits in a heap beside them. The tasks of a launch become ready together
and by rising key, so there is little to sort, where a heap of all rows would compare every row with ten others.
"""

# pyright: reportArgumentType=false, reportReturnType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.strategies.simulation.kernel import inner

Column = np.ndarray[tuple[int], np.dtype[np.int64]]
Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Numbers = np.ndarray[tuple[int], np.dtype[np.int32]]
Buckets = tuple[Numbers, Numbers]
"""The last row of each bucket, and the row before each."""
Line = tuple[Column, Column, Numbers, Numbers, Numbers]
"""The rows of the open bucket: times, keys, rows; their order, and room to sort it."""
Heap = tuple[Column, Numbers]
"""Times and rows."""
Agenda = tuple[Buckets, Line, Heap]
"""What runs for every row takes its arrays one by one: an array that comes out of a tuple is counted each time."""
NONE = -1


@inner
def put(buckets: Numbers, before: Numbers, row: int, bucket: int) -> None:
    """Put a row into a bucket; what is later than all buckets, into the last."""
    bucket = min(bucket, len(buckets) - 1)
    before[row] = buckets[bucket]
    buckets[bucket] = row


@inner
def opened(before: Numbers, line: Line, keys: Column, ready: Table, row: int) -> int:
    """Line up the rows of a bucket, of which one is the last, by (time, key). Returns how many there are."""
    times, ranks, rows, order, spare = line
    count = 0
    while row != NONE:
        times[count], ranks[count], rows[count] = ready[row, 0], keys[row], row
        count += 1
        row = before[row]
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
def leads(times: Column, ranks: Column, first: int, heap_times: Column, heap_rows: Numbers, keys: Column) -> bool:
    """Whether the first row of the line comes before the first of the heap."""
    return bool(times[first] < heap_times[0] or (times[first] == heap_times[0] and ranks[first] < keys[heap_rows[0]]))


@inner
def push(heap_times: Column, heap_rows: Numbers, keys: Column, size: int, time: int, row: int) -> int:
    """Put a row into the heap. Returns the size."""
    place = size
    while place > 0:
        parent = (place - 1) >> 1
        if heap_times[parent] < time or (heap_times[parent] == time and keys[heap_rows[parent]] < keys[row]):
            break
        heap_times[place], heap_rows[place] = heap_times[parent], heap_rows[parent]
        place = parent
    heap_times[place], heap_rows[place] = time, row
    return size + 1


@inner
def drop_first(times: Column, rows: Numbers, keys: Column, size: int) -> int:
    """Remove the earliest entry of the heap. Returns the size."""
    size -= 1
    time, row = times[size], rows[size]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (
            times[other] < times[child] or (times[other] == times[child] and keys[rows[other]] < keys[rows[child]])
        ):
            child = other
        if times[child] > time or (times[child] == time and keys[rows[child]] > keys[row]):
            break
        times[place], rows[place] = times[child], rows[child]
        place = child
    times[place], rows[place] = time, row
    return size
