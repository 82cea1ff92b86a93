"""Orders: when every processor and copy engine runs its rows, by simulated start.

One rule says who goes first: a lane takes its rows first come, first served, by (ready time, number). `first_come` is a
full simulation by that rule, for schedules and for searches; `strategies/timing/delta.py` finds the same times after a
change.

What is ready waits in a calendar queue (R. Brown, Calendar queues: a fast O(1) priority queue implementation for the
simulation event set problem, CACM 1988): a row is put into the bucket of its time, unordered. When the time of a bucket
comes, its rows are sorted; a row that is put into the open bucket finds its place among them. The tasks of a launch
become ready together and by rising number, so there is little to sort, where a heap of all rows would compare every row
with ten others.
"""

# pyright: reportArgumentType=false, reportReturnType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import at, inner, kernel, leaf
from maniple.process.error import RequestError, RunError

__all__: list[str] = []

Column = np.ndarray[tuple[int], np.dtype[np.int64]]
Numbers = np.ndarray[tuple[int], np.dtype[np.int32]]
Held = tuple[Column, Column, Column]
"""Starts (by row), lanes and spans of what each row holds: for how long it keeps others from a lane once it starts."""
Edges = tuple[Column, Column]
"""Starts (by row) and rows that wait for it."""

NONE = -1
ONE = at(1)
"""To count places on by: a place and a signed number would be added as floats."""
TIME_BITS = 62
"""The bits of a number that has a time and, below it, the number of a row."""
FEW = 16
"""So many rows find their places one by one; more by strides."""


def order(durations: Column, held: Held, successors: Edges, lanes: int) -> tuple[Column, Column]:
    """Simulate rows on lanes (processors, links) that take them first come, first served, and number them by start.

    A row starts when its predecessors have ended and all its lanes are free; ties go to the lower row. This is
    Algorithm 1 of Jia, Zaharia and Aiken, "Beyond Data and Model Parallelism for Deep Neural Networks" (section 5.2),
    with rows that may hold several lanes, as a collective holds the links between its members:

        row  lanes      duration  after      p0  |0000
        0    p0         4         -          p1  |11    3
        1    p1         2         -          0-1 |    22
        2    0-1        2         0          start: 0 -> 0, 1 -> 0, 2 -> 4, 3 -> 6
        3    p1         1         1, 2       order: 0, 1, 2, 3

    Args:
        durations: nanoseconds of each row.
        held: what the rows hold.
        successors: who waits for whom.
        lanes: how many lanes there are.

    Returns:
        The position of each row in the order, and its simulated start. The order agrees with every
        dependence, also when durations are zero.

    Raises:
        RequestError: the rows take longer than numbers can say.
        RunError: the dependences form a circle.
    """
    count, spans = len(durations), held[2]
    begin, sequence, makespan = first_come(durations, held, successors, lanes)
    longest = 1 << TIME_BITS - max(1, (count - 1).bit_length())
    # What exceeded 63 bits came out negative where it was charged; nothing here does if all together does not.
    charged = min(durations.min(initial=0), spans.min(initial=0)) >= 0
    total = durations.sum(dtype=np.float64) + spans.sum(dtype=np.float64)
    if not charged or total >= 1 << TIME_BITS or makespan >= longest:
        raise RequestError(
            f"schedule: expected a step of {count} rows that takes less than {longest // 10**9} s, got a longer one; "
            "look at the machine's rates, which are in bytes and operations per second"
        )
    if len(sequence) < count:
        raise RunError("schedule: the dependences form a circle; this is a defect of the lowering: report it")
    position = np.empty(count, dtype=np.int64)
    position[sequence] = np.arange(count)
    ranked = np.lexsort((position, begin))
    position[ranked] = np.arange(count)
    return position, begin


@kernel
def first_come(duration: Column, held: Held, successors: Edges, lanes: int) -> tuple[Column, Column, int]:
    """Time rows on lanes that take them by (ready, row).

    Args:
        duration: ticks of each row.
        held: what the rows hold.
        successors: who waits for whom.
        lanes: how many lanes there are.

    Returns:
        When each row begins, the rows by (ready, row), and the makespan. Rows that wait for each other, and what waits
        for them, are missing.
    """
    (hold_start, hold_lane, hold_span), (edge_start, edge_row) = held, successors
    count = len(duration)
    # `begin` has when a row is ready, as far as that is known, until it begins.
    begin, free, waiting = np.zeros(count, np.int64), np.zeros(lanes, np.int64), np.zeros(count, np.int32)
    buckets, before, shift, bits = _calendar(held, lanes, count)
    _begin(edge_row, waiting, buckets, before)
    # The open bucket: numbers made of a time and a row, falling, so that the first to go is the last of them.
    sequence, line, bucket, lined, makespan = np.empty(count, np.int64), np.empty(count, np.int64), NONE, 0, 0
    for place in range(count):
        while lined == 0 and bucket + 1 < len(buckets):
            bucket += 1
            if buckets[at(bucket)] != NONE:
                lined = _open_bucket(before, begin, bits, line, buckets[at(bucket)])
        if lined == 0:
            return begin, sequence[:place], makespan
        lined -= 1
        row = at(line[at(lined)] & ((1 << bits) - 1))
        sequence[place], start = row, begin[row]
        first, last = hold_start[row], hold_start[row + ONE]
        for hold in range(first, last):
            start = max(start, free[at(hold_lane[at(hold)])])
        for hold in range(first, last):
            free[at(hold_lane[at(hold)])] = start + hold_span[at(hold)]
        begin[row], end = start, start + duration[row]
        makespan = max(makespan, end)
        for edge in range(edge_start[row], edge_start[row + ONE]):
            other = at(edge_row[at(edge)])
            begin[other] = max(begin[other], end)
            waiting[other] -= 1
            if waiting[other] == 0:
                if begin[other] >> shift > bucket and bucket < len(buckets) - 1:
                    put(buckets, before, other, begin[other] >> shift)
                else:
                    lined = _line_up(line, lined, begin[other] << bits | np.int64(other), 1)
    return begin, sequence, makespan


@leaf
def put(buckets: Numbers, before: Numbers, row: int, bucket: int) -> None:
    """Put a row into a bucket; what is later than all buckets, into the last.

    Args:
        buckets: the last row of each.
        before: the row before each in its bucket.
        row: the row.
        bucket: that of its time.
    """
    bucket = min(bucket, len(buckets) - 1)
    before[at(row)] = buckets[at(bucket)]
    buckets[at(bucket)] = row


@leaf
def _begin(edge_row: Column, waiting: Numbers, buckets: Numbers, before: Numbers) -> None:
    """Count for how many others each row waits, and put the rows that wait for none into the first bucket."""
    for later in edge_row:
        waiting[at(later)] += 1
    for row in range(len(waiting)):
        if waiting[row] == 0:
            put(buckets, before, row, 0)


@inner
def _calendar(held: Held, lanes: int, count: int) -> tuple[Numbers, Numbers, int, int]:
    """Empty buckets, which span four times what the busiest lane needs, with their width and that of rows as shifts."""
    load = np.zeros(lanes + 1, dtype=np.int64)
    for hold in range(len(held[1])):
        load[at(held[1][hold])] += held[2][hold]
    bits = 1
    while 1 << bits < count:
        bits += 1
    shift = 0
    while load.max() >> shift > 1 << bits - 1:
        shift += 1
    return np.full(2 << bits, NONE, np.int32), np.zeros(count, np.int32), shift, bits


@leaf
def _open_bucket(before: Numbers, begin: Column, bits: int, line: Column, row: int) -> int:
    """Line up the rows of a bucket, of which one is the last. Returns how many there are.

    They were put there mostly by rising number, so the last comes first already.
    """
    lined, falls = 0, True
    while row != NONE:
        line[at(lined)] = begin[at(row)] << bits | row
        falls &= lined == 0 or line[at(lined - 1)] > line[at(lined)]
        lined += 1
        row = before[at(row)]
    # Where they are many, those far apart first (D. L. Shell, CACM 1959): numba takes seconds to compile numpy's sort.
    stride = 1
    while stride < lined // FEW:
        stride = 3 * stride + 1
    while stride > 0 and not falls:
        for place in range(stride, lined):
            _line_up(line, place, line[place], stride)
        stride //= 3
    return lined


@leaf
def _line_up(line: Column, lined: int, number: int, stride: int) -> int:
    """Put a number among those a stride apart, which fall; most go near the end. Returns how many there are."""
    place = lined
    while place >= stride and line[at(place - stride)] < number:
        line[at(place)] = line[at(place - stride)]
        place -= stride
    line[at(place)] = number
    return lined + 1
