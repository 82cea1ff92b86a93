"""Messages: what ranks and the launcher tell each other, and their form as bytes.

A message is one msgpack list: the schema's version, the record's number, its fields in order. Bytes from outside
become a record of a known type with fields of the right types and bounded sizes, or a `ProtocolError`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeAlias, cast, final

import msgpack

from maniple.regions.error import RunError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []

SCHEMA = 1
"""Version of this schema; two ends of different versions refuse each other."""
PROTOCOL = f"maniple/{SCHEMA}"
MAX_MESSAGE = 64 << 20
MAX_STRING = 64 << 10
MAX_ITEMS = 64 << 10
MAX_INTEGER = 2**63 - 1


class ProtocolError(RunError):
    """Bytes that are no message, or a record that cannot become one."""


@final
@dataclass(frozen=True, slots=True)
class Hello:
    """A rank introduces itself.

    Args:
        rank: its rank.
        node: its node.
        pid: its process.
        host: the name of its host.
        world_size: the number of ranks that it was told of.
        data_endpoint: where others push tiles to it.
        version: its protocol.
        token: the run's secret.
    """

    rank: int
    node: int
    pid: int
    host: str
    world_size: int
    data_endpoint: str
    version: str
    token: str


@final
@dataclass(frozen=True, slots=True)
class Welcome:
    """All ranks are there: where each takes tiles, and its host, in rank order."""

    endpoints: tuple[str, ...]
    hosts: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class Refused:
    """A rank may not take part."""

    reason: str


@final
@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life, of a rank or (as rank 0) of the launcher."""

    rank: int
    sequence: int


@final
@dataclass(frozen=True, slots=True)
class Call:
    """A call of a rank's program.

    Args:
        sequence: its number, from 1.
        digest: 16 bytes that stand for this call and all before.
        inputs: bytes that stand for this call's inputs alone; empty where it has none.
        text: what to call it.
    """

    sequence: int
    digest: bytes
    inputs: bytes
    text: str


@final
@dataclass(frozen=True, slots=True)
class Gather:
    """A rank's part of an exchange among all ranks; exchanges are numbered from 1."""

    sequence: int
    payload: bytes


@final
@dataclass(frozen=True, slots=True)
class Gathered:
    """All parts of an exchange, in rank order."""

    sequence: int
    payloads: tuple[bytes, ...]


@final
@dataclass(frozen=True, slots=True)
class Failed:
    """A rank cannot go on.

    Args:
        rank: which.
        where: what its program was doing.
        text: what went wrong.
        request: whether what it was asked for was wrong, so that all ranks are expected to say the same.
    """

    rank: int
    where: str
    text: str
    request: bool


@final
@dataclass(frozen=True, slots=True)
class Stop:
    """All ranks must stop; the text says why."""

    text: str


@final
@dataclass(frozen=True, slots=True)
class Goodbye:
    """A rank's program ended after so many calls; from the launcher: all have."""

    rank: int
    calls: int


Message: TypeAlias = Hello | Welcome | Refused | Heartbeat | Call | Gather | Gathered | Failed | Stop | Goodbye

RECORDS: tuple[type[Message], ...] = (
    Hello,
    Welcome,
    Refused,
    Heartbeat,
    Call,
    Gather,
    Gathered,
    Failed,
    Stop,
    Goodbye,
)
"""The closed union; a record's place here is its number in messages."""


def encode(message: Message) -> bytes:
    """Pack a record.

    Raises:
        ProtocolError: a field is out of bounds.
    """
    number = RECORDS.index(type(message))
    values = [check(getattr(message, name), f"{type(message).__name__}.{name}") for name, check in _LAYOUTS[number]]
    packed = cast("bytes", msgpack.packb([SCHEMA, number, *values]))  # None only where a stream is given
    if len(packed) > MAX_MESSAGE:
        raise ProtocolError(f"{type(message).__name__}: expected at most {MAX_MESSAGE} bytes, got {len(packed)}")
    return packed


def decode(data: bytes) -> Message:
    """Unpack a record.

    Raises:
        ProtocolError: these bytes are no message of this schema; names the field.
    """
    if len(data) > MAX_MESSAGE:
        raise ProtocolError(f"message: expected at most {MAX_MESSAGE} bytes, got {len(data)}")
    try:
        unpacked: object = msgpack.unpackb(
            data, raw=False, max_array_len=MAX_ITEMS, max_str_len=MAX_STRING, max_map_len=0, max_ext_len=0
        )
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise ProtocolError(f"message: expected a msgpack list, got bytes that are none ({error})") from error
    if not isinstance(unpacked, list) or len(unpacked) < 2:
        raise ProtocolError(f"message: expected a list of version, type and fields, got {_shown(unpacked)}")
    version, number, *values = unpacked
    if type(version) is not int or version != SCHEMA:
        raise ProtocolError(f"schema version: expected {SCHEMA}, got {_shown(version)}; install one Maniple everywhere")
    if type(number) is not int or not 0 <= number < len(RECORDS):
        raise ProtocolError(f"record number: expected 0..{len(RECORDS) - 1}, got {_shown(number)}")
    record, layout = RECORDS[number], _LAYOUTS[number]
    if len(values) != len(layout):
        raise ProtocolError(f"{record.__name__}: expected {len(layout)} fields, got {len(values)}")
    return _MAKERS[number](
        *(check(value, f"{record.__name__}.{name}") for value, (name, check) in zip(values, layout, strict=True))
    )


def readable(text: str, limit: int) -> str:
    """Give a text that a message carries: valid Unicode, cut to a number of characters."""
    cut = text if len(text) <= limit else text[: limit - 3] + "..."
    return cut if cut.isascii() else cut.encode("utf-8", "replace").decode("utf-8")


def _integer(value: object, field: str) -> int:
    if type(value) is not int or not 0 <= value <= MAX_INTEGER:
        raise ProtocolError(f"{field}: expected an integer of at least 0 and 63 bits, got {_shown(value)}")
    return value


def _boolean(value: object, field: str) -> bool:
    if type(value) is not bool:
        raise ProtocolError(f"{field}: expected true or false, got {_shown(value)}")
    return value


def _string(value: object, field: str) -> str:
    if type(value) is not str:
        raise ProtocolError(f"{field}: expected a string, got {_shown(value)}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise ProtocolError(f"{field}: expected valid Unicode, got {_shown(value)}") from error
    if size > MAX_STRING:
        raise ProtocolError(f"{field}: expected at most {MAX_STRING} bytes, got {size}")
    return value


def _bytes(value: object, field: str) -> bytes:
    if type(value) is not bytes:
        raise ProtocolError(f"{field}: expected bytes, got {_shown(value)}")
    return value


def _strings(value: object, field: str) -> tuple[str, ...]:
    return tuple(_string(item, f"{field}[{i}]") for i, item in enumerate(_items(value, field)))


def _several_bytes(value: object, field: str) -> tuple[bytes, ...]:
    return tuple(_bytes(item, f"{field}[{i}]") for i, item in enumerate(_items(value, field)))


def _items(value: object, field: str) -> list[object]:
    if not isinstance(value, list | tuple) or len(value) > MAX_ITEMS:
        raise ProtocolError(f"{field}: expected a list of at most {MAX_ITEMS} items, got {_shown(value)}")
    return list(value)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


_CHECKS: dict[str, Callable[[object, str], object]] = {
    "int": _integer,
    "bool": _boolean,
    "str": _string,
    "bytes": _bytes,
    "tuple[str, ...]": _strings,
    "tuple[bytes, ...]": _several_bytes,
}

# The checks below give each record the types that its fields declare, which a type checker cannot follow.
_MAKERS: tuple[Callable[..., Message], ...] = RECORDS

_LAYOUTS = tuple(tuple((field.name, _CHECKS[str(field.type)]) for field in fields(record)) for record in RECORDS)
