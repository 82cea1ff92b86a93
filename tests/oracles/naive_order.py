"""First come, first served, event by event with a heap: the oracle of the compiled simulations, full and delta."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

Rows = dict[int, tuple[int, Sequence[tuple[int, int]]]]
"""(duration, (lane, span) of each hold) by key."""
Pairs = Iterable[tuple[int, int]]


def first_come(rows: Rows, edges: Pairs) -> dict[int, tuple[int, int]]:
    """Ready time and end of every row, by key, in the order in which they go; lanes take rows by (ready, key)."""
    after: dict[int, list[int]] = {key: [] for key in rows}
    waiting = dict.fromkeys(rows, 0)
    for source, target in edges:
        after[source].append(target)
        waiting[target] += 1
    ready = dict.fromkeys(rows, 0)
    free: dict[int, int] = {}
    times: dict[int, tuple[int, int]] = {}
    heap = [(0, key) for key in sorted(rows) if not waiting[key]]
    while heap:
        at, key = heapq.heappop(heap)
        end = _take(rows[key], at, free)
        times[key] = (at, end)
        for other in after[key]:
            ready[other] = max(ready[other], end)
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(heap, (ready[other], other))
    return times


def in_order(sequence: Sequence[int], rows: Rows, edges: Pairs) -> dict[int, int]:
    """The end of every row where each lane takes its rows in one total order, as a rank does."""
    before: dict[int, list[int]] = {key: [] for key in rows}
    for source, target in edges:
        before[target].append(source)
    free: dict[int, int] = {}
    ends: dict[int, int] = {}
    for key in sequence:
        ends[key] = _take(rows[key], max([0, *(ends[other] for other in before[key])]), free)
    return ends


def _take(row: tuple[int, Sequence[tuple[int, int]]], ready: int, free: dict[int, int]) -> int:
    """Let a row begin once it is ready and its lanes are free; returns its end."""
    duration, holds = row
    start = max([ready, *(free.get(lane, 0) for lane, _ in holds)])
    for lane, span in holds:
        free[lane] = start + span
    return start + duration
