"""Memory budgets: how much of a device's memory is in use, and how an allocation waits for what is let go of.

A tile's storage is let go of by a stream, or by whoever hears of its events, a moment after these have ended; an
allocation that comes before that waits, and is refused only when nothing was let go of for long.
"""

from __future__ import annotations

import gc
import weakref
from collections import deque
from time import perf_counter, sleep
from typing import TYPE_CHECKING, final

from maniple.regions.error import RunError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

__all__: list[str] = []

# How long an allocation waits for room that others are about to make, and how often it looks.
PATIENCE_S = 5.0
NAP_S = 1e-3


@final
class MemoryBudget:
    """The bytes that a device may hold, and those that it does.

    Args:
        name: what messages call the device.
        capacity: bytes that it may hold.
        reclaim: has those give back what is not in use who keep some of it.
    """

    def __init__(self, name: str, capacity: int, reclaim: Callable[[], object] = gc.collect) -> None:
        self.name = name
        self.capacity = capacity
        self.held = 0
        self.peak = 0
        self._reclaim = reclaim
        # The collector may run on any thread and at any time, so it only leaves a note.
        self._freed: deque[int] = deque()

    def allocate(self, size: int, attempt: Callable[[], torch.Tensor | None]) -> torch.Tensor:
        """Allocate storage once there is room.

        Args:
            size: bytes.
            attempt: makes it, or gives None where the device has none after all.

        Raises:
            RunError: it is more than the device holds, or nothing was let go of for long.
        """
        end = perf_counter() + PATIENCE_S
        while True:
            made = attempt() if self._in_use() + size <= self.capacity else None
            if made is not None:
                break
            if size > self.capacity or perf_counter() > end:
                raise RunError(f"{self.name} has no room for {size} bytes: {self.held} of {self.capacity} are in use")
            self._reclaim()
            sleep(NAP_S)  # a finalizer may run anywhere, so it can wake nobody
        self.held += size
        self.peak = max(self.peak, self.held)
        weakref.finalize(made.untyped_storage(), self._freed.append, size).atexit = False
        return made

    def _in_use(self) -> int:
        while self._freed:
            self.held -= self._freed.popleft()
        return self.held
