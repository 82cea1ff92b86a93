"""Block space: where blocks of consecutive entries lie in a table, and come and go."""

from __future__ import annotations

__all__: list[str] = []


class BlockSpace:
    """The used and the free places of a table: a buddy system (K. C. Knowlton, A fast storage allocator, CACM 1965).

    Blocks have powers of two for sizes. A larger free one is halved until it fits, and two free halves are one again:

        take(2), take(1), take(2)   aab.cc      a block begins at a multiple of its size
        give(a), give(b)            ....cc      free: one block of 4
        take(3)                     ddd.cc
    """

    def __init__(self) -> None:
        self.used = 0
        """The places from here on were never used."""
        self._free: list[dict[int, None]] = []
        """The free blocks of each size, by exponent."""

    def take(self, count: int) -> int:
        """Give the first of so many consecutive places."""
        wanted = _exponent(count)
        for exponent in range(wanted, len(self._free)):
            if self._free[exponent]:
                first, _ = self._free[exponent].popitem()
                for half in range(exponent - 1, wanted - 1, -1):
                    self._free[half][first + (1 << half)] = None
                return first
        return self._fresh(wanted)

    def _fresh(self, wanted: int) -> int:
        """Use what was never used; what is left out, for a block begins at a multiple of its size, is free."""
        self._free += [{} for _ in range(wanted + 1 - len(self._free))]
        while self.used % (1 << wanted):
            exponent = (self.used & -self.used).bit_length() - 1
            self._free[exponent][self.used] = None
            self.used += 1 << exponent
        self.used += 1 << wanted
        return self.used - (1 << wanted)

    def give(self, first: int, count: int) -> None:
        """Give places back."""
        exponent = _exponent(count)
        while (buddy := first ^ (1 << exponent)) in self._free[exponent]:
            del self._free[exponent][buddy]
            first, exponent = min(first, buddy), exponent + 1
            if exponent == len(self._free):
                self._free.append({})
        self._free[exponent][first] = None


def _exponent(count: int) -> int:
    return max(0, count - 1).bit_length()
