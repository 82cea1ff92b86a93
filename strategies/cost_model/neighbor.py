"""Neighbours: work on the other cores while a task is timed, as there is in a step.

Cores of one computer share its memory, often its last cache, and sometimes each other's units (two threads of one
physical core). A task that is timed alone is faster than it will ever be in a step where all processors work.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numba
import numpy as np

from maniple.process.inventory import move_to, spare_cores

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__: list[str] = []

STREAMED, KEPT, TURNS = 1 << 19, 1 << 11, 1 << 9
"""Elements (float32) of the vectors that a neighbour adds up: long ones once, from the last cache or memory, and short
ones TURNS times, from the first cache."""


@contextmanager
def neighbors(count: int) -> Iterator[None]:
    """A stretch of time in which other cores work.

    Args:
        count: how many cores; no more are kept busy than there are beside one.
    """
    stop, started = threading.Event(), list[threading.Thread]()
    try:  # an interrupt may come while they start
        for core in spare_cores()[:count]:
            started.append(threading.Thread(target=_work, args=(stop, core), daemon=True))
            started[-1].start()
        yield
    finally:
        stop.set()
        for neighbor in started:
            if neighbor.ident is not None:
                neighbor.join()


def _work(stop: threading.Event, core: int | None) -> None:
    if core is not None:
        move_to(core)
    long, short = (np.ones((2, size), dtype=np.float32) for size in (STREAMED, KEPT))
    while not stop.is_set():
        _sums(long, short, TURNS)


@numba.njit(nogil=True)
def _sums(long: NDArray[np.float32], short: NDArray[np.float32], turns: int) -> None:
    for place in range(long.shape[1]):
        long[1, place] = 0.5 * long[0, place] + 0.5 * long[1, place]
    for _ in range(turns):
        for place in range(short.shape[1]):
            short[1, place] = 0.5 * short[0, place] + 0.5 * short[1, place]
