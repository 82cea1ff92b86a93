"""Inlets: the ends of streams that receive tiles, and the messages that wait for what they bring."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, final

import zmq

from maniple.process.error import RunError

if TYPE_CHECKING:
    import socket

__all__: list[str] = []


@final
class Held:
    """A message that waits for the bytes of its tile, or for those of one before it.

    Args:
        first: its number and header.
        tile: its payload, if it has one.
        left: how many bytes of the payload are still to come by the stream.
        told: the seal of a tile that comes by the stream, if it has one.
    """

    __slots__ = ("first", "left", "tile", "told")

    def __init__(self, first: bytes, tile: memoryview | None, left: int = 0, told: bytes = b"") -> None:
        self.first, self.tile, self.left, self.told = first, tile, left, told


@final
class Inlet:
    """A rank's end of the stream from a peer, and the messages that wait for what it brings.

    Args:
        poller: is woken by the stream.
        rank: this rank.
        peer: the other.
    """

    def __init__(self, poller: zmq.Poller, rank: int, peer: int) -> None:
        self.held: deque[Held] = deque()
        self.since: float | None = None
        """Since when what is awaited has no stream to come by."""
        self._poller, self._rank, self._peer = poller, rank, peer
        self._link: socket.socket | None = None
        self._next: tuple[socket.socket, int] | None = None
        self._came = 0
        self._ended = True
        self._watched = False

    def follow(self, link: socket.socket, position: int) -> None:
        """Take a connection that has proved itself, to be read from once the one before has ended.

        Args:
            link: the connection.
            position: how many bytes those before it have carried.
        """
        if self._next is not None:
            self._next[0].close()
        self._next = link, position
        self._change(ended=self._link is None)

    def read(self, found: list[Held], now: float) -> None:
        """Read what has come of the tile that is awaited; gives the messages that wait no longer.

        Raises:
            RunError: bytes of tiles were lost.
        """
        held = self.held
        while held:
            head = held[0]
            if head.left and not self._fill(head):
                break
            found.append(held.popleft())
            if head.tile is not None and held and held[0].left:
                break  # whoever polls goes on with this one first
        awaits = bool(held and held[0].left)
        reads = awaits and not self._ended
        self._watch(wanted=reads)
        if not awaits or (reads and self._next is None):
            self.since = None
        elif self.since is None:
            self.since = now

    def close(self) -> None:
        """End it."""
        self._watch(wanted=False)
        for link in (self._link, None if self._next is None else self._next[0]):
            if link is not None:
                link.close()

    def _fill(self, head: Held) -> bool:
        """Read bytes of a tile; says whether it is whole."""
        tile = head.tile
        while self._link is not None and tile is not None and head.left:
            try:
                count = 0 if self._ended else self._link.recv_into(tile[tile.nbytes - head.left :])
            except BlockingIOError:
                if self._next is None or self._next[1] != self._came:
                    return False
                count = 0  # all that it carried is here, and nobody sends by it any more
            except OSError:
                count = 0
            if count:
                head.left -= count
                self._came += count
                continue
            self._change(ended=True)
            if self._ended:
                return False
        return not head.left

    def _change(self, *, ended: bool) -> None:
        """Go on with the next connection where the one before has ended.

        Raises:
            RunError: the one before brought less than it carried.
        """
        self._ended |= ended
        if not self._ended or self._next is None:
            return
        link, position = self._next
        if position != self._came:
            raise RunError(
                f"rank {self._rank}: {position - self._came} bytes of tiles of rank {self._peer} were lost; the "
                f"connection between them broke"
            )
        self._watch(wanted=False)
        if self._link is not None:
            self._link.close()
        self._link, self._next, self._ended = link, None, False

    def _watch(self, *, wanted: bool) -> None:
        if self._link is None or wanted == self._watched:
            return
        self._watched = wanted
        if wanted:
            self._poller.register(self._link.fileno(), zmq.POLLIN)
        else:
            self._poller.unregister(self._link.fileno())
