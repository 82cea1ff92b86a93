"""Full simulation: the times of a whole schedule, from its columns, in one pass.

Two rules for who goes first. `in_order` lets every lane take its rows in the schedule's total order, as the runtime
does: one scan. `first_come` finds an order: a lane takes its rows by (ready, row); that is Algorithm 1 of Jia, Zaharia
and Aiken, "Beyond Data and Model Parallelism for Deep Neural Networks" (section 5.2). In the order that `first_come`
gives, `in_order` gives the same times.
"""

# pyright: reportArgumentType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.strategies.simulation import agenda
from maniple.strategies.simulation.kernel import inner, kernel

Column = np.ndarray[tuple[int], np.dtype[np.int64]]


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
    keys, ready = np.arange(count), np.zeros((count, 1), dtype=np.int64)
    waiting = np.zeros(count, dtype=np.int32)
    for target in edge_row:
        waiting[target] += 1
    (buckets, following), line = agenda.empty(count)
    line_times, line_keys, line_rows, order, _ = line
    shift = _shift(held, lanes, len(buckets))
    for row in range(count):
        if waiting[row] == 0:
            agenda.put(buckets, following, row, 0)
    free = np.zeros(lanes, dtype=np.int64)
    sequence = np.empty(count, dtype=np.int64)
    bucket, at, lined, makespan = -1, 0, 0, 0
    for place in range(count):
        while at == lined:
            bucket += 1
            if buckets[bucket] != agenda.NONE:
                at, lined = 0, agenda.opened(following, line, keys, ready, buckets[bucket])
        start, row = line_times[order[at]], line_rows[order[at]]
        at += 1
        sequence[place] = row
        first, last = hold_start[row], hold_start[row + 1]
        for hold in range(first, last):
            start = max(start, free[hold_lane[hold]])
        for hold in range(first, last):
            free[hold_lane[hold]] = start + hold_span[hold]
        ready[row, 0] = start
        end = start + duration[row]
        makespan = max(makespan, end)
        for edge in range(edge_start[row], edge_start[row + 1]):
            other = edge_row[edge]
            ready[other, 0] = max(ready[other, 0], end)
            waiting[other] -= 1
            if waiting[other] == 0:
                due = ready[other, 0] >> shift
                if due > bucket and bucket < len(buckets) - 1:
                    agenda.put(buckets, following, other, due)
                else:
                    due = ready[other, 0]
                    lined = agenda.insert(line_times, line_keys, line_rows, order, at, lined, due, other, other)
    return ready[:, 0].copy(), sequence, makespan


@inner
def _shift(held: tuple[Column, Column, Column], lanes: int, buckets: int) -> int:
    """The width of a bucket, as a shift, with which all buckets span four times what the busiest lane needs."""
    load = np.zeros(lanes, dtype=np.int64)
    for hold in range(len(held[1])):
        load[held[1][hold]] += held[2][hold]
    shift = 0
    while 4 * load.max() >> shift > buckets:
        shift += 1
    return shift
