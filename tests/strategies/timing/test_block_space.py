"""Room for blocks: the table of the docstring, and that no two blocks share a place."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from maniple.strategies.timing.block_space import BlockSpace


def test_the_table_of_the_docstring() -> None:
    room = BlockSpace()
    a, b, c = room.take(2), room.take(1), room.take(2)
    assert (a, b, c, room.used) == (0, 2, 4, 6)
    room.give(a, 2)
    room.give(b, 1)
    assert room.take(3) == 0
    assert "aab.cc" in (BlockSpace.__doc__ or "")


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 60))
def test_blocks_are_apart_and_all_room_is_one_again(seed: int, steps: int) -> None:
    chance, room, held = Random(seed), BlockSpace(), {}
    for _ in range(steps):
        if held and chance.random() < 0.4:
            first = chance.choice(sorted(held))
            room.give(first, held.pop(first))
        else:
            count = chance.randint(0, 20)
            first = room.take(count)
            assert first not in held
            held[first] = count
        places = [place for first, count in held.items() for place in range(first, first + count)]
        assert len(places) == len(set(places))
        assert all(place < room.used for place in places)
    used = room.used
    for first, count in held.items():
        room.give(first, count)
    for _ in range(used):
        assert room.take(1) < used
