"""Interrupts: the signals by which a user asks a launcher, or an agent, to end or to be suspended."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self, final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

__all__: list[str] = []

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@final
class Interrupts:
    """Counts the signals that ask for an end, inside it; only a process's main thread can be asked.

    Args:
        pass_on: passes a signal on to what must be suspended and woken with this process.
    """

    def __init__(self, pass_on: Callable[[int], object]) -> None:
        self._pass_on = pass_on
        self._count = 0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _ENDS:
                self._take_over(number, self._interrupt)
            self._take_over(signal.SIGTSTP, self._suspend)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def take(self) -> int:
        """Count those that came since this was last asked."""
        count, self._count = self._count, 0
        return count

    def _take_over(self, number: int, handler: object) -> None:
        before = signal.getsignal(number)
        if before is signal.SIG_IGN and number == signal.SIGHUP:
            return  # started by nohup
        signal.signal(number, handler)  # type: ignore[arg-type]
        self._stack.callback(signal.signal, number, before)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._count += 1

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        self._pass_on(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._pass_on(signal.SIGCONT)
