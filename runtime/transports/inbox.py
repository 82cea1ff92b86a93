"""Inboxes: the half of a transport that waits, for one whose threads put what arrives into a queue."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from maniple.process.error import RunError
from maniple.runtime.transports.transport import LOOPBACK, Delivery, Transport

if TYPE_CHECKING:
    from typing import BinaryIO

__all__: list[str] = []


class InboxTransport(Transport):
    """A transport to which threads of its own `deliver`; what is left to complete is `way` and `send`.

    Args:
        rank: see `Transport`.
        size: likewise.
        token: likewise.
        interface: likewise.
    """

    def __init__(self, rank: int, size: int, token: str, interface: str = LOOPBACK) -> None:
        super().__init__(rank, size, token, interface)
        self.closing = ExitStack()
        """What is let go of when the transport is closed, the latest first."""
        self._came: SimpleQueue[Delivery | None] = SimpleQueue()
        self._closed = False
        self._lost = False

    def deliver(self, delivery: Delivery) -> None:
        """Hand over what arrived; from any thread, those of one peer in their order."""
        self._came.put(delivery)

    def read_whole(self, stream: BinaryIO, size: int) -> bytes:
        """Read a part of a message; where the stream ends before it, polls say from now on that messages were lost.

        Args:
            stream: blocks until so much is there, or it has ended.
            size: bytes.

        Raises:
            EOFError: the stream has ended.
        """
        try:
            found = stream.read(size)
        except ConnectionError:
            found = b""
        if len(found) < size:
            self._lost = True
            self.wake()
            raise EOFError
        return found

    def check_peer(self, peer: int) -> None:
        """Refuse a receiver that is no other rank, and any once the transport is closed.

        Raises:
            RunError: says which.
        """
        super().check_peer(peer)
        self._check_open()

    def poll(self, timeout_s: float | None) -> list[Delivery]:
        """See `Transport.poll`."""
        self._check_open()
        found: list[Delivery | None] = []
        with suppress(Empty):
            found.append(self._came.get(timeout=timeout_s))
            while True:
                found.append(self._came.get_nowait())
        self._check_open()
        return [delivery for delivery in found if delivery is not None]

    def wake(self) -> None:
        """See `Transport.wake`."""
        self._came.put(None)

    def close(self) -> None:
        """See `Transport.close`."""
        self._closed = True
        self.wake()
        self.closing.close()

    def _check_open(self) -> None:
        if self._closed:
            raise RunError(f"rank {self.rank}: the transport is closed")
        if self._lost:
            raise RunError(
                f"rank {self.rank}: expected the rest of a message, got the end of its stream; messages were lost, and "
                "the run cannot go on: see the log of the rank that ended first"
            )
