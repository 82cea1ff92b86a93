"""Interruption: Ctrl-C held back while something is committed that must not be left half done."""

from __future__ import annotations

import signal
import threading
from time import monotonic
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from types import FrameType, TracebackType

__all__: list[str] = []

# To put a handler in place takes longer than to start a run, so it stays, and is looked after this often.
LOOK_S = 0.1


@final
class Hold:
    """The block inside which SIGINT is held back. Off the main thread, which alone is interrupted, it does nothing.

    From the first block on it handles SIGINT in place of the handler that the program has put there, which it calls:
    at once, or when the outermost block has ended. Where the program has put none it leaves things as they are.
    """

    def __init__(self) -> None:
        self._main = threading.main_thread().ident
        self._depth = 0
        self._held: tuple[int, FrameType | None] | None = None
        self._before: object = None
        self._looked = -LOOK_S

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal, or hold it."""
        if self._depth:
            self._held = number, frame
        elif callable(self._before):
            self._before(number, frame)

    def __enter__(self) -> None:
        """Hold SIGINT back from here on."""
        if threading.get_ident() != self._main:
            return
        self._depth += 1
        now = monotonic()
        if now - self._looked >= LOOK_S:
            self._looked = now
            present = signal.getsignal(signal.SIGINT)
            if present is not self and callable(present):
                self._before = present
                signal.signal(signal.SIGINT, self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let through what was held back."""
        if threading.get_ident() != self._main:
            return
        self._depth -= 1
        if not self._depth and self._held is not None:
            held, self._held = self._held, None
            self(*held)


_hold = Hold()


def uninterrupted() -> Hold:
    """Hold back SIGINT until the block has ended; the block must be short and must not wait for anything."""
    return _hold
