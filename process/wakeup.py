"""Wake-ups: how any thread wakes one that sleeps on sockets."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import final

__all__: list[str] = []


@final
class Wakeup:
    """Wakes one sleeper that waits for its file descriptor among others.

    The sleeper calls `arm` just before it sleeps and `disarm` just after, then looks for work. Whoever makes work does
    so first and rings then. A ring while the sleeper is awake costs no system call, and is not lost:

        ringer   work made, rung = True, asleep? -> byte
        sleeper  asleep = True, rung? -> do not sleep ... asleep = rung = False, look for work
    """

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._rung = False
        self._asleep = False

    def fileno(self) -> int:
        """Give the descriptor that becomes readable."""
        return self._receiver.fileno()

    def ring(self) -> None:
        """Wake the sleeper; from any thread."""
        self._rung = True
        if self._asleep:
            self._asleep = False
            # A full buffer holds a byte that wakes it, and after close nobody sleeps.
            with suppress(OSError):
                self._sender.send(b"\0")

    def arm(self) -> bool:
        """Say that sleep comes next; False when it must not, since it was woken already."""
        self._asleep = True
        return not self._rung

    def disarm(self, *, readable: bool) -> None:
        """Say that sleep is over.

        Args:
            readable: whether the descriptor was.
        """
        self._asleep = False
        self._rung = False
        if readable:
            with suppress(BlockingIOError):
                self._receiver.recv(4096)

    def close(self) -> None:
        """Free the descriptors."""
        self._receiver.close()
        self._sender.close()
