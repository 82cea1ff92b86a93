"""Delta simulation: the times of a changed graph from those of the graph before, touching only what may change.

The times are the only ones in which every row is ready when its last predecessor ends, every lane takes its rows by
(ready, key), and a row starts when it is ready and its lanes are free. Durations are positive, so a row's times depend
only on rows that come before it in the sequence by (ready, key), and only on ends that are not yet over when it is
ready. Two consequences bound the work:

- rows ready before the first change keep their times;
- when everything that changed is in the sequence, and no end that differs from before lies ahead, nothing can feel the
  change any more: all later rows keep their times, and their places.

Between the two, rows are simulated as in a full simulation. After section 5.3 (delta simulation) of Jia, Zaharia and
Aiken, "Beyond Data and Model Parallelism for Deep Neural Networks", which follows changes from row to row instead; a
step is so tightly coupled that nearly all rows between the two bounds change, and a scan costs a tenth per row.

    lane  before      b takes 1 instead of 2
    p0    aa dd gg    as before: g is ready when d ends
    p1    bb ff       bff: b and f get other times
"""

# pyright: reportArgumentType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.strategies.simulation.kernel import inner, kernel
from maniple.strategies.simulation.tables import (
    DEAD,
    DURATION,
    END,
    HOLD,
    HOLD_BITS,
    HOLD_MASK,
    IN,
    KEY,
    LANE,
    NEW,
    NEXT_IN,
    NEXT_OUT,
    NONE,
    OUT,
    READY,
    ROWS,
    SOURCE,
    SPAN,
    STAMP,
    TARGET,
    Table,
    put,
)

Column = np.ndarray[tuple[int], np.dtype[np.int64]]
Scratch = tuple[Column, Column, Table, Column]
"""By row: predecessors that have not ended, the latest end of those that have; a heap; when each lane is free."""
NEVER = np.iinfo(np.int64).max


@inner
def _push(heap: Table, rows: Table, size: int, time: int, row: int) -> int:
    """Queue a row; ties go to the lower key. Returns the size."""
    key = rows[row, KEY]
    place = size
    while place > 0:
        parent = (place - 1) >> 1
        if heap[parent, 0] < time or (heap[parent, 0] == time and rows[heap[parent, 1], KEY] < key):
            break
        heap[place, 0], heap[place, 1] = heap[parent, 0], heap[parent, 1]
        place = parent
    heap[place, 0], heap[place, 1] = time, row
    return size + 1


@inner
def _drop_first(heap: Table, rows: Table, size: int) -> int:
    """Remove the earliest entry of a heap. Returns the size."""
    size -= 1
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
        if heap[child, 0] > time or (heap[child, 0] == time and rows[heap[child, 1], KEY] > key):
            break
        heap[place, 0], heap[place, 1] = heap[child, 0], heap[child, 1]
        place = child
    heap[place, 0], heap[place, 1] = time, row
    return size


@kernel
def felt(rows: Table, edges: Table, first: int, count: int, stamp: int) -> tuple[int, int, int]:
    """What edges that come or go let change, when all changes have been made to the lists.

    Returns:
        The earliest time that may change, the time until which a change may be felt, how many targets were stamped.
    """
    earliest, until, stamped = NEVER, 0, 0
    for edge in range(first, first + count):
        row, source = edges[edge, TARGET], edges[edge, SOURCE]
        until = max(until, rows[source, END], rows[row, READY])
        if rows[row, READY] >= 0 and rows[row, STAMP] != stamp:
            rows[row, STAMP] = stamp
            stamped += 1
            earliest = min(earliest, rows[row, READY], _bound(rows, edges, row))
    return earliest, until, stamped


@inner
def _bound(rows: Table, edges: Table, row: int) -> int:
    """When a row is ready at the earliest: the latest end of the predecessors that have times."""
    bound = 0
    edge = rows[row, IN]
    while edge != NONE:
        bound = max(bound, rows[edges[edge, SOURCE], END])
        edge = edges[edge, NEXT_IN]
    return bound


@kernel
def first_new(rows: Table, edges: Table, first: int, count: int) -> int:
    """The earliest time at which one of some new rows may be ready."""
    earliest = NEVER
    for row in range(first, first + count):
        bound = 0
        edge = rows[row, IN]
        while edge != NONE:
            if rows[edges[edge, SOURCE], READY] == NEW:
                bound = NEVER  # that one is ready earlier
                break
            bound = max(bound, rows[edges[edge, SOURCE], END])
            edge = edges[edge, NEXT_IN]
        earliest = min(earliest, bound)
    return earliest


@inner
def _hold(rows: Table, holds: Table, free: Column, row: int, start: int) -> None:
    """Let a row that starts hold its lanes."""
    first, count = rows[row, HOLD] >> HOLD_BITS, rows[row, HOLD] & HOLD_MASK
    for hold in range(first, first + count):
        free[holds[hold, LANE]] = start + holds[hold, SPAN]


@inner
def _wait(rows: Table, edges: Table, scratch: Scratch, row: int, since: int, size: int) -> int:
    """Count what a row waits for, among rows that are not ready before `since`; queue it if there is nothing."""
    waiting, ready, heap, _ = scratch
    bound = count = 0
    edge = rows[row, IN]
    while edge != NONE:
        other = edges[edge, SOURCE]
        if 0 <= rows[other, READY] < since:
            bound = max(bound, rows[other, END])
        else:
            count += 1
        edge = edges[edge, NEXT_IN]
    waiting[row], ready[row] = count, bound
    return _push(heap, rows, size, bound, row) if count == 0 else size


@inner
def _release(rows: Table, edges: Table, scratch: Scratch, row: int, end: int, size: int) -> int:
    """Let a row's successors wait for one less; queue those that wait for nothing else. Returns the heap's size."""
    waiting, ready, heap, _ = scratch
    edge = rows[row, OUT]
    while edge != NONE:
        other = edges[edge, TARGET]
        ready[other] = max(ready[other], end)
        waiting[other] -= 1
        if waiting[other] == 0:
            size = _push(heap, rows, size, ready[other], other)
        edge = edges[edge, NEXT_OUT]
    return size


@kernel
def prepare(
    rows: Table, edges: Table, holds: Table, scratch: Scratch, old: Column, new: Column, fresh: Column, since: int
) -> tuple[int, int, int]:
    """Take over the rows that are ready before `since`, and queue or count all others.

    Args:
        rows: the table.
        edges: the table.
        holds: the table.
        scratch: what the sweep works with; its lanes are set here.
        old: the sequence before the change.
        new: the sequence to be; its beginning is set here.
        fresh: the new rows.
        since: the earliest time that may change.

    Returns:
        How many rows were taken over, the size of the heap, the latest end of those rows.
    """
    free = scratch[3]
    free[:] = 0
    taken = size = latest = 0
    while taken < len(old) and 0 <= rows[old[taken], READY] < since:
        row = old[taken]
        new[taken] = row
        _hold(rows, holds, free, row, rows[row, END] - rows[row, DURATION])
        latest = max(latest, rows[row, END])
        taken += 1
    for place in range(taken, len(old)):
        if rows[old[place], READY] != DEAD:
            size = _wait(rows, edges, scratch, old[place], since, size)
    for row in fresh:
        size = _wait(rows, edges, scratch, row, since, size)
    return taken, size, latest


@kernel
def sweep(
    rows: Table,
    edges: Table,
    holds: Table,
    scratch: Scratch,
    log: Table,
    new: Column,
    state: tuple[int, int, int],
    stamp: int,
    pending: int,
    until: int,
) -> tuple[int, int, int]:
    """Time rows in sequence until nothing can differ from before.

    Args:
        rows: the table.
        edges: the table.
        holds: the table.
        scratch: as `prepare` left it.
        log: takes the times back.
        new: the sequence to be.
        state: what `prepare` returned.
        stamp: what stamps the rows whose predecessors changed.
        pending: how many new or stamped rows there are.
        until: the time until which an end that is no more may be felt.

    Returns:
        How many rows the sequence has so far, the latest end in it, how many rows got another time.
    """
    waiting, _, heap, free = scratch
    place, size, latest = state
    retimed = 0
    while size > 0:
        time, row = heap[0, 0], heap[0, 1]
        if pending == 0 and time > until:
            break
        size = _drop_first(heap, rows, size)
        start = time
        first, count = rows[row, HOLD] >> HOLD_BITS, rows[row, HOLD] & HOLD_MASK
        for hold in range(first, first + count):
            start = max(start, free[holds[hold, LANE]])
        _hold(rows, holds, free, row, start)
        end = start + rows[row, DURATION]
        latest = max(latest, end)
        pending -= rows[row, READY] == NEW or rows[row, STAMP] == stamp
        if end != rows[row, END]:
            until = max(until, end, rows[row, END])
            put(rows, ROWS, log, row, END, end)
            retimed += 1
        if time != rows[row, READY]:
            until = max(until, rows[row, READY])
            put(rows, ROWS, log, row, READY, time)
        waiting[row] = NONE
        new[place] = row
        place += 1
        size = _release(rows, edges, scratch, row, end, size)
    return place, latest, retimed


@kernel
def finish(
    rows: Table, scratch: Scratch, old: Column, new: Column, taken: int, place: int, latest: int
) -> tuple[int, int]:
    """Take over the rows that the sweep did not come to; returns the length of the sequence and the makespan."""
    waiting = scratch[0]
    for number in range(taken, len(old)):
        row = old[number]
        if rows[row, READY] != DEAD and waiting[row] != NONE:
            new[place] = row
            place += 1
            latest = max(latest, rows[row, END])
    return place, latest
