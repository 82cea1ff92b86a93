"""Processors: threads that run tasks one after another, each with the cores it owns."""

from __future__ import annotations

import heapq
import threading
from itertools import count
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []


_here = threading.local()


def inside_task() -> bool:
    """Say whether this thread is a processor's, and so inside a task's body."""
    return getattr(_here, "inside", False)


class Work(Protocol):
    """Something a processor runs: its share of a step, or one task."""

    def __call__(self) -> None:
        """Run to the end; failures are handled inside, except a bug of the runtime's."""
        ...


class CpuProcessor:
    """A CPU processor of this rank: a thread with a queue of work, and torch's intra-op threads set to its cores.

    Args:
        id: the processor, as the machine numbers it.
        cores: how many cores it owns.
        failed: called with an exception that escaped from work.
    """

    def __init__(self, id: int, cores: int, failed: Callable[[BaseException], None]) -> None:  # noqa: A002
        self.id = id
        self.cores = cores
        self._failed = failed
        self._queue: list[tuple[int, int, Work]] = []
        self._numbers = count()
        self._arrived = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"processor {id}", daemon=True)
        self._thread.start()

    def submit(self, work: Work, priority: int) -> None:
        """Queue work; greater priority runs first, then what came first."""
        with self._arrived:
            heapq.heappush(self._queue, (-priority, next(self._numbers), work))
            self._arrived.notify()

    def close(self) -> None:
        """End the thread after the work at hand; queued work is dropped."""
        with self._arrived:
            self._closed = True
            self._queue.clear()
            self._arrived.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        _here.inside = True
        torch.set_num_threads(self.cores)
        torch.set_grad_enabled(False)
        while True:
            with self._arrived:
                while not self._queue and not self._closed:
                    self._arrived.wait()
                if self._closed:
                    return
                work = heapq.heappop(self._queue)[2]
            try:
                work()
            except BaseException as error:  # noqa: BLE001  (a thread's failure belongs to the rank)
                self._failed(error)
