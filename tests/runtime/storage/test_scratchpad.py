"""Scratchpads: bodies take turns with one memory, and what it takes is known from what they asked for."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maniple.runtime.storage.scratchpad import ALIGNMENT, SPAN, Scratchpad, Scratchpads, taken_bytes

BODIES = st.lists(st.lists(st.integers(1, 5000), min_size=1, max_size=4), min_size=1, max_size=12)


@given(BODIES)
def test_views_of_one_turn_do_not_overlap_and_turns_begin_anew(bodies: list[list[int]]) -> None:
    pads, near = Scratchpads(), torch.empty(0)
    ends = list[int]()
    for sizes in bodies:
        turn = pads.of(3).turn()
        views = [turn.view((size,), torch.float32, near) for size in sizes]
        assert [view.numel() for view in views] == sizes
        for one, other in pairwise(views):
            assert other.data_ptr() >= one.data_ptr() + one.nbytes
        assert all((view.data_ptr() - views[0].data_ptr()) % ALIGNMENT == 0 for view in views)
        ends += pads.of(3).ends
        assert len(pads.of(3).ends) == len(sizes)
    assert taken_bytes(ends, on_host=True) == max(ends)


@given(st.lists(st.integers(1, 9_000), min_size=1, max_size=60))
def test_the_pieces_of_a_device_are_below_four_times_the_largest_need(sizes: list[int]) -> None:
    assert max(sizes) <= taken_bytes(sizes, on_host=False) < 4 * max(sizes)


def test_the_table_of_the_docstring() -> None:
    mib = 1 << 20
    ends = [2 * mib, 3 * mib, 5 * mib, 1 * mib]
    assert taken_bytes(ends, on_host=True) == 5 * mib
    assert taken_bytes(ends, on_host=False) == 14 * mib


def test_on_the_host_more_than_the_addresses_is_another_piece_of_them() -> None:
    ends = [SPAN // 2, SPAN + 1, SPAN]
    assert taken_bytes(ends, on_host=True) == SPAN // 2 + SPAN + 1


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="what is resident is not told")
def test_addresses_that_nobody_has_written_take_no_memory() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    pad, before = Scratchpad(), resident()
    view = pad.turn().view((1 << 26,), torch.uint8, torch.empty(0))
    assert resident() - before < 1 << 22
    view[: 1 << 24].fill_(1)
    assert 1 << 24 <= resident() - before < (1 << 24) + (1 << 22)


def test_what_is_bound_apart_leaves_the_pad_as_it_was() -> None:
    pad, near = Scratchpad(), torch.empty(0)
    mine = pad.turn().view((4,), torch.float32, near)
    with pad.apart():
        other = pad.turn().view((9,), torch.float32, near)
        assert other.data_ptr() != mine.data_ptr()
    assert pad.turn().view((4,), torch.float32, near).data_ptr() == mine.data_ptr()


def test_a_view_may_be_empty() -> None:
    assert Scratchpad().turn().view((0, 7), torch.float32, torch.empty(0)).shape == (0, 7)


class Elsewhere(torch.Tensor):
    """Stands for a tensor in a device's memory."""


def test_a_device_gives_pieces_which_are_counted() -> None:
    near, pad = torch.empty(4).as_subclass(Elsewhere), Scratchpad()
    for count in (16, 64, 8):
        assert isinstance(pad.turn().view((count,), torch.float32, near), Elsewhere)
    assert pad.allocated == taken_bytes([64, 256, 32], on_host=False) == 64 + 256


def test_no_more_addresses_are_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("mmap.mmap", refuse)
    with pytest.raises(MemoryError, match=r"268,435,456 bytes of addresses for scratch: .*raise the limit"):
        Scratchpad().turn().view((4,), torch.float32, torch.empty(0))
