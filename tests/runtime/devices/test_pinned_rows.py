"""Pinned rows: none is given out again while the host or a stream may be at it, and those that are free are."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from maniple.runtime.devices.pinned_rows import PinnedRows


class Count:
    """A stream that counts."""

    def __init__(self) -> None:
        self.begun = self.ended = 0


class Streams:
    """Two streams that count, and the blocks that were allocated."""

    def __init__(self) -> None:
        self.each = Count(), Count()
        self.made: list[torch.Tensor] = []
        self.rows = PinnedRows(self.allocate)
        for stream in self.each:
            self.rows.attend(stream)

    def allocate(self, size: int) -> torch.Tensor:
        self.made.append(torch.zeros(size, dtype=torch.uint8))
        return self.made[-1]

    def take(self, count: int = 100) -> torch.Tensor:
        return self.rows.take((count,), torch.float64)


def test_a_row_is_used_again_once_what_had_begun_when_it_was_let_go_of_has_ended() -> None:
    streams = Streams()
    first, second = streams.each
    row = streams.take()
    where = row.data_ptr()
    first.begun, second.begun = 7, 2
    view = row.view(10, 10)
    del row  # a view holds it
    assert streams.take().data_ptr() != where
    del view
    first.begun, second.begun = 9, 9  # what begins later cannot be at it
    assert streams.take().data_ptr() != where
    first.ended, second.ended = 7, 1
    assert streams.take().data_ptr() != where
    second.ended = 2
    again = [streams.take() for _ in range(4)]
    assert where in [each.data_ptr() for each in again]


def test_a_stream_that_was_closed_keeps_no_row() -> None:
    streams = Streams()
    row = streams.take()
    where = row.data_ptr()
    streams.each[0].begun = 3
    streams.rows.leave(streams.each[0])
    del row
    assert streams.take().data_ptr() == where


def test_rows_are_of_every_dtype_and_of_no_elements_too() -> None:
    rows = Streams().rows
    for dtype in (torch.bool, torch.bfloat16, torch.float16, torch.int64, torch.float64):
        assert (rows.take((3, 2), dtype).dtype, rows.take((3, 2), dtype).shape) == (dtype, (3, 2))
    assert rows.take((0,), torch.float32).numel() == 0


@given(st.lists(st.tuples(st.sampled_from(["take", "leave", "begin", "end"]), st.integers(0, 5)), max_size=60))
def test_no_row_is_given_out_that_anybody_may_be_at(does: list[tuple[str, int]]) -> None:
    streams = Streams()
    held: list[torch.Tensor] = []
    left: dict[int, list[int]] = {}  # by address, what must have ended
    for what, number in does:
        stream = streams.each[number % 2]
        if what == "begin":
            stream.begun += 1
        elif what == "end":
            stream.ended += stream.ended < stream.begun
        elif what == "leave" and held:
            row = held.pop(number % len(held))
            left[row.data_ptr()] = [each.begun for each in streams.each]
            del row
        elif what == "take":
            before = len(streams.made)
            row = streams.take(1 + number)
            assert row.data_ptr() not in [each.data_ptr() for each in held]
            needs = left.pop(row.data_ptr(), [0, 0])
            ended = [each.ended for each in streams.each]
            assert all(have >= need for have, need in zip(ended, needs, strict=True))
            free = [each for each in left.values() if all(a >= b for a, b in zip(ended, each, strict=True))]
            assert len(streams.made) == before or not free  # nothing is allocated while a row is free
            held.append(row)
