"""Peer queues: what a copy engine knows of one other rank, and what it has to tell it.

Both ends of a directed pair hold the same queue of pushes. Releases, acknowledgements and places given back are three
counters that ride on every message; alone they travel only when the other end may wait for nothing else.

A few bytes may go before they are released: then no release has to cross the wire first. Such a tile is *early*; the
receiver keeps it until its destination is free. Both ends know how many bytes went beyond the releases that the sender
has heard of, and these stay within a bound:

    sender     released to it: 3     sends 0 1 2, and 3 and 4 early          heard: 5; may send early again
    receiver   released: 3           lands 0 1 2, keeps 3, keeps 4           releases 3 and 4, and lands them
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING, final

from maniple.process.error import RunError

if TYPE_CHECKING:
    from maniple.runtime.storage.push import Incoming, Outgoing

__all__: list[str] = []

HEADER = struct.Struct("<3Q")  # pushes released, bytes landed, places of rings given back
# A peer that may still make this many pushes is not told of further releases yet: they ride on the next data frame.
SLACK = 4


@final
class Ahead:
    """The bytes of the pushes beyond the releases that a sender has heard of, as either end counts them.

    Args:
        most: bound of them.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.size = 0
        self._sizes: deque[int] = deque()

    def add(self, size: int) -> None:
        """Count a push that goes beyond."""
        self._sizes.append(size)
        self.size += size

    def hear(self, gone: int, released: int) -> None:
        """Take note that so many pushes were released, of which so many have gone."""
        while self._sizes and gone - len(self._sizes) < released:
            self.size -= self._sizes.popleft()


@final
class PeerQueue:
    """The queues of pushes each way, and the counts both sides tell.

    Args:
        early_bytes: bound of the bytes that go either way before they are released.
    """

    def __init__(self, early_bytes: int) -> None:
        self.outgoing: deque[Outgoing] = deque()
        self.incoming: deque[Incoming] = deque()  # not yet received
        self.ungranted: deque[Incoming] = deque()  # not yet released: those that are kept, and a suffix of the above
        self.sent = 0  # pushes sent
        self.allowed = 0  # pushes that the peer has released
        self.sent_bytes = 0
        self.landed_bytes = 0  # of ours, by the peer's word
        self.granted = 0  # pushes that we have released
        self.received = 0
        self.received_bytes = 0
        self._told: tuple[int, int] = (0, 0)  # what the peer knows of granted and received_bytes
        self._out, self._in = Ahead(early_bytes), Ahead(early_bytes)
        self._kept: deque[memoryview] = deque()

    def may_send(self, size: int, *, early: bool) -> bool:
        """Say whether the head of the queue, of so many bytes, is released, or may go early."""
        return self.sent < self.allowed or (early and self._out.size + size <= self._out.most)

    def send(self, size: int) -> None:
        """Take note that the head of the queue goes."""
        if self.sent >= self.allowed:
            self._out.add(size)
        self.sent += 1
        self.sent_bytes += size

    def is_free(self, behind: int) -> bool:
        """Say whether the destination of a push that arrives behind so many others is released."""
        return behind < self.granted - self.received

    def line_up(self, arrival: Incoming) -> None:
        """Append a push to receive, which may have come already.

        Raises:
            RunError: what came is of another size.
        """
        if len(self._kept) > len(self.ungranted):
            _check_size(arrival, self._kept[len(self.ungranted)].nbytes)
        else:
            self.incoming.append(arrival)
        self.ungranted.append(arrival)

    def take(self, peer: int, payload: memoryview | None) -> Incoming | None:
        """Take note of a push that came; gives what it is, None where it is kept until that is known and released.

        Args:
            peer: the other rank.
            payload: its bytes; None where they lie in memory that both have open.

        Raises:
            RunError: it is none that is awaited, or should have waited for its release.
        """
        first, free = self.incoming[0] if self.incoming else None, self.is_free(0)
        if first is not None and payload is not None:
            _check_size(first, payload.nbytes)
        size = first.size if first is not None else 0 if payload is None else payload.nbytes
        if first is None and (payload is None or self._in.size + size > self._in.most):
            raise RunError(f"rank {peer} sent a tile of {size} bytes; expected no push")
        if self.received >= self._told[0]:
            self._in.add(size)
        if not free and (payload is None or self._in.size > self._in.most):
            raise RunError(f"rank {peer} sent a tile before its destination was released")
        self.received += 1
        if first is not None:
            self.incoming.popleft()
        if free or payload is None:
            return first
        self._kept.append(payload)
        return None

    def grant(self) -> list[tuple[Incoming, memoryview]]:
        """Release the destinations of pushes, as far as all before them are released; gives those that came early."""
        early: list[tuple[Incoming, memoryview]] = []
        while self.ungranted and self.ungranted[0].released:
            arrival = self.ungranted.popleft()
            arrival.released = False
            self.granted += 1
            if self._kept:
                early.append((arrival, self._kept.popleft()))
        return early

    def hear(self, header: bytes) -> int:
        """Take in what the peer tells; gives how many places of rings it has given back."""
        self.allowed, self.landed_bytes, given = HEADER.unpack_from(header)
        self._out.hear(self.sent, self.allowed)
        return int(given)

    def header(self, given: int) -> bytes:
        """Tell the peer all counts.

        Args:
            given: places of its rings that were given back.
        """
        self._told = (self.granted, self.received_bytes)
        self._in.hear(self.received, self.granted)
        return HEADER.pack(self.granted, self.received_bytes, given)

    def must_tell(self, credit_bytes: int) -> bool:
        """Whether the peer may be waiting for releases or acknowledgements.

        Args:
            credit_bytes: bound of the bytes in flight.
        """
        granted, landed = self._told
        untold = self.received_bytes - landed
        size = self.incoming[0].size if self.incoming else 0
        # What may go early waits for no release; but it is told in time, for what comes after it may. A tile through
        # memory that both have open never goes early.
        waits = self._in.size + size > self._in.most or 2 * self._in.size > self._in.most
        waits |= bool(self.incoming) and self.incoming[0].take is not None
        starved = self.granted > granted and granted - self.received <= SLACK and waits
        # All that the peer has sent may have landed while its next push is too large for what it knows of that.
        stuck = untold and self.incoming and untold + size > credit_bytes
        return bool(starved or stuck or untold > credit_bytes // 4)


def _check_size(arrival: Incoming, size: int) -> None:
    if size != arrival.size:
        raise RunError(f"rank {arrival.peer} sent a tile of {size} bytes; expected {arrival.size} bytes")
