"""Tiles: what the parts of a split come to together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from maniple.operators.rules.rule import Rule
from maniple.operators.rules.tile import split_range

EXTENTS = st.integers(1, 6)
PARTS = st.integers(1, 8)


@given(extent=st.integers(0, 40), parts=st.integers(1, 12))
def test_parts_lie_side_by_side_and_differ_by_at_most_one(extent: int, parts: int) -> None:
    ranges = split_range(extent, parts)
    assert [point for low, high in ranges for point in range(low, high)] == list(range(extent))
    sizes = [high - low for low, high in ranges]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


@given(b=EXTENTS, n=EXTENTS, k=EXTENTS, degrees=st.tuples(PARTS, PARTS, PARTS))
def test_the_volumes_of_tiles_add_up_to_the_iteration_space(
    b: int, n: int, k: int, degrees: tuple[int, int, int]
) -> None:
    bound = Rule.parse("b k, n k -> b n").bind(((b, k), (n, k)))
    tiles = bound.tiles(dict(zip("bnk", degrees, strict=True)))
    assert sum(tile.volume for tile in tiles) == b * n * k
    assert [tile.is_empty for tile in tiles] == [tile.volume == 0 for tile in tiles]
    for tile in tiles:
        assert tile.extent("k") == tile.range("k")[1] - tile.range("k")[0]


def test_what_is_gathered_costs_nothing_however_it_is_cut() -> None:
    bound = Rule.parse("b s, v? d -> b s d").bind(((2, 3), (100, 4)))
    assert [tile.volume for tile in bound.tiles({"v": 5})] == [2 * 3 * 4] * 5
