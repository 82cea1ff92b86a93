"""Interruption: Ctrl-C held back while something is committed that must not be left half done.

Between blocks SIGINT is handled by what the program has put there, and by nothing else: it may chain handlers, and
asyncio looks whether Python's own is in place. So every block puts its handler in place and takes it away:

    SIGINT comes                      is handled by    and so
    before the handler is in place    the program's    the block does not begin, if that raises
    then                              this one         the block goes on, and the program's is called after it
    when it has been taken away       the program's    the block has ended
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any, final

from maniple.process.python_internals import handler_of, set_handler

if TYPE_CHECKING:
    from types import FrameType, TracebackType

__all__: list[str] = []

_SIGINT = int(signal.SIGINT)


@final
class Hold:
    """A block inside which SIGINT is held back; off the main thread, which alone is interrupted, it does nothing.

    It does nothing either where the program has left SIGINT to the system, or to a handler that is not Python's.
    """

    __slots__ = ("_before", "_held")

    def __init__(self) -> None:
        self._before: Any = None
        self._held: tuple[int, FrameType | None] | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Hold the signal."""
        self._held = number, frame

    def __enter__(self) -> None:
        """Hold SIGINT back from here on."""
        if threading.get_ident() == threading.main_thread().ident and callable(handler_of(_SIGINT)):
            self._before = set_handler(_SIGINT, self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the program's handler have what was held back, once."""
        if self._before is None:
            return
        set_handler(_SIGINT, self._before)
        if self._held is None:
            return
        if callable(self._before):
            self._before(*self._held)
        else:  # the program's handler came just before the block, and gave SIGINT back to the system
            signal.raise_signal(signal.SIGINT)


def hold_interrupts() -> Hold:
    """Hold back SIGINT until the block has ended; the block must be short and must not wait for anything."""
    return Hold()
