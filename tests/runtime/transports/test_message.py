"""Messages: every record survives the trip, and no bytes do anything but that or raise ProtocolError."""

from __future__ import annotations

import dataclasses

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.runtime.transports.message import (
    MAX_ITEMS,
    MAX_MESSAGE,
    MAX_STRING,
    RECORDS,
    SCHEMA,
    Call,
    Gather,
    Gathered,
    Heartbeat,
    Message,
    ProtocolError,
    Stop,
    Welcome,
    decode,
    encode,
    readable,
)

KINDS = {
    "int": st.integers(0, 2**63 - 1),
    "bool": st.booleans(),
    "str": st.text(max_size=40),
    "bytes": st.binary(max_size=40),
    "tuple[str, ...]": st.lists(st.text(max_size=9), max_size=5).map(tuple),
    "tuple[bytes, ...]": st.lists(st.binary(max_size=9), max_size=5).map(tuple),
}
MESSAGES = st.one_of(
    [st.builds(record, *(KINDS[str(field.type)] for field in dataclasses.fields(record))) for record in RECORDS]
)
SCRAPS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(), st.binary()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


def outcome(data: bytes) -> Message | None:
    try:
        return decode(data)
    except ProtocolError:
        return None


@given(MESSAGES)
def test_every_record_survives_the_trip(message: Message) -> None:
    assert decode(encode(message)) == message


@given(MESSAGES, st.data())
def test_a_truncated_message_is_refused(message: Message, data: st.DataObject) -> None:
    packed = encode(message)
    with pytest.raises(ProtocolError):
        decode(packed[: data.draw(st.integers(0, len(packed) - 1))])
    with pytest.raises(ProtocolError):
        decode(packed + b"\xc0")


@given(st.binary(max_size=200))
def test_random_bytes_never_raise_anything_else(data: bytes) -> None:
    message = outcome(data)
    assert message is None or decode(encode(message)) == message


@given(SCRAPS)
def test_msgpack_that_is_no_message_never_raises_anything_else(value: object) -> None:
    outcome(msgpack.packb(value))


@given(MESSAGES, st.data())
def test_fields_of_other_types_are_refused_by_name(message: Message, data: st.DataObject) -> None:
    fields = dataclasses.fields(message)
    place = data.draw(st.integers(0, len(fields) - 1))
    wrong = data.draw(st.sampled_from([None, 1.5, -1, {}, [1], [[]]]))
    values = [getattr(message, field.name) for field in fields]
    values[place] = wrong
    with pytest.raises(ProtocolError) as raised:
        decode(msgpack.packb([SCHEMA, RECORDS.index(type(message)), *values]))
    if wrong != {}:  # maps are refused as such
        assert f"{type(message).__name__}.{fields[place].name}" in str(raised.value)
        assert "expected" in str(raised.value)
        assert "got" in str(raised.value)


@given(MESSAGES, st.data())
def test_one_changed_byte_never_raises_anything_else(message: Message, data: st.DataObject) -> None:
    packed = bytearray(encode(message))
    packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    outcome(bytes(packed))


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([SCHEMA + 1, 3, 0, 0], f"schema version: expected {SCHEMA}, got {SCHEMA + 1}"),
        ([True, 3, 0, 0], "schema version"),
        ([SCHEMA, len(RECORDS), 0], "record number"),
        ([SCHEMA, -1, 0], "record number"),
        ([SCHEMA, 3, 0], "Heartbeat: expected 2 fields, got 1"),
        ([SCHEMA, 3, 0, 0, 0], "Heartbeat: expected 2 fields, got 3"),
        ([SCHEMA, 3, True, 0], "Heartbeat.rank"),
        ([SCHEMA, 3, 2**63, 0], "Heartbeat.rank"),
        ([SCHEMA, 8, "x" * (MAX_STRING + 1)], "message"),
        ([SCHEMA], "expected a list of version"),
        ({}, "expected a list of version"),
        ([SCHEMA, 3, msgpack.ExtType(5, b"x"), 0], "message"),
        ([SCHEMA, 3, msgpack.Timestamp(0), 0], "message"),
    ],
)
def test_what_is_wrong_is_named(values: object, names: str) -> None:
    with pytest.raises(ProtocolError, match=names):
        decode(msgpack.packb(values))


def test_depth_and_claimed_lengths_are_bounded() -> None:
    for data in (b"\x91" * 100_000, b"\x91" * 100_000 + b"\xc0", b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"):
        with pytest.raises(ProtocolError):
            decode(data)


def test_sizes_are_bounded_both_ways() -> None:
    with pytest.raises(ProtocolError, match=str(MAX_MESSAGE)):
        encode(Gather(1, bytes(MAX_MESSAGE)))
    with pytest.raises(ProtocolError, match=str(MAX_MESSAGE)):
        decode(bytes(MAX_MESSAGE + 1))
    with pytest.raises(ProtocolError, match=r"Stop.text"):
        encode(Stop("ä" * MAX_STRING))
    with pytest.raises(ProtocolError, match=r"Welcome.hosts"):
        encode(Welcome((), ("",) * (MAX_ITEMS + 1)))
    assert decode(encode(Gathered(1, (bytes(1 << 20),) * 3))) == Gathered(1, (bytes(1 << 20),) * 3)


def test_a_record_out_of_bounds_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match=r"Heartbeat.sequence"):
        encode(Heartbeat(0, -1))
    with pytest.raises(ProtocolError, match=r"Call.text"):
        encode(Call(1, b"", b"", "\ud800"))


@given(st.text(alphabet=st.characters(), max_size=30), st.integers(5, 40))
def test_readable_text_always_travels(text: str, limit: int) -> None:
    cut = readable(text, limit)
    assert decode(encode(Stop(cut))) == Stop(cut)
    assert len(cut) <= limit
    if text.isascii() and len(text) <= limit:
        assert cut == text
