"""Turns: which thread of a process makes the program of its rank."""

from __future__ import annotations

import threading
from typing import final

__all__: list[str] = []


@final
class Turn:
    """The right to make launches at a rank: one thread's at a time, since launches are a program by their order."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holder: int | None = None

    def take(self) -> bool:
        """Take it, or once more where this thread has it; False where another has it."""
        if not self._lock.acquire(blocking=False):
            return False
        self._holder = threading.get_ident()
        return True

    def give(self) -> None:
        """Give it back, as often as it was taken."""
        self._lock.release()

    def holder(self) -> str:
        """The name of the thread that took it last."""
        found = (thread.name for thread in threading.enumerate() if thread.ident == self._holder)
        return next(found, "a thread that has ended")
