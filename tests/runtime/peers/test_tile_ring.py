"""Rings: places never overlap, and whoever waits for room that there is has been told of it."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from maniple.runtime.peers.tile_ring import ALIGNMENT, TileRing, Untold, rounded

SIZE = 16 * ALIGNMENT


def test_places_are_taken_and_given_back_as_drawn() -> None:
    ring, unit = TileRing(10 * ALIGNMENT), ALIGNMENT
    assert (ring.take(4 * unit), ring.take(4 * unit)) == (0, 4 * unit)
    assert ring.take(4 * unit) is None
    ring.give()
    assert ring.take(4 * unit) == 0
    assert ring.take(unit) is None  # the two behind b are no place for what comes after c
    ring.give()
    assert ring.take(4 * unit) == 4 * unit


def test_a_tile_as_large_as_its_ring_has_a_place_and_a_larger_one_has_none() -> None:
    ring = TileRing(SIZE)
    assert ring.take(SIZE + 1) is None
    assert ring.take(SIZE) == 0
    assert ring.take(1) is None
    ring.give()
    assert ring.take(SIZE) == 0


@given(st.lists(st.one_of(st.integers(1, SIZE), st.none()), max_size=60))
def test_places_that_are_held_never_overlap_and_an_empty_ring_has_room(steps: list[int | None]) -> None:
    ring, held = TileRing(SIZE), deque[tuple[int, int]]()
    for step in steps:
        if step is None:
            if held:
                held.popleft()
                ring.give()
            continue
        start = ring.take(step)
        if start is None:
            assert held
            continue
        assert start % ALIGNMENT == 0
        assert start + step <= SIZE
        assert all(start + rounded(step) <= low or start >= high for low, high in held)
        held.append((start, start + rounded(step)))
    assert ring.held == len(held)


@given(st.lists(st.tuples(st.integers(1, SIZE), st.integers(0, 2), st.booleans()), min_size=1, max_size=60))
def test_whoever_waits_for_room_that_there_is_is_told(tiles: list[tuple[int, int, bool]]) -> None:
    """A sender takes places; its receiver is through with some, and tells of that when it must, or by chance."""
    ring, untold = TileRing(SIZE), Untold(SIZE)
    coming, over = deque[tuple[int, int]](), 0

    def end(count: int) -> None:
        nonlocal over
        for _ in range(min(count, len(coming))):
            untold.add(*coming.popleft())
            over += 1

    def tell() -> None:
        nonlocal over
        untold.clear()
        for _ in range(over):
            ring.give()
        over = 0

    for size, ends, tells in tiles:
        end(ends)
        if tells:
            tell()
        start = ring.take(size)
        if start is None:
            end(len(coming))
            assert untold.may_lack(size), "the sender waits, and nothing would ever come"
            tell()
            start = ring.take(size)
        assert start is not None
        coming.append((start, size))


def test_small_tiles_travel_without_being_told_of_each() -> None:
    ring, untold, told = TileRing(SIZE), Untold(SIZE), 0
    for _ in range(100):
        if untold.may_lack(ALIGNMENT):
            untold.clear()
            told += 1
            while ring.held:
                ring.give()
        start = ring.take(ALIGNMENT)
        assert start is not None
        untold.add(start, ALIGNMENT)
    assert told <= 100 // (SIZE // ALIGNMENT - 2) + 1
