"""Pinned rows: none is given out again while the host or a stream may be at it, and those that are free are."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from maniple.runtime.devices.pinned_rows import PinnedRows


class Streams:
    """Two streams that count, and the blocks that were allocated."""

    def __init__(self) -> None:
        self.begun, self.ended = [0, 0], [0, 0]
        self.made: list[torch.Tensor] = []
        self.rows = PinnedRows(self.allocate, lambda: tuple(self.begun), lambda: tuple(self.ended))

    def allocate(self, size: int) -> torch.Tensor:
        self.made.append(torch.zeros(size, dtype=torch.uint8))
        return self.made[-1]


def test_a_row_is_used_again_once_what_had_begun_when_it_was_let_go_of_has_ended() -> None:
    streams = Streams()
    row = streams.rows.take(100, torch.float32)
    where = row.data_ptr()
    streams.begun = [7, 2]
    view = row.view(10, 10)
    del row  # a view holds it
    assert streams.rows.take(100, torch.float32).data_ptr() != where
    del view
    streams.begun = [9, 9]  # what begins later cannot be at it
    assert streams.rows.take(100, torch.float32).data_ptr() != where
    streams.ended = [7, 1]
    assert streams.rows.take(100, torch.float32).data_ptr() != where
    streams.ended = [7, 2]
    again = [streams.rows.take(100, torch.float32) for _ in range(4)]
    assert where in [each.data_ptr() for each in again]


def test_rows_are_of_every_dtype_and_of_no_elements_too() -> None:
    rows = Streams().rows
    for dtype in (torch.bool, torch.bfloat16, torch.float16, torch.int64, torch.float64):
        assert (rows.take(3, dtype).dtype, rows.take(3, dtype).shape) == (dtype, (3,))
    assert rows.take(0, torch.float32).numel() == 0


@given(st.lists(st.tuples(st.sampled_from(["take", "leave", "begin", "end"]), st.integers(0, 5)), max_size=60))
def test_no_row_is_given_out_that_anybody_may_be_at(does: list[tuple[str, int]]) -> None:
    streams = Streams()
    held: list[torch.Tensor] = []
    left: dict[int, list[int]] = {}  # by address, what must have ended
    for what, number in does:
        stream = number % 2
        if what == "begin":
            streams.begun[stream] += 1
        elif what == "end":
            streams.ended[stream] += streams.ended[stream] < streams.begun[stream]
        elif what == "leave" and held:
            row = held.pop(number % len(held))
            left[row.data_ptr()] = list(streams.begun)
            del row
        elif what == "take":
            before = len(streams.made)
            row = streams.rows.take(1 + number, torch.float64)
            assert row.data_ptr() not in [each.data_ptr() for each in held]
            needs = left.pop(row.data_ptr(), [0, 0])
            assert all(have >= need for have, need in zip(streams.ended, needs, strict=True))
            free = [each for each in left.values() if all(a >= b for a, b in zip(streams.ended, each, strict=True))]
            assert len(streams.made) == before or not free  # nothing is allocated while a row is free
            held.append(row)
