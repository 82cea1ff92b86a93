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
    hold_start, hold_lane, hold_span = held
    edge_start, edge_row = successors
    count = len(duration)
    waiting = np.zeros(count, dtype=np.int64)
    for row in edge_row:
        waiting[row] += 1
    begin = np.zeros(count, dtype=np.int64)
    free = np.zeros(lanes, dtype=np.int64)
    sequence = np.empty(count, dtype=np.int64)
    time_of = np.empty(count, dtype=np.int64)
    row_of = np.empty(count, dtype=np.int64)
    size = 0
    for row in range(count):
        if waiting[row] == 0:
            # Rows come by rising number and all at time 0, so this is a heap already.
            time_of[size], row_of[size] = 0, row
            size += 1
    makespan = 0
    for number in range(count):
        start, row = time_of[0], row_of[0]
        size = _drop_first(time_of, row_of, size)
        sequence[number] = row
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
            waiting[other] -= 1
            if waiting[other] == 0:
                size = _insert(time_of, row_of, size, begin[other], other)
    return begin, sequence, makespan


@inner
def _insert(time_of: Column, row_of: Column, size: int, time: int, row: int) -> int:
    place = size
    while place > 0:
        parent = (place - 1) >> 1
        if time_of[parent] < time or (time_of[parent] == time and row_of[parent] < row):
            break
        time_of[place], row_of[place] = time_of[parent], row_of[parent]
        place = parent
    time_of[place], row_of[place] = time, row
    return size + 1


@inner
def _drop_first(time_of: Column, row_of: Column, size: int) -> int:
    size -= 1
    time, row = time_of[size], row_of[size]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (
            time_of[other] < time_of[child] or (time_of[other] == time_of[child] and row_of[other] < row_of[child])
        ):
            child = other
        if time_of[child] > time or (time_of[child] == time and row_of[child] > row):
            break
        time_of[place], row_of[place] = time_of[child], row_of[child]
        place = child
    time_of[place], row_of[place] = time, row
    return size
