"""Inlets: the ends of streams that receive tiles, and the messages that wait for what they bring."""

from __future__ import annotations

import socket
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, final

import zmq

from maniple.process.error import RunError
from maniple.runtime.transports.proof import COUNT, DIGEST, STREAM_HEAD
from maniple.runtime.transports.tile_frames import MAX_PAYLOAD

if TYPE_CHECKING:
    from collections.abc import Callable, Container

__all__: list[str] = []

LEAST = 4 << 10
"""Bytes of the smallest tile that a stream carries: of shorter ones ZeroMQ puts several into one packet, and reads them
with one call."""
_AT_ONCE = 64
"""Tiles that are read before others have their turn."""
_MOST_HEADER = 4096
_GATHERED = 256 << 10
_NUMBERS, _COUNTS = 1 << 31, 1 << 32


class Message(NamedTuple):
    """A message in its turn.

    Args:
        header: its header.
        payload: its payload, if it has one.
        first: of one that came by the stream its number and header, which its seal is over; else empty.
        told: its seal.
    """

    header: bytes
    payload: memoryview | None
    first: bytes = b""
    told: bytes = b""


@final
class Inlet:
    """A rank's end of the stream from a peer, and the messages that wait for what it brings.

    Args:
        poller: is woken by the stream.
        rank: this rank.
        peer: the other.
        sealed: whether tiles have seals.
    """

    def __init__(self, poller: zmq.Poller, rank: int, peer: int, *, sealed: bool) -> None:
        self.since: float | None = None
        """Since when what is awaited has no stream to come by."""
        self._poller, self._rank, self._peer = poller, rank, peer
        self._link: socket.socket | None = None
        self._next: tuple[socket.socket, int] | None = None
        self._came = 0
        self._ended = True
        self._watched = False
        self._least = 1  # bytes that wake this rank
        self._waits = False  # what it brings next, for messages of ZeroMQ that come before it
        self._done = 0  # messages that have come by streams
        self._held: deque[tuple[int, Message]] = deque()  # those of ZeroMQ, each behind so many of streams
        self._seal = DIGEST * sealed
        self._head = memoryview(bytearray(STREAM_HEAD.size + self._seal))
        self._number = self._size = 0
        self._header: memoryview | None = None
        self._tile: memoryview | None = None
        self._left = len(self._head)  # bytes that are to come of what is read now

    def hold(self, streamed: int, message: Message) -> bool:
        """Have a message of ZeroMQ wait, if it has to; says whether it does.

        Args:
            streamed: how many messages by streams come before it.
            message: it.
        """
        if not self._held and streamed == self._done % _COUNTS:
            return False
        self._held.append((streamed, message))
        return True

    def tiles_before(self, streamed: int) -> int:
        """Count the tiles that come before a message of ZeroMQ, and are not handed over yet."""
        return (streamed - self._done) % _COUNTS + sum(each.payload is not None for _, each in self._held)

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

    def is_due(self, events: Container[object]) -> bool:
        """Say whether there may be something to read, or to say of what is awaited.

        Args:
            events: the descriptors that are ready.
        """
        ready = self._link is not None and self._link.fileno() in events
        return ready or self._waits or bool(self._held) or self.since is not None or self._next is not None

    def read(self, heard: int, room: Callable[[int, int], memoryview], now: float) -> list[Message]:
        """Read what has come; gives the messages whose turn it is.

        Args:
            heard: how many messages came by ZeroMQ.
            room: gives the bytes for a tile of a size, which comes behind so many of those that this gives.
            now: the time.

        Raises:
            RunError: bytes of tiles were lost, or are none.
        """
        found: list[Message] = []
        self._release(found)
        self._waits = False
        for _ in range(_AT_ONCE):
            if not self._read_tile(found, heard, room):
                break
        self._gather()
        self._watch(wanted=not self._ended and not self._waits)
        awaits = self._held or self._tile is not None or self._header is not None or self._left < len(self._head)
        if not awaits or (not self._ended and self._next is None):
            self.since = None
        elif self.since is None:
            self.since = now
        return found

    def close(self) -> None:
        """End it."""
        self._watch(wanted=False)
        for link in (self._link, None if self._next is None else self._next[0]):
            if link is not None:
                link.close()

    def _read_tile(self, found: list[Message], heard: int, room: Callable[[int, int], memoryview]) -> bool:
        """Read on at a tile, as `read` does; says whether it is whole, and handed over."""
        if self._tile is None and self._read_head():
            lacks = (self._number - self._done - heard) % _NUMBERS
            self._waits = 0 < lacks < _NUMBERS // 2
            if not self._waits:
                self._tile = room(self._size, sum(each.payload is not None for each in found))
                self._left = self._size
        if self._tile is None or not self._fill(self._tile):
            return False
        header = b"" if self._header is None else bytes(self._header)
        told = bytes(self._head[STREAM_HEAD.size :])
        found.append(Message(header, self._tile, COUNT.pack(self._number) + header, told))
        self._done += 1
        self._header, self._tile, self._left = None, None, len(self._head)
        self._release(found)
        return True

    def _release(self, found: list[Message]) -> None:
        while self._held and self._held[0][0] == self._done % _COUNTS:
            found.append(self._held.popleft()[1])

    def _read_head(self) -> bool:
        """Read what comes before a tile; says whether all of it is there.

        Raises:
            RunError: there is no such tile.
        """
        if self._header is None:
            if not self._fill(self._head):
                return False
            self._number, length, self._size = STREAM_HEAD.unpack_from(self._head)
            if self._number >= _NUMBERS or length > _MOST_HEADER or not LEAST <= self._size <= MAX_PAYLOAD:
                raise RunError(
                    f"rank {self._rank}: rank {self._peer} sends a tile of {self._size} bytes by a stream; the wire is "
                    "broken"
                )
            self._header = memoryview(bytearray(length))
            self._left = length
        return self._fill(self._header)

    def _fill(self, place: memoryview) -> bool:
        """Read what is left of some bytes; says whether they are whole."""
        while self._left and self._link is not None and not self._ended:
            try:
                count = self._link.recv_into(place[place.nbytes - self._left :])
            except BlockingIOError:
                if self._next is None or self._next[1] != self._came:
                    return False
                count = 0  # all that it carried is here, and nobody sends by it any more
            except OSError:
                count = 0
            self._left -= count
            self._came += count
            if not count:
                self._change(ended=True)
        return not self._left

    def _gather(self) -> None:
        """Be woken by what is left of a tile, or a good part of it, and not by each packet."""
        least = min(self._left, _GATHERED)
        if least != self._least and self._link is not None and not self._ended:
            self._link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)
            self._least = least

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
                "connection between them broke"
            )
        self._watch(wanted=False)
        if self._link is not None:
            self._link.close()
        self._link, self._next, self._ended, self._least = link, None, False, 1
        self._watch(wanted=True)

    def _watch(self, *, wanted: bool) -> None:
        if self._link is None or wanted == self._watched:
            return
        self._watched = wanted
        if wanted:
            self._poller.register(self._link.fileno(), zmq.POLLIN)
        else:
            self._poller.unregister(self._link.fileno())
