"""Turns: which thread of a process makes the program of its rank."""

from __future__ import annotations

import threading
from threading import get_ident
from typing import final

from maniple.process.error import RequestError

__all__: list[str] = []

HOLDER = "holder"


@final
class Turn:
    """The right to make the program of a rank: one thread's at a time, since launches are a program by their order.

        thread 1    launch, launch                  fence
        thread 2                    launch, read
        thread 3                           launch: refused, thread 2 still reads

    Taking it twice, and giving it twice, is as once: whoever had it before leaves it to who took it first.
    """

    __slots__ = ("_holder",)

    def __init__(self) -> None:
        self._holder: dict[str, int] = {}  # one entry or none: a lock would be left locked by an interrupt

    @property
    def mine(self) -> bool:
        """Whether this thread has it."""
        return self._holder.get(HOLDER) == get_ident()

    def take(self) -> None:
        """Take it for this thread.

        Raises:
            RequestError: another thread has it; says which.
        """
        me = get_ident()
        if self._holder.setdefault(HOLDER, me) != me:
            raise self.refusal()

    def give(self) -> None:
        """Give it back, where this thread has it."""
        if self._holder.get(HOLDER) == get_ident():
            self._holder.clear()

    def refusal(self) -> RequestError:
        """What is said to a thread that is refused."""
        holder = self._holder.get(HOLDER)
        found = (f"thread {thread.name!r}" for thread in threading.enumerate() if thread.ident == holder)
        return RequestError(
            f"this thread makes launches or waits for some while {next(found, 'another thread')} does; a rank runs one "
            "program, in one thread at a time: make both in one thread, one after the other, or start a process for "
            "each program"
        )
