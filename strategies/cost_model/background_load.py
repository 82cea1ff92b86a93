"""Background load: work on the other cores while a task is timed, as there is in a step.

Cores of one computer share its memory, often its last cache, and sometimes each other's units (two threads of one
physical core). A task that is timed alone is faster than it will ever be in a step where all processors work. Cores on
which no peer runs the task itself (`peer`) add up numbers.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from maniple.process.compilation.compiled import kernel
from maniple.process.inventory import move_to, spare_cores

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__: list[str] = []

STREAMED, KEPT, TURNS = 1 << 19, 1 << 11, 1 << 9
"""Elements (float32) of the vectors that each core adds up: long ones once, from the last cache or memory, and short
ones so many times as the last number says, from the first cache."""


@contextmanager
def load_cores(count: int, after: int = 0) -> Iterator[None]:
    """A stretch of time in which other cores work: all of them, from its beginning to its end.

    Args:
        count: how many cores; no more are kept busy than there are beside one.
        after: how many of them before these are busy with something else.
    """
    stop, busy, started = threading.Event(), threading.Semaphore(0), list[threading.Thread]()
    try:  # an interrupt may come while they start
        for core in spare_cores()[after : after + count]:
            started.append(threading.Thread(target=_work, args=(stop, busy, core), daemon=True))
            started[-1].start()
        for _ in started:
            busy.acquire()  # the first turn may have to compile, which would keep the timed task waiting
        yield
    finally:
        stop.set()
        for thread in started:
            if thread.ident is not None:
                thread.join()


def _work(stop: threading.Event, busy: threading.Semaphore, core: int | None) -> None:
    """Keep a core busy until told to stop; say so when the first turn is over."""
    try:
        if core is not None:
            move_to(core)
        long, short = (np.ones((2, size), dtype=np.float32) for size in (STREAMED, KEPT))
        _add_up(long, short, 1)
    finally:
        busy.release()
    while not stop.is_set():
        _add_up(long, short, TURNS)


@kernel
def _add_up(long: NDArray[np.float32], short: NDArray[np.float32], turns: int) -> None:
    """Add up the long vectors once, and the short ones so many times."""
    for place in range(long.shape[1]):
        long[1, place] = 0.5 * long[0, place] + 0.5 * long[1, place]
    for _ in range(turns):
        for place in range(short.shape[1]):
            short[1, place] = 0.5 * short[0, place] + 0.5 * short[1, place]
