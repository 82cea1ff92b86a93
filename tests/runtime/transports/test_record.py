"""Records beside messages: what was packed comes back, and nothing else does anything but raise ProtocolError."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.regions.rectangle import Rect
from maniple.runtime.lanes.binding import read_table
from maniple.runtime.transports import record
from maniple.runtime.transports.message import ProtocolError
from maniple.runtime.transports.record import Field, pack, parts, unpack

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
READERS: tuple[Callable[[Field], object], ...] = (
    Field.integer,
    Field.optional_integer,
    Field.string,
    Field.items,
    Field.integers,
    lambda field: [row.items(2) for row in field.items()],
)


@given(value=PLAIN, reader=st.sampled_from(READERS))
def test_a_reader_gives_what_it_says_or_refuses(value: object, reader: Callable[[Field], object]) -> None:
    try:
        found = reader(unpack(pack(value), "test"))
    except ProtocolError:
        return
    if reader is Field.integer:
        assert type(value) is int
        assert 0 <= value < 2**63
        assert found == value
    elif reader in {Field.optional_integer, Field.string}:
        assert found == value
    else:
        assert isinstance(value, list)


@given(data=st.binary(), reader=st.sampled_from(READERS))
def test_any_bytes_are_read_or_refused(data: bytes, reader: Callable[[Field], object]) -> None:
    with suppress(ProtocolError):
        reader(unpack(data, "test"))


def test_what_is_wrong_is_named_by_rank_and_place() -> None:
    told = parts([pack([1, 2]), pack([1, "two"])], "sizes")
    assert told[0].integers(count=2) == (1, 2)
    with pytest.raises(ProtocolError, match=r"^sizes of rank 1\[1\]: expected an integer of at least 0 .*, got 'two'"):
        told[1].integers()
    with pytest.raises(ProtocolError, match=r"^sizes of rank 0: expected a list of 3 items, got \[1, 2\]"):
        told[0].items(3)
    with pytest.raises(ProtocolError, match="got bytes that are none"):
        parts([b"\xc1"], "sizes")
    with pytest.raises(ProtocolError, match=f"at most {record.MAX_MESSAGE} bytes, got {record.MAX_MESSAGE + 1}"):
        unpack(bytes(record.MAX_MESSAGE + 1), "much")


class File:
    """Another rank's file: a table at its begin."""

    def __init__(self, rows: object) -> None:
        told = pack(rows)
        self.bytes = np.frombuffer(len(told).to_bytes(8, "little") + told, np.uint8)

    def window(self, rank: int, start: int, size: int) -> np.ndarray[Any, Any]:
        assert rank == 1
        return self.bytes[start : start + size]


def test_a_table_of_places_is_read() -> None:
    rows = [(7, 2, 64, (0, 2), (4, 8), (1, 0))]
    assert read_table(cast("Any", File(rows)), 1, 0) == {(7, 2): (64, Rect((0, 2), (4, 8)), (1, 0))}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(7, 0, -64, (0,), (4,), (0,))], r"table of rank 1\[0\]\[2\]: expected an integer of at least 0"),
        ([(7, 0, 64, (0,), (4, 5), (0,))], r"table of rank 1\[0\]\[4\]: expected a list of 1 items"),
        ([(7, 0, 64, (0, 0), (4, 5), (0, 0))], r"expected an order of 2 axes, got \(0, 0\)"),
        ([(7, 0, 64, (0,), (4,))], r"table of rank 1\[0\]: expected a list of 6 items"),
        ({"7": 64}, r"table of rank 1: expected a list, got"),
    ],
)
def test_a_table_that_is_none_is_refused(rows: object, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        read_table(cast("Any", File(rows)), 1, 0)
