"""Peer queues: what a copy engine knows of one other rank, and what it has to tell it.

Both ends of a directed pair hold the same queue of pushes. Releases, acknowledgements and places given back are three
counters that ride on every message; alone they travel only when the other end may wait for nothing else.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from maniple.runtime.storage.push import Incoming, Outgoing

__all__: list[str] = []

HEADER = struct.Struct("<3Q")  # pushes released, bytes landed, places of rings given back
# A peer that may still make this many pushes is not told of further releases yet: they ride on the next data frame.
SLACK = 4


@final
class PeerQueue:
    """The queues of pushes each way, and the counts both sides tell."""

    def __init__(self) -> None:
        self.outgoing: deque[Outgoing] = deque()
        self.incoming: deque[Incoming] = deque()  # not yet received
        self.ungranted: deque[Incoming] = deque()  # not yet released, a suffix of the above
        self.sent = 0  # pushes sent
        self.allowed = 0  # pushes that the peer has released
        self.sent_bytes = 0
        self.landed_bytes = 0  # of ours, by the peer's word
        self.granted = 0  # pushes that we have released
        self.received = 0
        self.received_bytes = 0
        self._told: tuple[int, int] = (0, 0)  # what the peer knows of granted and received_bytes

    def grant(self) -> None:
        """Release the destinations of pushes, as far as all before them are released."""
        while self.ungranted and self.ungranted[0].released:
            self.ungranted.popleft().released = False
            self.granted += 1

    def hear(self, header: bytes) -> int:
        """Take in what the peer tells; gives how many places of rings it has given back."""
        self.allowed, self.landed_bytes, given = HEADER.unpack_from(header)
        return int(given)

    def header(self, given: int) -> bytes:
        """Tell the peer all counts.

        Args:
            given: places of its rings that were given back.
        """
        self._told = (self.granted, self.received_bytes)
        return HEADER.pack(self.granted, self.received_bytes, given)

    def must_tell(self, credit_bytes: int) -> bool:
        """Whether the peer may be waiting for releases or acknowledgements.

        Args:
            credit_bytes: bound of the bytes in flight.
        """
        granted, landed = self._told
        untold = self.received_bytes - landed
        starved = self.granted > granted and granted - self.received <= SLACK
        # All that the peer has sent may have landed while its next push is too large for what it knows of that.
        stuck = untold and self.incoming and untold + self.incoming[0].size > credit_bytes
        return bool(starved or stuck or untold > credit_bytes // 4)
