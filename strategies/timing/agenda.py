"""Agendas: the calendar queue of `runtime/schedule/order.py` for rows of a table, whose keys are not their numbers."""

# pyright: reportArgumentType=false, reportReturnType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import at, inner, kernel, leaf
from maniple.strategies.timing.tables import DUE, KEY, NONE, Column, Numbers, Table

Buckets = tuple[Numbers, Numbers]
"""The last row of each bucket, and the row before each."""
Line = tuple[Column, Numbers]
"""The times and rows of the open bucket by falling (time, key): the last goes first."""
Agenda = tuple[Buckets, Line]
"""What runs for every row takes its arrays one by one: an array that comes out of a tuple is counted each time."""
FEW = 64
"""So many rows find their places one by one; more are sorted."""
RUN = 16
"""So many find their places one by one where more are sorted; such runs are merged."""


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


@inner
def open_bucket(before: Numbers, line: Line, table: Table, row: int) -> int:
    """Line up the rows of a bucket, of which one is the last. Returns how many there are.

    Most were put there by rising key, so the last one comes first.
    """
    times, rows = line
    count, falls = 0, True
    while row != NONE:
        times[at(count)], rows[at(count)] = table[at(row), DUE], row
        falls &= count == 0 or _is_before(table, times[at(count)], row, times[at(count - 1)], rows[at(count - 1)])
        count += 1
        row = before[at(row)]
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
    while place > 0 and _is_before(table, times[at(place - 1)], rows[at(place - 1)], time, row):
        times[at(place)], rows[at(place)] = times[at(place - 1)], rows[at(place - 1)]
        place -= 1
    times[at(place)], rows[at(place)] = time, row
    return lined + 1


@leaf
def _is_before(table: Table, time: int, row: int, other_time: int, other: int) -> bool:
    return bool(time < other_time or (time == other_time and table[at(row), KEY] < table[at(other), KEY]))


@inner
def _sort(table: Table, times: Column, rows: Numbers, count: int) -> None:
    """Order many rows: short runs first, then two of them at a time, each twice as long as before."""
    for start in range(0, count, RUN):
        run_times, run_rows = times[start:count], rows[start:count]
        for place in range(1, min(RUN, count - start)):
            insert(table, run_times, run_rows, place, run_times[place], run_rows[place])
    merged_times, merged_rows = np.empty(count, np.int64), np.empty(count, np.int32)
    width = RUN
    while width < count:
        for start in range(0, count, 2 * width):
            _merge(table, times, rows, merged_times, merged_rows, start, start + width, min(start + 2 * width, count))
        for place in range(count):
            times[place], rows[place] = merged_times[place], merged_rows[place]
        width *= 2


@leaf
def _merge(
    table: Table, times: Column, rows: Numbers, to_times: Column, to_rows: Numbers, start: int, middle: int, end: int
) -> None:
    """Merge the runs from the start and from the middle on, the second of which may be empty, or not be there."""
    one, other = start, middle
    for place in range(start, end):
        if other >= end or (one < middle and not _is_before(table, times[one], rows[one], times[other], rows[other])):
            taken, one = one, one + 1
        else:
            taken, other = other, other + 1
        to_times[place], to_rows[place] = times[taken], rows[taken]
