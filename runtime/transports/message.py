"""Messages: what ranks and the launcher tell each other, and their form as bytes.

A message is one msgpack list: the schema's version, the record's number, its fields in order. Bytes from outside
become a record of a known type with fields of the right types and bounded sizes, or a `ProtocolError`. They are read
field by field as the record's type says, so nothing is made that the record does not hold: lists nest no deeper than
one level, all lists of a message together hold at most `MAX_ITEMS` items, and all its bytes are at most `MAX_MESSAGE`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias, cast, final

import msgpack

from maniple.process.error import RunError
from maniple.runtime.transports.agent_message import Admitted, AgentHello, Exited, Interrupt, Over, Signal

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []

SCHEMA = 7
"""Version of this schema; two ends of different versions refuse each other."""
PROTOCOL = f"maniple/{SCHEMA}"
MAX_MESSAGE = 64 << 20
"""Bytes of a message in all, of one frame or of several."""
MAX_FRAME = 64 << 10
"""Bytes of one frame on the control plane; a longer message goes in several, so a socket takes no larger one."""
MAX_STRING = 64 << 10
MAX_ITEMS = 64 << 10
MAX_INTEGER = 2**63 - 1
_UNREADABLE = (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException)


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
        stacks: the signal that has it write its stacks to its log; 0 for none.
    """

    rank: int
    node: int
    pid: int
    host: str
    world_size: int
    data_endpoint: str
    version: str
    stacks: int


@final
@dataclass(frozen=True, slots=True)
class Welcome:
    """All ranks are there.

    Args:
        endpoints: where each takes tiles, in rank order.
        hosts: the host of each.
        attempt: how often the run was begun before.
    """

    endpoints: tuple[str, ...]
    hosts: tuple[str, ...]
    attempt: int = 0


@final
@dataclass(frozen=True, slots=True)
class Refused:
    """A rank may not take part."""

    reason: str


@final
@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life of the launcher, as rank 0; a rank's echo gives it back as it came."""

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
    """A rank's part of an exchange among all, numbered from 1, of which each may want the `greatest` part alone."""

    sequence: int
    payload: bytes
    greatest: bool = False


@final
@dataclass(frozen=True, slots=True)
class Gathered:
    """All parts of an exchange, in rank order, or the greatest of them alone."""

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


@final
@dataclass(frozen=True, slots=True)
class Headway:
    """How far a rank has come, told as long as its interpreter runs.

    Args:
        rank: which.
        progress: a count that changes whenever anything of it gets on.
        waits: whether it does nothing but wait.
        patience: milliseconds from now within which no progress is expected of it, because its program said so.
        before: the steps of its training that were done before this run.
        reached: the steps that are done, from the training's beginning on.
        doing: the task that it is in, if it has been in it for a while; else empty.
    """

    rank: int
    progress: int
    waits: bool
    patience: int
    before: int = 0
    reached: int = 0
    doing: str = ""


Message: TypeAlias = (
    Hello | Welcome | Refused | Heartbeat | Call | Gather | Gathered | Failed | Stop | Goodbye | Headway
    | AgentHello | Admitted | Exited | Interrupt | Signal | Over
)  # fmt: skip

RECORDS: tuple[type[Message], ...] = (
    *(Hello, Welcome, Refused, Heartbeat, Call, Gather, Gathered, Failed, Stop, Goodbye, Headway),
    *(AgentHello, Admitted, Exited, Interrupt, Signal, Over),
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


def frames(packed: bytes) -> list[bytes]:
    """Cut a packed record into frames of at most `MAX_FRAME` bytes."""
    if len(packed) <= MAX_FRAME:
        return [packed]
    return [packed[start : start + MAX_FRAME] for start in range(0, len(packed), MAX_FRAME)]


def decode(*parts: bytes) -> Message:
    """Unpack a record.

    Args:
        parts: the frames that it came in.

    Raises:
        ProtocolError: these bytes are no message of this schema; names the field.
    """
    size = sum(map(len, parts))
    if size > MAX_MESSAGE:
        raise ProtocolError(f"message: expected at most {MAX_MESSAGE} bytes, got {size}")
    reader = _Reader(parts[0] if len(parts) == 1 else b"".join(parts))
    count = reader.length("message", "a list of version, type and fields")
    version, number = reader.scalar("schema version"), reader.scalar("record number")
    if type(version) is not int or version != SCHEMA:
        raise ProtocolError(f"schema version: expected {SCHEMA}, got {_show(version)}; install one Maniple everywhere")
    if type(number) is not int or not 0 <= number < len(RECORDS):
        raise ProtocolError(f"record number: expected 0..{len(RECORDS) - 1}, got {_show(number)}")
    record, layout = RECORDS[number], _LAYOUTS[number]
    if count - 2 != len(layout):
        raise ProtocolError(f"{record.__name__}: expected {len(layout)} fields, got {count - 2}")
    values = []
    for name, check in layout:
        field = f"{record.__name__}.{name}"
        values.append(check((reader.items if check in _LISTS else reader.scalar)(field), field))
    reader.end()
    return _MAKERS[number](*values)


@final
class _Reader:
    """Reads a message's values one after another; makes no list but where one is asked for.

    Args:
        data: all bytes of the message.
    """

    __slots__ = ("_left", "_size", "_unpacker")

    def __init__(self, data: bytes) -> None:
        # No list is unpacked by itself: an empty one is refused by its field's type, any other by its length.
        self._unpacker = msgpack.Unpacker(
            raw=False,
            max_buffer_size=max(len(data), 1),
            max_array_len=0,
            max_str_len=MAX_STRING,
            max_bin_len=len(data),
            max_map_len=0,
            max_ext_len=0,
        )
        self._unpacker.feed(data)
        self._size = len(data)
        self._left = MAX_ITEMS

    def length(self, field: str, expected: str) -> int:
        """Read the head of a list, of no more items than bytes can hold and a message may."""
        try:
            count = int(self._unpacker.read_array_header())
        except (ValueError, msgpack.UnpackException) as error:
            raise ProtocolError(f"{field}: expected {expected}, got bytes that are none ({error})") from error
        self._left -= count
        if self._left < 0 or count > self._size:
            raise ProtocolError(f"{field}: expected at most {MAX_ITEMS} items in a message, got a list of {count}")
        if field == "message" and count < 2:
            raise ProtocolError(f"{field}: expected {expected}, got a list of {count}")
        return count

    def scalar(self, field: str) -> object:
        """Read what is no list."""
        try:
            found: object = self._unpacker.unpack()
        except _UNREADABLE as error:
            raise _unreadable(field, error) from error
        return found

    def items(self, field: str) -> list[object]:
        """Read a list of what are no lists: in one go, for what goes to all ranks is read by all."""
        count = self.length(field, "a list")
        found: list[object] = []
        try:
            found.extend(islice(self._unpacker, count))
        except _UNREADABLE as error:
            raise _unreadable(f"{field}[{len(found)}]", error) from error
        if len(found) < count:
            raise _unreadable(f"{field}[{len(found)}]", "the message ends before it")
        return found

    def end(self) -> None:
        """Refuse bytes that are left."""
        if self._unpacker.tell() != self._size:
            raise ProtocolError(f"message: expected {self._unpacker.tell()} bytes, got {self._size}")


def _unreadable(field: str, why: object) -> ProtocolError:
    return ProtocolError(f"{field}: expected a message's field, got bytes that are none ({why})")


def readable(text: str, limit: int) -> str:
    """Give a text that a message carries: valid Unicode, cut to a number of characters."""
    cut = text if len(text) <= limit else text[: limit - 3] + "..."
    return cut if cut.isascii() else cut.encode("utf-8", "replace").decode("utf-8")


def _integer(value: object, field: str) -> int:
    if type(value) is not int or not 0 <= value <= MAX_INTEGER:
        raise ProtocolError(f"{field}: expected an integer of at least 0 and 63 bits, got {_show(value)}")
    return value


def _boolean(value: object, field: str) -> bool:
    if type(value) is not bool:
        raise ProtocolError(f"{field}: expected true or false, got {_show(value)}")
    return value


def _string(value: object, field: str) -> str:
    if type(value) is not str:
        raise ProtocolError(f"{field}: expected a string, got {_show(value)}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise ProtocolError(f"{field}: expected valid Unicode, got {_show(value)}") from error
    if size > MAX_STRING:
        raise ProtocolError(f"{field}: expected at most {MAX_STRING} bytes, got {size}")
    return value


def _bytes(value: object, field: str) -> bytes:
    if type(value) is not bytes:
        raise ProtocolError(f"{field}: expected bytes, got {_show(value)}")
    return value


def _strings(value: object, field: str) -> tuple[str, ...]:
    return tuple(_string(item, f"{field}[{i}]") for i, item in enumerate(_items(value, field)))


def _several_bytes(value: object, field: str) -> tuple[bytes, ...]:
    found = _items(value, field)
    for i, item in enumerate(found if set(map(type, found)) - {bytes} else ()):
        _bytes(item, f"{field}[{i}]")
    return tuple(cast("list[bytes]", found))


def _items(value: object, field: str) -> list[object]:
    if not isinstance(value, list | tuple) or len(value) > MAX_ITEMS:
        raise ProtocolError(f"{field}: expected a list of at most {MAX_ITEMS} items, got {_show(value)}")
    return list(value)


def _show(value: object) -> str:
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

_LISTS = frozenset({_strings, _several_bytes})

# The checks below give each record the types that its fields declare, which a type checker cannot follow.
_MAKERS: tuple[Callable[..., Message], ...] = RECORDS

_LAYOUTS = tuple(tuple((field.name, _CHECKS[str(field.type)]) for field in fields(record)) for record in RECORDS)
