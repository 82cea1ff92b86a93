"""Memory budgets: how much of a device's memory is in use, and how an allocation waits for what is let go of.

A tile's storage is let go of by a stream, or by whoever hears of its events, a moment after these have ended; an
allocation that comes before that waits, and is refused only when nothing was let go of for long.
"""

from __future__ import annotations

import gc
import weakref
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, final

from maniple.process.error import RunError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from maniple.process.clock import Clock

__all__: list[str] = []

# How long an allocation waits for room that others are about to make.
PATIENCE_S = 5.0
# How often it looks whether the device has room again, which tells nobody; what is let go of here wakes it at once.
LOOK_S = 0.01


@final
class MemoryBudget:
    """The bytes that a device may hold, and those that it does.

    Args:
        name: what messages call the device.
        capacity: bytes that it may hold.
        reclaim: has those give back what is not in use who keep some of it.
        clock: what patience is measured by.
    """

    def __init__(
        self, name: str, capacity: int, reclaim: Callable[[], object] = gc.collect, clock: Clock = monotonic
    ) -> None:
        self.name = name
        self.capacity = capacity
        self.held = 0
        self.peak = 0
        self._reclaim = reclaim
        self._clock = clock
        # The collector may run on any thread and at any time, also inside of this queue, which is made for that.
        self._freed: SimpleQueue[int] = SimpleQueue()

    def allocate(self, size: int, attempt: Callable[[], torch.Tensor | None]) -> torch.Tensor:
        """Allocate storage once there is room.

        Args:
            size: bytes.
            attempt: makes it, or gives None where the device has none after all.

        Raises:
            RunError: it is more than the device holds, or nothing was let go of for long.
        """
        end = self._clock() + PATIENCE_S
        while True:
            made = attempt() if self._in_use() + size <= self.capacity else None
            if made is not None:
                break
            if size > self.capacity or self._clock() > end:
                raise RunError(self._refusal(size))
            self._reclaim()
            self._wait(LOOK_S)
        self.held += size
        self.peak = max(self.peak, self.held)
        weakref.finalize(made.untyped_storage(), self._freed.put, size).atexit = False
        return made

    def _refusal(self, size: int) -> str:
        told = f"{self.name} has no room for {size} bytes: {self.held} of {self.capacity} are in use"
        if self.held + size > self.capacity:
            return f"{told}; have the program keep less at a time, or give it more with --memory"
        return f"{told}, and others have the rest; end what else uses it, or give this program less with --memory"

    def _in_use(self) -> int:
        while not self._freed.empty():
            self._wait(0.0)
        return self.held

    def _wait(self, seconds: float) -> None:
        """Wait until something was let go of, but no longer than that."""
        with suppress(Empty):
            freed = self._freed.get(timeout=seconds)
            self.held -= freed
