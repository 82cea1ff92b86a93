"""Delta simulation: the times of a changed graph from those of the graph before, touching only what changes.

The times are the only ones in which every row is ready when its last predecessor ends, every lane takes its rows by
(ready, key), and a row starts when it is ready and its lanes are free. Since durations are positive, a row's time
depends only on rows with a lower (ready, key): one sweep upwards through time settles each row once. A row whose ready
time moves is looked at twice, when it leaves its old place and when it enters the new one; a row whose inputs are as
before is not looked at. After Algorithm 2 of Jia, Zaharia and Aiken, "Beyond Data and Model Parallelism for Deep
Neural Networks" (section 5.3), which revisits rows until nothing changes; the sweep needs no revisit, for what it
settles stays:

    lane  before             a takes 2 instead of 4     looked at
    p0    aaaa cc            aacc                       a, c (leaves 4, enters 2)
    p1    bb     dd          bb  dd                     d (leaves 6, enters 4)
"""

from __future__ import annotations

import numba
import numpy as np

from maniple.strategies.simulation.tables import (
    ABSENT,
    CURSOR,
    DURATION,
    END,
    FIRST,
    HOLD,
    HOLD_BITS,
    HOLD_MASK,
    HOLDS,
    IN,
    KEY,
    LANE,
    LANES,
    LAST,
    NEXT,
    NEXT_IN,
    NEXT_OUT,
    NONE,
    OUT,
    PREVIOUS,
    READY,
    ROW,
    ROWS,
    SOURCE,
    SPAN,
    STAMP,
    TARGET,
    TOP,
    UNPLACED,
    WAIT,
    Log,
    Table,
    put,
)

Heap = np.ndarray[tuple[int, int], np.dtype[np.int64]]


@numba.njit(cache=True)
def _push(heap: Heap, rows: Table, time: int, row: int) -> Heap:
    """Queue a row; the heap's size is in its last entry. Ties go to the lower key."""
    size = heap[-1, 0]
    if size + 2 >= len(heap):
        grown = np.empty((2 * len(heap), 2), dtype=np.int64)
        grown[:size] = heap[:size]
        heap = grown
    key = rows[row, KEY]
    place = size
    while place > 0:
        parent = (place - 1) >> 1
        if heap[parent, 0] < time or (heap[parent, 0] == time and rows[heap[parent, 1], KEY] <= key):
            break
        heap[place, 0] = heap[parent, 0]
        heap[place, 1] = heap[parent, 1]
        place = parent
    heap[place, 0] = time
    heap[place, 1] = row
    heap[-1, 0] = size + 1
    return heap


@numba.njit(cache=True)
def _pop(heap: Heap, rows: Table) -> tuple[int, int]:
    """Take the earliest (time, row)."""
    top_time, top_row = heap[0, 0], heap[0, 1]
    size = heap[-1, 0] - 1
    heap[-1, 0] = size
    time, row = heap[size, 0], heap[size, 1]
    key = rows[row, KEY]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (
            heap[other, 0] < heap[child, 0]
            or (heap[other, 0] == heap[child, 0] and rows[heap[other, 1], KEY] < rows[heap[child, 1], KEY])
        ):
            child = other
        if heap[child, 0] > time or (heap[child, 0] == time and rows[heap[child, 1], KEY] >= key):
            break
        heap[place, 0] = heap[child, 0]
        heap[place, 1] = heap[child, 1]
        place = child
    heap[place, 0] = time
    heap[place, 1] = row
    return top_time, top_row


@numba.njit(cache=True)
def _ready(rows: Table, edges: Table, log: Log, row: int) -> int:
    """When the last predecessor ends; all have a time. Notes which one that is."""
    ready, top = 0, NONE
    edge = rows[row, IN]
    while edge != NONE:
        other = edges[edge, SOURCE]
        if rows[other, END] > ready:
            ready, top = rows[other, END], other
        edge = edges[edge, NEXT_IN]
    if rows[row, TOP] != top:
        put(rows, ROWS, log, row, TOP, top)
    return ready


@numba.njit(cache=True)
def _end(rows: Table, holds: Table, row: int, ready: int) -> int:
    """When a placed row ends: it starts when it is ready and the hold before it on each lane is over."""
    start = ready
    first, count = rows[row, HOLD] >> HOLD_BITS, rows[row, HOLD] & HOLD_MASK
    for hold in range(first, first + count):
        before = holds[hold, PREVIOUS]
        if before != NONE:
            other = holds[before, ROW]
            start = max(start, rows[other, END] - rows[other, DURATION] + holds[before, SPAN])
    return start + rows[row, DURATION]


@numba.njit(cache=True)
def _unlink(rows: Table, holds: Table, lanes: Table, heap: Heap, log: Log, row: int, stamp: int) -> Heap:
    """Take a row out of its lanes; whoever came next may start earlier."""
    first, count = rows[row, HOLD] >> HOLD_BITS, rows[row, HOLD] & HOLD_MASK
    for hold in range(first, first + count):
        lane, before, after = holds[hold, LANE], holds[hold, PREVIOUS], holds[hold, NEXT]
        if before == NONE:
            put(lanes, LANES, log, lane, FIRST, after)
        else:
            put(holds, HOLDS, log, before, NEXT, after)
        if after == NONE:
            put(lanes, LANES, log, lane, LAST, before)
        else:
            put(holds, HOLDS, log, after, PREVIOUS, before)
            heap = _push(heap, rows, rows[holds[after, ROW], READY], holds[after, ROW])
        if lanes[lane, STAMP] == stamp and lanes[lane, CURSOR] == hold:
            lanes[lane, CURSOR] = before
    return heap


@numba.njit(cache=True)
def _link(rows: Table, edges: Table, holds: Table, lanes: Table, log: Log, row: int, stamp: int) -> None:
    """Enter a row, whose ready time is set, into its lanes."""
    ready, key = rows[row, READY], rows[row, KEY]
    first, count = rows[row, HOLD] >> HOLD_BITS, rows[row, HOLD] & HOLD_MASK
    for hold in range(first, first + count):
        lane = holds[hold, LANE]
        if lanes[lane, STAMP] == stamp:
            before = lanes[lane, CURSOR]
        else:
            before = NONE
            after = lanes[lane, LAST]
            # Nothing is known of this lane yet: the nearer end of the list is the better start.
            if after != NONE and 2 * ready > rows[holds[after, ROW], READY]:
                before = after
                while before != NONE:
                    other = holds[before, ROW]
                    if rows[other, READY] < ready or (rows[other, READY] == ready and rows[other, KEY] < key):
                        break
                    before = holds[before, PREVIOUS]
        after = lanes[lane, FIRST] if before == NONE else holds[before, NEXT]
        while after != NONE:
            other = holds[after, ROW]
            if rows[other, READY] > ready or (rows[other, READY] == ready and rows[other, KEY] > key):
                break
            before, after = after, holds[after, NEXT]
        put(holds, HOLDS, log, hold, PREVIOUS, before)
        put(holds, HOLDS, log, hold, NEXT, after)
        if before == NONE:
            put(lanes, LANES, log, lane, FIRST, hold)
        else:
            put(holds, HOLDS, log, before, NEXT, hold)
        if after == NONE:
            put(lanes, LANES, log, lane, LAST, hold)
        else:
            put(holds, HOLDS, log, after, PREVIOUS, hold)
        lanes[lane, CURSOR] = hold
        lanes[lane, STAMP] = stamp


@numba.njit(cache=True)
def _settle(rows: Table, edges: Table, holds: Table, heap: Heap, log: Log, row: int, end: int, entered: bool) -> Heap:
    """Write a row's end and queue whom that concerns: its successors, and who comes next on its lanes."""
    put(rows, ROWS, log, row, END, end)
    start = end - rows[row, DURATION]
    first, count = rows[row, HOLD] >> HOLD_BITS, rows[row, HOLD] & HOLD_MASK
    for hold in range(first, first + count):
        after = holds[hold, NEXT]
        if after != NONE:
            other = holds[after, ROW]
            begun = rows[other, END] - rows[other, DURATION]
            if start + holds[hold, SPAN] > begun or begun > rows[other, READY]:
                heap = _push(heap, rows, rows[other, READY], other)
    edge = rows[row, OUT]
    while edge != NONE:
        other = edges[edge, TARGET]
        ready = rows[other, READY]
        if entered:
            put(rows, ROWS, log, other, WAIT, rows[other, WAIT] - 1)
        if rows[other, WAIT] == 0:
            if entered or rows[other, TOP] == row:
                found = _ready(rows, edges, log, other)
                heap = _push(heap, rows, found if ready == UNPLACED else min(ready, found), other)
            elif end > ready and ready != UNPLACED:
                heap = _push(heap, rows, ready, other)
        edge = edges[edge, NEXT_OUT]
    return heap


@numba.njit(cache=True)
def _leave(
    rows: Table, edges: Table, holds: Table, lanes: Table, heap: Heap, log: Log, row: int, stamp: int
) -> Heap:
    """Take a row's time away; a successor that still counts on it leaves in turn when its old time comes."""
    heap = _unlink(rows, holds, lanes, heap, log, row, stamp)
    put(rows, ROWS, log, row, READY, UNPLACED)
    edge = rows[row, OUT]
    while edge != NONE:
        other = edges[edge, TARGET]
        put(rows, ROWS, log, other, WAIT, rows[other, WAIT] + 1)
        if rows[other, READY] >= 0:
            heap = _push(heap, rows, rows[other, READY], other)
        edge = edges[edge, NEXT_OUT]
    return heap


@numba.njit(cache=True)
def remove_rows(rows: Table, edges: Table, holds: Table, lanes: Table, heap: Heap, log: Log, first: int, count: int, stamp: int) -> Heap:  # fmt: skip
    """Take rows that have a time out of the graph; their edges are removed after this."""
    for row in range(first, first + count):
        heap = _leave(rows, edges, holds, lanes, heap, log, row, stamp)
    return heap


@numba.njit(cache=True)
def forget_rows(rows: Table, log: Log, first: int, count: int) -> None:
    """Mark rows whose edges are gone as absent."""
    for row in range(first, first + count):
        put(rows, ROWS, log, row, READY, ABSENT)
        put(rows, ROWS, log, row, END, NONE)


@numba.njit(cache=True)
def seed(rows: Table, edges: Table, heap: Heap, log: Log, first: int, count: int) -> Heap:
    """Queue the targets of edges that were added or are about to be removed, and thereby all that they change."""
    for edge in range(first, first + count):
        heap = look_at(rows, edges, heap, log, edges[edge, TARGET])
    return heap


@numba.njit(cache=True)
def seed_rows(rows: Table, edges: Table, heap: Heap, log: Log, first: int, count: int) -> Heap:
    """Queue new rows."""
    for row in range(first, first + count):
        heap = look_at(rows, edges, heap, log, row)
    return heap


@numba.njit(cache=True)
def look_at(rows: Table, edges: Table, heap: Heap, log: Log, row: int) -> Heap:
    """Queue a row whose predecessors have changed."""
    ready = rows[row, READY]
    if ready == ABSENT:
        return heap
    if rows[row, WAIT] == 0:
        found = _ready(rows, edges, log, row)
        return _push(heap, rows, found if ready == UNPLACED else min(ready, found), row)
    if ready >= 0:
        return _push(heap, rows, ready, row)
    return heap


@numba.njit(cache=True)
def sweep(
    rows: Table, edges: Table, holds: Table, lanes: Table, heap: Heap, log: Log, stamp: int
) -> tuple[Heap, int]:
    """Settle all that is queued, and all that follows from it.

    Returns:
        The empty heap, and how many rows got another time.
    """
    settled = 0
    while heap[-1, 0] > 0:
        time, row = _pop(heap, rows)
        old = rows[row, READY]
        if old == ABSENT:
            continue
        blocked = rows[row, WAIT] > 0
        ready = NONE if blocked else _ready(rows, edges, log, row)
        if old == UNPLACED:
            if blocked:
                continue
            if ready > time:
                heap = _push(heap, rows, ready, row)
                continue
        elif not blocked and ready == old:
            if time < old:
                heap = _push(heap, rows, old, row)
                continue
            end = _end(rows, holds, row, ready)
            if end != rows[row, END]:
                settled += 1
                heap = _settle(rows, edges, holds, heap, log, row, end, False)  # noqa: FBT003
            continue
        else:
            due = old if blocked or ready > old else ready
            if time < due:
                heap = _push(heap, rows, due, row)
                continue
            heap = _leave(rows, edges, holds, lanes, heap, log, row, stamp)
            if blocked:
                continue
            if ready > time:
                heap = _push(heap, rows, ready, row)
                continue
        put(rows, ROWS, log, row, READY, ready)
        _link(rows, edges, holds, lanes, log, row, stamp)
        settled += 1
        heap = _settle(rows, edges, holds, heap, log, row, _end(rows, holds, row, ready), True)  # noqa: FBT003
    return heap, settled


@numba.njit(cache=True)
def last_end(rows: Table, count: int) -> int:
    """When the last of the first `count` rows of the table ends."""
    latest = 0
    for row in range(count):
        latest = max(latest, rows[row, END])
    return latest
