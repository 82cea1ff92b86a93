"""Orders: when every processor and copy engine runs its rows, by simulated start."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.runtime.schedule.schedule import Column

__all__: list[str] = []


def order(
    durations: Sequence[int], holds: Sequence[Sequence[tuple[int, int]]], successors: tuple[Column, Column]
) -> tuple[Column, list[int]]:
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
        holds: (lane, nanoseconds) for which each row, once it starts, keeps others from the lane.
        successors: starts and rows (CSR).

    Returns:
        The position of each row in the order, and its simulated start. The order agrees with every
        dependence, also when durations are zero.
    """
    count = len(durations)
    waiting = np.bincount(successors[1], minlength=count).tolist() if len(successors[1]) else [0] * count
    starts, later = successors[0].tolist(), successors[1].tolist()
    ready = [0] * count
    free: dict[int, int] = {}
    begin = [0] * count
    heap = [(0, row) for row in range(count) if waiting[row] == 0]
    heapq.heapify(heap)
    sequence: list[int] = []
    while heap:
        at, row = heapq.heappop(heap)
        start = at
        for lane, _ in holds[row]:
            start = max(start, free.get(lane, 0))
        begin[row] = start
        end = start + durations[row]
        for lane, span in holds[row]:
            free[lane] = start + span
        sequence.append(row)
        for successor in later[starts[row] : starts[row + 1]]:
            ready[successor] = max(ready[successor], end)
            waiting[successor] -= 1
            if waiting[successor] == 0:
                heapq.heappush(heap, (ready[successor], successor))
    position = np.empty(count, dtype=np.int64)
    position[sequence] = np.arange(count)
    ranked = np.lexsort((position, np.asarray(begin, dtype=np.int64)))
    position[ranked] = np.arange(count)
    return position, begin
