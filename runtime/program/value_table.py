"""Value tables: the numbers that a sequence of launches is given by value, laid out one after another.

Compiled bodies take them from there, and what ranks compare of a run is a digest of the same bytes.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from itertools import chain, compress
from struct import Struct
from struct import error as PackingError
from typing import TYPE_CHECKING

from maniple.process.digest import digest

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []

WORD = 8
FORMATS = {int: "q", bool: "q", float: "d"}
"""The types of values that are numbers, and how they are packed."""

Given = tuple[object, ...]
"""What one launch is given by value."""


class ValueTable:
    """How the numbers of a sequence's launches are laid out, a word each, where compiled bodies find those of a run.

    Launches that are given anything else are left out. There is room for two runs, which may be under way together.

    Args:
        values: those of one run, by launch; others fit that have the same types.
    """

    def __init__(self, values: Sequence[Given]) -> None:
        self._numeric = [FORMATS.keys() >= {*map(type, given)} for given in values]
        self._whole = all(self._numeric)
        self.offsets = array("q")
        """By launch where its numbers begin, in bytes; -1 where it is left out."""
        end = 0
        for numeric, given in zip(self._numeric, values, strict=True):
            self.offsets.append(end if numeric else -1)
            end += WORD * len(given) * numeric
        self._types = list(map(type, self._flat(values)))
        self._packer = Struct("=" + "".join(FORMATS[kind] for kind in self._types))
        self._said = digest([kind.__name__ for kind in self._types])
        self._rooms = tuple(array("q", bytes(max(WORD, end))) for _ in range(2))

    def _flat(self, values: Sequence[Given]) -> list[object]:
        return list(chain.from_iterable(values if self._whole else compress(values, self._numeric)))

    def pack(self, values: Sequence[Given]) -> bytes | None:
        """Lay out a run; None where its values have other types, or one is a whole number of more than 64 bits."""
        flat = self._flat(values)
        if list(map(type, flat)) != self._types:
            return None
        try:
            return self._packer.pack(*flat)
        except PackingError:
            return None

    def place(self, packed: bytes, turn: int) -> int:
        """Put a run where compiled bodies find it, and give its address; the run before the last has ended."""
        room = self._rooms[turn % 2]
        memoryview(room).cast("B")[: len(packed)] = packed
        return room.buffer_info()[0]

    def digest(self, values: Sequence[Given], packed: bytes | None) -> bytes:
        """Give what ranks compare of a run; a run of the same values and types has the same."""
        if packed is None or not self._whole:
            return digest(values)
        return blake2b(packed, digest_size=16, key=self._said).digest()
