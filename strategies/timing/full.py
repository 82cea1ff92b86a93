"""Full simulation: the times of a whole schedule, from its columns, in one pass.

Two rules for who goes first. `in_order` lets every lane take its rows in the schedule's total order, as the runtime
does: one scan. `first_come` finds an order: a lane takes its rows by (ready, row); that is Algorithm 1 of Jia, Zaharia
and Aiken, "Beyond Data and Model Parallelism for Deep Neural Networks" (section 5.2). In the order that `first_come`
gives, `in_order` gives the same times.
"""

# pyright: reportArgumentType=false, reportReturnType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.strategies.lowering.compiled import inner, kernel, leaf
from maniple.strategies.lowering.tables import NONE
from maniple.strategies.timing import agenda

Column = np.ndarray[tuple[int], np.dtype[np.int64]]
Numbers = np.ndarray[tuple[int], np.dtype[np.int32]]


@kernel
def in_order(
    sequence: Column,
    duration: Column,
    held: tuple[Column, Column, Column],
    successors: tuple[Column, Column],
    lanes: int,
) -> tuple[Column, int]:
    """Time rows in a given order.

    Args:
        sequence: the rows in an order that agrees with every dependence.
        duration: ticks of each row.
        held: starts (by row), lanes and spans of what each row holds.
        successors: starts (by row) and rows.
        lanes: how many lanes there are.

    Returns:
        When each row begins, and the makespan.
    """
    hold_start, hold_lane, hold_span = held
    edge_start, edge_row = successors
    begin = np.zeros(len(duration), dtype=np.int64)
    free = np.zeros(lanes, dtype=np.int64)
    makespan = 0
    for row in sequence:
        start = begin[row]
        first, last = hold_start[row], hold_start[row + 1]
        for hold in range(first, last):
            start = max(start, free[hold_lane[hold]])
        for hold in range(first, last):
            free[hold_lane[hold]] = start + hold_span[hold]
        begin[row] = start
        end = start + duration[row]
        makespan = max(makespan, end)
        for edge in range(edge_start[row], edge_start[row + 1]):
            other = edge_row[edge]
            begin[other] = max(begin[other], end)
    return begin, makespan


@kernel
def first_come(
    duration: Column,
    held: tuple[Column, Column, Column],
    successors: tuple[Column, Column],
    lanes: int,
) -> tuple[Column, Column, int]:
    """Time rows on lanes that take them by (ready, row).

    Args:
        duration: ticks of each row, at least 1.
        held: starts (by row), lanes and spans of what each row holds.
        successors: starts (by row) and rows.
        lanes: how many lanes there are.

    Returns:
        When each row begins, the rows by (ready, row), and the makespan.
    """
    (hold_start, hold_lane, hold_span), (edge_start, edge_row) = held, successors
    count = len(duration)
    begin, free, waiting = np.zeros(count, np.int64), np.zeros(lanes, np.int64), np.zeros(count, np.int32)
    for target in edge_row:
        waiting[target] += 1
    buckets, before, shift, bits = _calendar(held, lanes, count)
    for row in range(count):
        if waiting[row] == 0:
            agenda.put(buckets, before, row, 0)
    # The open bucket: numbers made of a time and a row, falling, so that the first to go is the last of them.
    sequence, line, bucket, lined, makespan = np.empty(count, np.int64), np.empty(count, np.int64), -1, 0, 0
    for place in range(count):
        while lined == 0:
            bucket += 1
            if buckets[bucket] != NONE:
                lined = _open_bucket(before, begin, bits, line, buckets[bucket])
        lined -= 1
        row = line[lined] & ((1 << bits) - 1)
        sequence[place], start = row, begin[row]
        first, last = hold_start[row], hold_start[row + 1]
        for hold in range(first, last):
            start = max(start, free[hold_lane[hold]])
        for hold in range(first, last):
            free[hold_lane[hold]] = start + hold_span[hold]
        begin[row], end = start, start + duration[row]
        makespan = max(makespan, end)
        for edge in range(edge_start[row], edge_start[row + 1]):
            other = edge_row[edge]
            begin[other] = max(begin[other], end)
            waiting[other] -= 1
            if waiting[other] == 0:
                if begin[other] >> shift > bucket and bucket < len(buckets) - 1:
                    agenda.put(buckets, before, other, begin[other] >> shift)
                else:
                    lined = _line_up(line, lined, begin[other] << bits | other)
    return begin, sequence, makespan


@inner
def _calendar(held: tuple[Column, Column, Column], lanes: int, count: int) -> tuple[Numbers, Numbers, int, int]:
    """Empty buckets, which span four times what the busiest lane needs, with their width and that of rows as shifts."""
    load = np.zeros(lanes, dtype=np.int64)
    for hold in range(len(held[1])):
        load[held[1][hold]] += held[2][hold]
    bits = 1
    while 1 << bits < count:
        bits += 1
    shift = 0
    while 4 * load.max() >> shift > 2 << bits:
        shift += 1
    return np.full(2 << bits, NONE, np.int32), np.zeros(count, np.int32), shift, bits


@inner
def _open_bucket(before: Numbers, begin: Column, bits: int, line: Column, row: int) -> int:
    """Line up the rows of a bucket, of which one is the last. Returns how many there are.

    They were put there mostly by rising number, so the last comes first already.
    """
    lined, falls = 0, True
    while row != NONE:
        line[lined] = begin[row] << bits | row
        falls &= lined == 0 or line[lined - 1] > line[lined]
        lined += 1
        row = before[row]
    if not falls and lined > agenda.FEW:
        line[:lined] = np.sort(line[:lined])[::-1]
    elif not falls:
        for place in range(1, lined):
            _line_up(line, place, line[place])
    return lined


@leaf
def _line_up(line: Column, lined: int, number: int) -> int:
    """Put a number among those that fall; most go near the end. Returns how many there are."""
    place = lined
    while place > 0 and line[place - 1] < number:
        line[place] = line[place - 1]
        place -= 1
    line[place] = number
    return lined + 1
