"""Interruption: Ctrl-C held back while something is committed that must not be left half done."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

__all__: list[str] = []


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back SIGINT until the block has ended. Off the main thread, which alone is interrupted, it does nothing.

    The block must be short and must not wait for anything.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[tuple[int, FrameType | None]] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: held.append((number, frame)))
    try:
        yield
    finally:
        # None: a handler that Python did not install, and so cannot put back or call.
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)
        if held and callable(before):
            before(*held[0])
