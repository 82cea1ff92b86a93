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

from maniple.process.compilation.compiled import at, inner, kernel, leaf
from maniple.runtime.schedule.order import put
from maniple.strategies.timing import agenda
from maniple.strategies.timing.agenda import Agenda
from maniple.strategies.timing.tables import (
    COUNT,
    DUE,
    DURATION,
    END,
    FIRST,
    HOLD,
    HOLD_BITS,
    HOLD_MASK,
    LANE_BITS,
    LANE_MASK,
    LINK,
    LINK_BITS,
    LINK_MASK,
    NEVER,
    NEXT,
    NONE,
    READY,
    ROW,
    WAITS,
    Column,
    Numbers,
    Table,
    Tables,
)

Marks = np.ndarray[tuple[int], np.dtype[np.int8]]
"""By row what changed about it."""
Sequences = tuple[Numbers, Numbers]
"""The rows by (ready, key) before, and as they are to be."""
Lanes = tuple[Column, Column]
"""When each lane is free, and for how long rows that are not in the sequence yet will hold it."""
Blocks = tuple[Table, Table, Table, Table]
"""(First, number) of new rows, of rows that are gone, of new spans, of spans that are gone."""

Bounds = tuple[int, int, int, int, int, int, int, int, int]

SAME, FRESH, GONE, LATER, EARLIER, TIMED = range(6)
"""What changed about a row: nothing; it is new; it has left; others come before it, in whose stead none is gone on
which it waited last; or one is; it is in the sequence that is to be."""


@kernel
def settle(
    tables: Tables,
    marks: Marks,
    queue: Agenda,
    sequences: Sequences,
    lanes: Lanes,
    load: Column,
    blocks: Blocks,
    counts: tuple[int, int, int, int],
) -> tuple[int, int, int, int, int]:
    """Time the rows of a changed graph.

    Args:
        tables: the graph, changes included, and the times before. Where the simulation comes to an end, those of the
            rows that were timed again are exchanged for what they were: see `exchange`.
        marks: room.
        queue: room.
        sequences: the one before, and room for the one to be.
        lanes: room.
        load: for how long each lane is held in all.
        blocks: the changes.
        counts: rows of the tables that are in use, rows in the graph before, nanoseconds of a bucket of the queue (as a
            shift), the makespan above which nobody cares.

    Returns:
        The makespan, or a number above the limit that it reaches at least; the length of the sequence, or NONE where
        the limit was passed; which part of the sequence was timed again; how many rows got another time.
    """
    rows, (past, sequence), (free, left) = tables[0], sequences, lanes
    used, before, shift, limit = counts
    most = _begin(free, left, load)
    if most > limit:
        return most, NONE, 0, 0, 0
    # Rows have two sets of times. READY and END are those before, and stay so until the end, for they say whether a
    # row has changed. DUE and WAITS are those to be: the latest end so far of what a row waits for, and for how many it
    # still waits; once it is taken, its own end. `exchange` swaps the two, so that the same again takes a change back.
    marks[:used] = SAME
    since, until, pending = _mark(tables, marks, blocks)
    since = min(since, _earliest(tables, marks, blocks))
    # Nothing before `since` changes, so the makespan is at least that.
    if limit < since < NEVER:  # what is ready then waited for a row that stays, and ends then
        return since, NONE, 0, 0, 0
    taken = _position(rows, past, before, since)
    for place in range(taken):
        sequence[place] = past[place]
    alive = taken + _await_all(rows, marks, queue, past[taken:before], blocks[0])
    latest = _take(tables, queue, past[:taken], lanes, since, shift)
    # The sweep opens the bucket after the one that it is told of.
    bounds = ((since >> shift) - 1, shift, taken, alive, before, pending, until, latest, limit)
    makespan, length, end, retimed = _sweep(tables, marks, queue, sequences, lanes, bounds)
    # Where the sweep ended early, at the limit or in a circle, READY and END are the times before: nothing to undo.
    if length == alive:
        exchange(rows, sequence[taken:end])
    return makespan, length, taken, end, retimed


@leaf
def _begin(free: Column, left: Column, load: Column) -> int:
    """Let all lanes be free, and have to do what they do in all; gives the most that one does."""
    # Loops where numpy has a word: numba compiles a function for each word, with its errors, for longer than this file.
    most = 0
    for lane in range(len(load)):
        free[lane], left[lane] = 0, load[lane]
        most = max(most, load[lane])
    return most


@kernel
def exchange(rows: Table, sequence: Numbers) -> None:
    """Exchange the times of some rows for those that the settlement has found, or these for those."""
    for number in sequence:
        row = at(number)
        rows[row, READY], rows[row, DUE] = rows[row, DUE], rows[row, READY]
        rows[row, END], rows[row, WAITS] = rows[row, WAITS], rows[row, END]


@inner
def _mark(tables: Tables, marks: Marks, blocks: Blocks) -> tuple[int, int, int]:
    """Mark what changed: the earliest time that may change, until when it is felt, how many rows are to be timed."""
    rows, (fresh, gone, come, cut) = tables[0], blocks
    since, until, pending = NEVER, 0, 0
    for block in range(len(fresh)):
        marks[fresh[block, 0] : fresh[block, 0] + fresh[block, 1]] = FRESH
        pending += fresh[block, 1]
    for block in range(len(gone)):
        for row in range(gone[block, 0], gone[block, 0] + gone[block, 1]):
            marks[row] = GONE
            # What is gone freed its lanes at its end: up to then others may take them earlier.
            since, until = min(since, rows[row, READY]), max(until, rows[row, END])
    for changed, cutting in ((come, 0), (cut, 1)):
        first, last, stamped = _stamp(tables, marks, changed, cutting)
        since, until, pending = min(since, first), max(until, last), pending + stamped
    return since, until, pending


@leaf
def _stamp(tables: Tables, marks: Marks, changed: Table, cutting: int) -> tuple[int, int, int]:
    """Mark the rows before which others come, or came; see `_mark`."""
    rows, _, spans, targets = tables
    since, until, pending = NEVER, 0, 0
    for block in range(len(changed)):
        for span in range(changed[block, 0], changed[block, 0] + changed[block, 1]):
            end = rows[spans[span, ROW], END]  # 0 of a new one
            until = max(until, end)
            for number in range(spans[span, FIRST], spans[span, FIRST] + spans[span, COUNT]):
                target = at(targets[number])
                if marks[target] != FRESH and marks[target] != GONE:
                    ready = rows[target, READY]
                    since, until = min(since, ready), max(until, ready)
                    pending += marks[target] == SAME
                    # It was ready when this one ended, so without it it may be ready earlier. Any other that is taken
                    # away was not what it waited for last. EARLIER is not taken back by LATER, for both may be true.
                    if cutting and end >= ready:
                        marks[target] = EARLIER
                    # Whoever comes before it may make it later, not earlier.
                    elif marks[target] == SAME:
                        marks[target] = LATER
    return since, until, pending


@inner
def _earliest(tables: Tables, marks: Marks, blocks: Blocks) -> int:
    """The earliest time at which a row that is new or may be earlier may be ready, for what is known of it."""
    (rows, _, spans, targets), (fresh, _, come, cut) = tables, blocks
    for block in range(len(cut)):
        for span in range(cut[block, 0], cut[block, 0] + cut[block, 1]):
            for number in range(spans[span, FIRST], spans[span, FIRST] + spans[span, COUNT]):
                # DUE is room here, until `_await_all` sets it anew: a bound from below.
                rows[at(targets[number]), DUE] = 0
    for block in range(len(fresh)):
        rows[fresh[block, 0] : fresh[block, 0] + fresh[block, 1], DUE] = 0
    _await(tables, marks, come)
    earliest = NEVER
    for block in range(len(fresh)):
        for row in range(fresh[block, 0], fresh[block, 0] + fresh[block, 1]):
            earliest = min(earliest, rows[row, DUE])
    for block in range(len(cut)):
        for span in range(cut[block, 0], cut[block, 0] + cut[block, 1]):
            for number in range(spans[span, FIRST], spans[span, FIRST] + spans[span, COUNT]):
                if marks[at(targets[number])] == EARLIER:
                    earliest = min(earliest, rows[at(targets[number]), DUE])
    return earliest


@leaf
def _await(tables: Tables, marks: Marks, come: Table) -> None:
    """Let rows that are new or may be earlier be ready when the rows end that they newly wait for, as far as known."""
    rows, _, spans, targets = tables
    for block in range(len(come)):
        for span in range(come[block, 0], come[block, 0] + come[block, 1]):
            row = spans[span, ROW]
            known = marks[row] != FRESH
            end = rows[row, END] if known else NEVER  # a new one is ready earlier than who waits for it
            for number in range(spans[span, FIRST], spans[span, FIRST] + spans[span, COUNT]):
                mark = marks[at(targets[number])]
                # What waits for a new row cannot be the earliest that changes: the new row is ready before it.
                if mark == FRESH or (known and mark == EARLIER):
                    rows[at(targets[number]), DUE] = max(rows[at(targets[number]), DUE], end)


@leaf
def _position(rows: Table, past: Numbers, before: int, since: int) -> int:
    """How many rows of a sequence are ready before a time."""
    low, high = 0, before
    while low < high:
        middle = (low + high) // 2
        if rows[past[middle], READY] < since:
            low = middle + 1
        else:
            high = middle
    return low


@leaf
def _await_all(rows: Table, marks: Marks, queue: Agenda, rest: Numbers, fresh: Table) -> int:
    """Let the rows that are to be timed wait for all that come before them; returns how many they are."""
    buckets, following = queue[0]
    count = 0
    for number in rest:
        row = at(number)
        if marks[row] != GONE:
            # LINK has how many rows it waits for above its first span. Those that are kept are counted off by `_take`.
            rows[row, DUE], rows[row, WAITS] = 0, rows[row, LINK] >> LINK_BITS
            count += 1
            if rows[row, WAITS] == 0:
                put(buckets, following, row, 0)
    for block in range(len(fresh)):
        for row in range(fresh[block, 0], fresh[block, 0] + fresh[block, 1]):
            rows[row, DUE], rows[row, WAITS] = 0, rows[row, LINK] >> LINK_BITS
            count += 1
            if rows[row, WAITS] == 0:
                put(buckets, following, row, 0)
    return count


@leaf
def _take(tables: Tables, queue: Agenda, kept: Numbers, lanes: Lanes, since: int, shift: int) -> int:
    """Take over the rows that are ready before the first change; returns the latest of their ends."""
    (rows, holds, spans, targets), (buckets, following), (free, left) = tables, queue[0], lanes
    latest = 0
    for number in kept:
        row = at(number)
        end = rows[row, END]
        latest = max(latest, end)
        first, count = rows[row, HOLD] >> HOLD_BITS, rows[row, HOLD] & HOLD_MASK
        for hold in range(first, first + count):
            lane, length = at(holds[at(hold)] & LANE_MASK), holds[at(hold)] >> LANE_BITS
            # A lane is held from the start of a row, perhaps for less than the row takes.
            free[lane] = end - rows[row, DURATION] + length
            left[lane] -= length
        span = (rows[row, LINK] & LINK_MASK) - 1
        while span != NONE:
            for place in range(spans[at(span), FIRST], spans[at(span), FIRST] + spans[at(span), COUNT]):
                other = at(targets[at(place)])
                # Others are kept, too: their times stand.
                if rows[other, READY] >= since:
                    rows[other, DUE] = max(rows[other, DUE], end)
                    rows[other, WAITS] -= 1
                    if rows[other, WAITS] == 0:
                        put(buckets, following, other, rows[other, DUE] >> shift)
            span = spans[at(span), NEXT]
    return latest


@inner
def _sweep(  # noqa: C901, PLR0912  (one loop: handing its arrays to functions, row by row, takes twice the time)
    tables: Tables, marks: Marks, queue: Agenda, sequences: Sequences, lanes: Lanes, bounds: Bounds
) -> tuple[int, int, int, int]:
    """Time rows in sequence until nothing can differ from before, and take over the others; see `settle`."""
    (rows, holds, spans, targets), ((buckets, following), line), (free, left) = tables, queue, lanes
    line_times, line_rows = line
    past, sequence = sequences
    bucket, shift, taken, total, before, pending, until, latest, limit = bounds
    place, retimed, lined = taken, 0, 0
    while place < total:
        while lined == 0 and bucket + 1 < len(buckets):
            bucket += 1
            if buckets[at(bucket)] != NONE:
                lined = agenda.open_bucket(following, line, rows, buckets[at(bucket)])
        if lined == 0:
            break  # rows are left and none is ready: a circle
        lined -= 1
        time, row = line_times[at(lined)], at(line_rows[at(lined)])
        # All that changed has been taken, and no end that differs from before lies ahead: the rest is as it was.
        if pending == 0 and time > until:
            break
        start, first, count = time, rows[row, HOLD] >> HOLD_BITS, rows[row, HOLD] & HOLD_MASK
        for hold in range(first, first + count):
            start = max(start, free[at(holds[at(hold)] & LANE_MASK)])
        for hold in range(first, first + count):
            lane, length = at(holds[at(hold)] & LANE_MASK), holds[at(hold)] >> LANE_BITS
            # Itself included: `left` is what the lane has still to do, and it does nothing before `start`.
            if start + left[lane] > limit:
                return start + left[lane], NONE, place, retimed
            free[lane] = start + length
            left[lane] -= length
        end = start + rows[row, DURATION]
        latest, rows[row, WAITS] = max(latest, end), end  # nobody counts down what it waits for any more
        if marks[row] == FRESH:
            until = max(until, end)
            retimed += 1
        elif end != rows[row, END] or time != rows[row, READY]:
            # From the earlier to the later of both times somebody may see a difference: a lane free, a row ready.
            until = max(until, end, rows[row, END], rows[row, READY])
            retimed += 1
        pending -= marks[row] != SAME
        marks[row], sequence[at(place)] = TIMED, row
        place += 1
        span = (rows[row, LINK] & LINK_MASK) - 1
        while span != NONE:
            for number in range(spans[at(span), FIRST], spans[at(span), FIRST] + spans[at(span), COUNT]):
                other = at(targets[at(number)])
                due = max(rows[other, DUE], end)
                rows[other, DUE] = due
                rows[other, WAITS] -= 1
                if rows[other, WAITS] == 0:
                    if due >> shift > bucket and bucket < len(buckets) - 1:
                        put(buckets, following, other, due >> shift)
                    else:
                        lined = agenda.insert(rows, line_times, line_rows, lined, due, other)
            span = spans[at(span), NEXT]
    end = place
    if place < total and pending == 0:
        place, latest = _keep(rows, marks, (past[taken:before], sequence), place, latest)
    return latest, place, end, retimed


@leaf
def _keep(rows: Table, marks: Marks, sequences: Sequences, place: int, latest: int) -> tuple[int, int]:
    """Take over the rows that the sweep did not come to; returns the length of the sequence and the makespan."""
    rest, sequence = sequences
    for number in rest:
        row = at(number)
        if marks[row] != GONE and marks[row] != TIMED:
            sequence[at(place)] = row
            place += 1
            latest = max(latest, rows[row, END])
    return place, latest
