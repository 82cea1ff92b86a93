"""Tees: one output stream of a rank, copied to the launcher's own and to the rank's log file."""

from __future__ import annotations

import os
import pty
import termios
import threading
from contextlib import suppress
from typing import IO, final

__all__: list[str] = []

_CHUNK = 1 << 16


@final
class Tee:
    """A stream that a child writes to. Where the launcher's stream is a terminal, the child sees one too.

    Args:
        target: file descriptor of the launcher's own stream.
        log: file to copy to; shared by the streams of a rank.
    """

    def __init__(self, target: int, log: IO[bytes]) -> None:
        self._target = target
        self._log = log
        self._reader, self.child = _terminal(target) if os.isatty(target) else os.pipe()
        self._copied = 0
        self._writing = False
        self._thread = threading.Thread(target=self._copy, name=f"output {target}", daemon=True)

    def start(self) -> None:
        """Copy from now on; the child has been started with `child` as its stream."""
        os.close(self.child)
        self._thread.start()

    def finish(self, idle_s: float) -> None:
        """Wait until all of it has been copied.

        A slow reader is waited for; a child's child that holds the stream open and says nothing is not.

        Args:
            idle_s: how long nothing may come.
        """
        while self._thread.is_alive():
            before = self._copied
            self._thread.join(idle_s)
            if not self._writing and self._copied == before:
                return

    def _copy(self) -> None:
        shown = True
        while True:
            try:
                chunk = os.read(self._reader, _CHUNK)
            except OSError:  # a terminal whose other side is closed
                chunk = b""
            if not chunk:
                break
            with suppress(OSError):  # a full disk must not stop the run
                self._log.write(chunk)
            self._writing = True
            shown = shown and _write(self._target, chunk)
            self._writing = False
            self._copied += len(chunk)
        os.close(self._reader)


def _write(target: int, chunk: bytes) -> bool:
    """Write all of a chunk; False once nobody reads the stream any more."""
    view = memoryview(chunk)
    try:
        while view:
            view = view[os.write(target, view) :]
    except OSError:
        return False
    return True


def _terminal(target: int) -> tuple[int, int]:
    """Open a terminal of the size of another, which passes bytes on unchanged."""
    reader, child = pty.openpty()
    attributes = termios.tcgetattr(child)
    attributes[1] &= ~termios.OPOST  # the user's terminal turns newlines into line ends
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(child, termios.TCSANOW, attributes)
    with suppress(termios.error, OSError):
        termios.tcsetwinsize(child, termios.tcgetwinsize(target))
    return reader, child
