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

A third bound is for who wants to know only whether the makespan exceeds a limit, as a search does that refuses most of
what it tries: a lane that still has to be held for so long cannot be done before. There a simulation ends early.
"""

# pyright: reportArgumentType=false, reportReturnType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.strategies.simulation import agenda
from maniple.strategies.simulation.agenda import Agenda
from maniple.strategies.simulation.kernel import inner, kernel
from maniple.strategies.simulation.tables import (
    COUNT,
    DEAD,
    DURATION,
    END,
    FIRST,
    HOLD,
    HOLD_BITS,
    HOLD_MASK,
    LANE_BITS,
    LANE_MASK,
    NEXT,
    NONE,
    READY,
    ROW,
    Column,
    Links,
    Numbers,
    Table,
)

Tables = tuple[Column, Table, Column, Links]
"""Keys, rows, holds, and who waits for whom."""
Times = tuple[Table, Table]
"""The times before, and those to be."""
Marks = np.ndarray[tuple[int], np.dtype[np.int8]]
State = tuple[Numbers, Marks]
"""By row: predecessors that have not ended (NONE: it is in the sequence), and what changed about it."""
Sequences = tuple[Numbers, Numbers]
"""The rows by (ready, key) before, and as they are to be."""
Lanes = tuple[Column, Column]
"""When each lane is free, and for how long rows that are not in the sequence yet will hold it."""
Blocks = tuple[Table, Table, Table, Table]
"""(First, number) of new rows, of rows that are gone, of new spans, of spans that are gone."""

Bounds = tuple[int, int, int, int, int, int, int, int, int]

SAME, FRESH, GONE, LATER, EARLIER = range(5)
"""What changed about a row: nothing; it is new; it has left; others come before it, in whose stead none is gone on
which it waited last; or one is."""
NEVER = np.iinfo(np.int64).max


@kernel
def settle(
    tables: Tables,
    times: Times,
    state: State,
    queue: Agenda,
    sequences: Sequences,
    lanes: Lanes,
    load: Column,
    blocks: Blocks,
    counts: tuple[int, int, int, int],
) -> tuple[int, int, int]:
    """Time the rows of a changed graph.

    Args:
        tables: the graph, changes included.
        times: those before, and room for those to be.
        state: room.
        queue: room.
        sequences: the one before, and room for the one to be.
        lanes: room.
        load: for how long each lane is held in all.
        blocks: the changes.
        counts: rows of the tables that are in use, rows in the graph before, nanoseconds of a bucket of the queue (as a
            shift), the makespan above which nobody cares.

    Returns:
        The makespan, or a number above the limit that it reaches at least; the length of the sequence, or NONE where
        the limit was passed; how many rows got another time.
    """
    rows, before, shift, limit = counts
    free, left = lanes
    free[:] = 0
    left[:] = load
    if left.max() > limit:
        return left.max(), NONE, 0
    state[0][:rows] = tables[3][3][:rows]
    state[1][:rows] = SAME
    since, until, pending = _mark(tables[3], times, state[1], blocks)
    since = min(since, _earliest(tables[3], times, state[1], blocks))
    alive = _roots(times, state, queue, since, rows)
    taken, latest = _take(tables, times, state, queue, sequences, lanes, (since, before, shift))
    bounds = ((since >> shift) - 1, shift, taken, alive, before, pending, until, latest, limit)
    return _sweep(tables, times, state, queue, sequences, lanes, bounds)


@inner
def _mark(links: Links, times: Times, marks: Marks, blocks: Blocks) -> tuple[int, int, int]:
    """Mark what changed: the earliest time that may change, until when it is felt, how many rows are to be timed."""
    old, (fresh, gone, come, cut) = times[0], blocks
    since, until, pending = NEVER, 0, 0
    for block in range(len(fresh)):
        for row in range(fresh[block, 0], fresh[block, 0] + fresh[block, 1]):
            marks[row] = FRESH
            pending += 1
    for block in range(len(gone)):
        for row in range(gone[block, 0], gone[block, 0] + gone[block, 1]):
            marks[row] = GONE
            since, until = min(since, old[row, READY]), max(until, old[row, END])
    for changed, cutting in ((come, 0), (cut, 1)):
        first, last, stamped = _stamp(links, old, marks, changed, cutting)
        since, until, pending = min(since, first), max(until, last), pending + stamped
    return since, until, pending


@inner
def _stamp(links: Links, old: Table, marks: Marks, changed: Table, cutting: int) -> tuple[int, int, int]:
    """Mark the rows before which others come, or came; see `_mark`."""
    spans, targets, _, _ = links
    since, until, pending = NEVER, 0, 0
    for block in range(len(changed)):
        for span in range(changed[block, 0], changed[block, 0] + changed[block, 1]):
            row = spans[span, ROW]
            end = old[row, END] if old[row, READY] >= 0 else 0
            until = max(until, end)
            for at in range(spans[span, FIRST], spans[span, FIRST] + spans[span, COUNT]):
                target = targets[at]
                ready = old[target, READY]
                if ready >= 0 and marks[target] != GONE:
                    since, until = min(since, ready), max(until, ready)
                    pending += marks[target] == SAME
                    if cutting and end >= ready:
                        marks[target] = EARLIER
                    elif marks[target] == SAME:
                        marks[target] = LATER
    return since, until, pending


@inner
def _earliest(links: Links, times: Times, marks: Marks, blocks: Blocks) -> int:
    """The earliest time at which a row that is new or may be earlier may be ready, for what is known of it."""
    (spans, targets, _, _), new, (fresh, _, come, cut) = links, times[1], blocks
    for block in range(len(cut)):
        for span in range(cut[block, 0], cut[block, 0] + cut[block, 1]):
            for at in range(spans[span, FIRST], spans[span, FIRST] + spans[span, COUNT]):
                new[targets[at], READY] = 0
    for block in range(len(fresh)):
        new[fresh[block, 0] : fresh[block, 0] + fresh[block, 1], READY] = 0
    _await(links, times, marks, come)
    earliest = NEVER
    for block in range(len(fresh)):
        for row in range(fresh[block, 0], fresh[block, 0] + fresh[block, 1]):
            earliest = min(earliest, new[row, READY])
    for block in range(len(cut)):
        for span in range(cut[block, 0], cut[block, 0] + cut[block, 1]):
            for at in range(spans[span, FIRST], spans[span, FIRST] + spans[span, COUNT]):
                if marks[targets[at]] == EARLIER:
                    earliest = min(earliest, new[targets[at], READY])
    return earliest


@inner
def _await(links: Links, times: Times, marks: Marks, come: Table) -> None:
    """Let rows that are new or may be earlier be ready when the rows end that they newly wait for, as far as known."""
    (spans, targets, _, _), (old, new) = links, times
    for block in range(len(come)):
        for span in range(come[block, 0], come[block, 0] + come[block, 1]):
            row = spans[span, ROW]
            known = old[row, READY] >= 0
            end = old[row, END] if known else NEVER  # a new one is ready earlier than who waits for it
            for at in range(spans[span, FIRST], spans[span, FIRST] + spans[span, COUNT]):
                mark = marks[targets[at]]
                if mark == FRESH or (known and mark == EARLIER):
                    new[targets[at], READY] = max(new[targets[at], READY], end)


@inner
def _is_kept(old: Table, marks: Marks, row: int, since: int) -> bool:
    """Whether a row keeps its times because it is ready before the first change."""
    return 0 <= old[row, READY] < since and marks[row] != GONE


@inner
def _roots(times: Times, state: State, queue: Agenda, since: int, rows: int) -> int:
    """Queue the rows that wait for nothing, let those that have left have no time; returns how many rows there are."""
    (old, new), (waiting, marks), (buckets, following) = times, state, queue[0]
    buckets[:] = NONE
    count = 0
    for row in range(rows):
        new[row, READY] = 0
        if marks[row] == GONE or (old[row, READY] < 0 and marks[row] != FRESH):
            new[row, READY] = DEAD
            continue
        count += 1
        if waiting[row] == 0 and not _is_kept(old, marks, row, since):
            agenda.put(buckets, following, row, 0)
    return count


@inner
def _take(
    tables: Tables,
    times: Times,
    state: State,
    queue: Agenda,
    sequences: Sequences,
    lanes: Lanes,
    bounds: tuple[int, int, int],
) -> tuple[int, int]:
    """Take over the rows that are ready before the first change; returns how many, and the latest of their ends.

    Args:
        tables: the graph.
        times: before and to be.
        state: of every row.
        queue: for rows that wait for none but those.
        sequences: before and to be.
        lanes: they hold them.
        bounds: the first change, the length of the sequence before, the shift.
    """
    (_, rows, holds, (spans, targets, heads, _)), (old, new), (waiting, marks) = tables, times, state
    (buckets, following), (past, sequence), (free, left) = queue[0], sequences, lanes
    since, before, shift = bounds
    taken = latest = 0
    while taken < before:
        row = past[taken]
        if not _is_kept(old, marks, row, since):
            break
        sequence[taken] = row
        new[row, READY], new[row, END] = old[row, READY], old[row, END]
        first, count = rows[row, HOLD] >> HOLD_BITS, rows[row, HOLD] & HOLD_MASK
        for hold in range(first, first + count):
            lane, span = holds[hold] & LANE_MASK, holds[hold] >> LANE_BITS
            free[lane] = new[row, END] - rows[row, DURATION] + span
            left[lane] -= span
        latest = max(latest, new[row, END])
        waiting[row] = NONE
        span = heads[row]
        while span != NONE:
            for at in range(spans[span, FIRST], spans[span, FIRST] + spans[span, COUNT]):
                other = targets[at]
                if not _is_kept(old, marks, other, since):
                    new[other, READY] = max(new[other, READY], new[row, END])
                    waiting[other] -= 1
                    if waiting[other] == 0:
                        agenda.put(buckets, following, other, new[other, READY] >> shift)
            span = spans[span, NEXT]
        taken += 1
    return taken, latest


@inner
def _sweep(  # noqa: C901, PLR0912  (one loop: handing its arrays to functions, row by row, takes twice the time)
    tables: Tables, times: Times, state: State, queue: Agenda, sequences: Sequences, lanes: Lanes, bounds: Bounds
) -> tuple[int, int, int]:
    """Time rows in sequence until nothing can differ from before, and take over the others; see `settle`."""
    (keys, rows, holds, (spans, targets, heads, _)), (old, new), (waiting, marks) = tables, times, state
    ((buckets, following), line), sequence, (free, left) = queue, sequences[1], lanes
    line_times, line_keys, line_rows, order, _ = line
    bucket, shift, place, total, before, pending, until, latest, limit = bounds
    taken, retimed, at, lined = place, 0, 0, 0
    while place < total:
        while at == lined and bucket + 1 < len(buckets):
            bucket += 1
            if buckets[bucket] != NONE:
                at, lined = 0, agenda.opened(following, line, keys, new, buckets[bucket])
        if at == lined:
            break  # a circle
        time, row = line_times[order[at]], line_rows[order[at]]
        at += 1
        if pending == 0 and time > until:
            break
        start, first, count = time, rows[row, HOLD] >> HOLD_BITS, rows[row, HOLD] & HOLD_MASK
        for hold in range(first, first + count):
            start = max(start, free[holds[hold] & LANE_MASK])
        for hold in range(first, first + count):
            lane, length = holds[hold] & LANE_MASK, holds[hold] >> LANE_BITS
            if start + left[lane] > limit:
                return start + left[lane], NONE, retimed
            free[lane] = start + length
            left[lane] -= length
        end = start + rows[row, DURATION]
        latest, new[row, END] = max(latest, end), end
        pending -= marks[row] != SAME
        if marks[row] == FRESH or end != old[row, END] or time != old[row, READY]:
            until = max(until, end, old[row, END], old[row, READY])
            retimed += 1
        waiting[row], sequence[place] = NONE, row
        place += 1
        span = heads[row]
        while span != NONE:
            for number in range(spans[span, FIRST], spans[span, FIRST] + spans[span, COUNT]):
                other = targets[number]
                new[other, READY] = max(new[other, READY], end)
                waiting[other] -= 1
                if waiting[other] == 0:
                    due = new[other, READY] >> shift
                    if due > bucket and bucket < len(buckets) - 1:
                        agenda.put(buckets, following, other, due)
                    else:
                        ready = new[other, READY]
                        lined = agenda.insert(
                            line_times, line_keys, line_rows, order, at, lined, ready, keys[other], other
                        )
            span = spans[span, NEXT]
    if place < total and pending == 0:
        place, latest = _keep(times, state, sequences, (taken, before, place, latest))
    return latest, place, retimed


@inner
def _keep(times: Times, state: State, sequences: Sequences, bounds: tuple[int, int, int, int]) -> tuple[int, int]:
    """Take over the rows that the sweep did not come to; returns the length of the sequence and the makespan."""
    (old, new), (waiting, marks) = times, state
    taken, before, place, latest = bounds
    for number in range(taken, before):
        row = sequences[0][number]
        if marks[row] != GONE and waiting[row] != NONE:
            new[row, READY], new[row, END] = old[row, READY], old[row, END]
            sequences[1][place] = row
            place += 1
            latest = max(latest, new[row, END])
    return place, latest
