"""A naive simulator, event by event, as the oracle of the compiled ones; the modules without tests are importable."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

Rows = dict[int, tuple[int, list[tuple[int, int]]]]
"""(duration, (lane, span) of each hold) by key."""


def naive(rows: Rows, edges: Sequence[tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """Ready time and end of every row, by key; lanes take rows by (ready, key)."""
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
        duration, holds = rows[key]
        start = max([at, *(free.get(lane, 0) for lane, _ in holds)])
        for lane, span in holds:
            free[lane] = start + span
        times[key] = (at, start + duration)
        for other in after[key]:
            ready[other] = max(ready[other], start + duration)
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(heap, (ready[other], other))
    assert len(times) == len(rows)
    return times


@pytest.fixture(scope="session")
def oracle() -> Callable[[Rows, Sequence[tuple[int, int]]], dict[int, tuple[int, int]]]:
    return naive
