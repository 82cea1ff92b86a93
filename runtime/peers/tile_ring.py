"""Rings: the places of tiles on their way in a segment of memory, taken and given back in one order.

A place is one stretch, so a tile that does not fit before the end goes to the beginning, and what is left there stays
unused for a turn:

    take 4, 4      |aaaabbbb..|      the next of 4 has no room
    give a         |....bbbb..|
    take 4         |ccccbbbb..|      not the 2 behind b
    give b         |cccc......|
"""

from __future__ import annotations

from collections import deque
from typing import final

__all__: list[str] = []

ALIGNMENT = 256
"""Bytes at whose multiples places begin, so that a row of any kind of number may lie there, and be moved quickly."""


def rounded(size: int) -> int:
    """The bytes that a tile takes of a ring."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@final
class TileRing:
    """The places of a segment.

    Args:
        size: bytes of the segment.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._held: deque[tuple[int, int]] = deque()

    @property
    def held(self) -> int:
        """How many places are taken."""
        return len(self._held)

    def take(self, size: int) -> int | None:
        """Take a place for a tile, and give where it begins; None where there is no room before others are given back.

        Args:
            size: of the tile, above 0.
        """
        need, start = rounded(size), 0
        if self._held:
            first, end = self._held[0][0], self._held[-1][1]
            if end > first and self.size - end < need:
                start, room = 0, first  # to the beginning
            else:
                start, room = end, (self.size if end > first else first) - end
        else:
            room = self.size
        if room < need:
            return None
        self._held.append((start, start + need))
        return start

    def give(self) -> None:
        """Give back the place that was taken first."""
        self._held.popleft()


@final
class Untold:
    """The places of a ring that its receiver is through with, while the sender has not heard of it.

    The sender takes them for held. Were it to wait for room that there is, nothing more would happen: so it must be
    told before what it may still believe free is too little for its next tile, wherever in the ring that lies.

    Args:
        size: bytes of the segment.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._first = self._end = -1

    def add(self, start: int, size: int) -> None:
        """Be through with a place, the next in the order in which they were taken."""
        if self._first < 0:
            self._first = start
        self._end = start + rounded(size)

    def clear(self) -> None:
        """Have told the sender."""
        self._first = self._end = -1

    def may_lack(self, size: int) -> bool:
        """Whether a sender that has not been told may have no room for a tile though nothing else is on its way."""
        if self._first < 0:
            return False
        held = self._end - self._first if self._end > self._first else self.size - self._first + self._end
        # What is free is one stretch around the end, so the larger part of it is at least half.
        return self.size - held < 2 * rounded(size)
