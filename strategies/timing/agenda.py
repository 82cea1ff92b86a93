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

from maniple.strategies.lowering.compiled import inner, kernel, leaf
from maniple.strategies.lowering.tables import DUE, KEY, NONE, Column, Numbers, Table

Buckets = tuple[Numbers, Numbers]
"""The last row of each bucket, and the row before each."""
Line = tuple[Column, Numbers]
"""The times and rows of the open bucket by falling (time, key): the last goes first."""
Agenda = tuple[Buckets, Line]
"""What runs for every row takes its arrays one by one: an array that comes out of a tuple is counted each time."""
FEW = 64
"""So many rows find their places one by one; more are sorted."""


@kernel
def empty(rows: int) -> Agenda:
    """Room for an agenda of so many rows, with more buckets than rows."""
    size = 4
    while size <= 2 * rows:
        size *= 2
    return (np.full(size, NONE, np.int32), np.zeros(rows, np.int32)), (
        np.zeros(rows, np.int64),
        np.zeros(rows, np.int32),
    )


@leaf
def put(buckets: Numbers, before: Numbers, row: int, bucket: int) -> None:
    """Put a row into a bucket; what is later than all buckets, into the last."""
    bucket = min(bucket, len(buckets) - 1)
    before[row] = buckets[bucket]
    buckets[bucket] = row


@inner
def open_bucket(before: Numbers, line: Line, table: Table, row: int) -> int:
    """Line up the rows of a bucket, of which one is the last. Returns how many there are.

    Most were put there by rising key, so the last one comes first.
    """
    times, rows = line
    count, falls = 0, True
    while row != NONE:
        times[count], rows[count] = table[row, DUE], row
        falls &= count == 0 or _is_before(table, times[count], row, times[count - 1], rows[count - 1])
        count += 1
        row = before[row]
    if not falls and count > FEW:
        _sort(table, times, rows, count)
    elif not falls:
        for place in range(1, count):
            insert(table, times, rows, place, times[place], rows[place])
    return count


@leaf
def insert(table: Table, times: Column, rows: Numbers, lined: int, time: int, row: int) -> int:
    """Put a row into the open bucket; most go near the end. Returns how many there are."""
    place = lined
    while place > 0 and _is_before(table, times[place - 1], rows[place - 1], time, row):
        times[place], rows[place] = times[place - 1], rows[place - 1]
        place -= 1
    times[place], rows[place] = time, row
    return lined + 1


@leaf
def _is_before(table: Table, time: int, row: int, other_time: int, other: int) -> bool:
    return bool(time < other_time or (time == other_time and table[row, KEY] < table[other, KEY]))


@inner
def _sort(table: Table, times: Column, rows: Numbers, count: int) -> None:
    """Order many rows: by key, and then, leaving those of one time as they are, by time."""
    keys = np.empty(count, np.int64)
    for place in range(count):
        keys[place] = table[rows[place], KEY]
    by_key = np.argsort(keys, kind="mergesort")
    order = by_key[np.argsort(times[:count][by_key], kind="mergesort")][::-1]
    times[:count], rows[:count] = times[:count][order], rows[:count][order]
