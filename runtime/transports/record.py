"""Records that ranks hand to each other beside messages: in gathers, in shared memory, in pipes.

A record is one msgpack value. What reads it says what it expects, item by item; anything else is a `ProtocolError` with
the place, as `maniple.runtime.transports.message` gives for messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast, final

import msgpack

from maniple.runtime.transports.message import MAX_INTEGER, MAX_MESSAGE, MAX_STRING, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True)
class Field:
    """One value of a record, with its place.

    Args:
        place: whose record it is, and where inside; for messages.
        value: what was unpacked.
    """

    place: str
    value: object

    def integer(self, least: int = 0) -> int:
        """The value, an integer of 63 bits that is not below another.

        Raises:
            ProtocolError: it is none.
        """
        if type(self.value) is not int or not least <= self.value <= MAX_INTEGER:
            raise self._problem(f"an integer of at least {least} and 63 bits")
        return self.value

    def optional_integer(self) -> int | None:
        """The value, an integer from 0 or nothing.

        Raises:
            ProtocolError: it is neither.
        """
        return None if self.value is None else self.integer()

    def string(self) -> str:
        """The value, a text that a message may carry.

        Raises:
            ProtocolError: it is none.
        """
        if type(self.value) is not str or len(self.value) > MAX_STRING:
            raise self._problem(f"a string of at most {MAX_STRING} characters")
        return self.value

    def items(self, count: int | None = None) -> tuple[Field, ...]:
        """The items of a list, of so many if that is said.

        Raises:
            ProtocolError: it is no such list.
        """
        if not isinstance(self.value, list) or (count is not None and len(self.value) != count):
            raise self._problem("a list" if count is None else f"a list of {count} items")
        return tuple(Field(f"{self.place}[{index}]", value) for index, value in enumerate(self.value))

    def integers(self, least: int = 0, count: int | None = None) -> tuple[int, ...]:
        """The items of a list of integers.

        Raises:
            ProtocolError: it is no such list.
        """
        return tuple(item.integer(least) for item in self.items(count))

    def _problem(self, expected: str) -> ProtocolError:
        shown = repr(self.value)
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        return ProtocolError(f"{self.place}: expected {expected}, got {shown}")


def pack(value: object) -> bytes:
    """The bytes of a record."""
    return cast("bytes", msgpack.packb(value))


def unpack(data: bytes, place: str) -> Field:
    """The record that some bytes are.

    Args:
        data: the bytes.
        place: whose they are.

    Raises:
        ProtocolError: they are none, or too many.
    """
    if len(data) > MAX_MESSAGE:
        raise ProtocolError(f"{place}: expected at most {MAX_MESSAGE} bytes, got {len(data)}")
    try:
        return Field(place, msgpack.unpackb(data, strict_map_key=True, max_ext_len=0))
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise ProtocolError(f"{place}: expected a msgpack value, got bytes that are none ({error})") from error


def parts(gathered: Sequence[bytes], what: str) -> list[Field]:
    """The records of all ranks' parts of an exchange, in rank order.

    Raises:
        ProtocolError: a part is none; names the rank.
    """
    return [unpack(part, f"{what} of rank {rank}") for rank, part in enumerate(gathered)]
