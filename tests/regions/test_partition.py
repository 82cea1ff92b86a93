from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maniple.process.error import RequestError
from maniple.regions.partition import Partition, Partitioning, blocks, halo, rectangles, replicate
from maniple.regions.rectangle import Rect

PROFILE = settings(derandomize=True, deadline=None, max_examples=300)

sides = st.tuples(st.integers(-2, 3), st.integers(0, 7), st.integers(1, 4))
cases = st.integers(0, 3).flatmap(lambda n: st.lists(sides, min_size=n, max_size=n))


def text(partition: Partition) -> str:
    return " ".join(str(tile) for tile in partition.tiles)


@pytest.mark.parametrize(
    ("extent", "count", "tiles"),
    [
        (8, 4, "[0:2] [2:4] [4:6] [6:8]"),
        (10, 4, "[0:3] [3:6] [6:8] [8:10]"),
        (2, 4, "[0:1] [1:2] [2:2] [2:2]"),
    ],
)
def test_blocks_table(extent: int, count: int, tiles: str) -> None:
    assert text(blocks((count,)).bind(Rect.of_shape((extent,)))) == tiles


def test_tiles_are_row_major_and_found_by_colour() -> None:
    partition = blocks((2, 3)).bind(Rect.of_shape((4, 6)))
    assert partition.tiles[5] == partition.tile((1, 2)) == Rect((2, 4), (4, 6))
    assert [partition.tile(color) for color in partition.colors.points()] == list(partition.tiles)
    offset = Partition(Rect.of_shape((2,)), Rect((3,), (5,)), (Rect((0,), (1,)), Rect((1,), (2,))))
    assert offset.tile((4,)) == Rect((1,), (2,))


@given(cases)
@PROFILE
def test_blocks_are_disjoint_complete_and_even(case: list[tuple[int, int, int]]) -> None:
    parent = Rect(tuple(low for low, _, _ in case), tuple(low + extent for low, extent, _ in case))
    partition = blocks(tuple(count for _, _, count in case)).bind(parent)
    assert partition.disjoint
    assert partition.complete
    assert sorted(point for tile in partition.tiles for point in tile.points()) == sorted(parent.points())
    for axis, (_, extent, count) in enumerate(case):
        sizes = {tile.shape[axis] for tile in partition.tiles}
        assert sizes <= {extent // count, -(-extent // count)}


@given(cases, st.data())
@PROFILE
def test_a_halo_is_every_point_within_reach(case: list[tuple[int, int, int]], data: st.DataObject) -> None:
    parent = Rect(tuple(low for low, _, _ in case), tuple(low + extent for low, extent, _ in case))
    base = blocks(tuple(count for _, _, count in case))
    widths = [data.draw(st.tuples(st.integers(0, 2), st.integers(0, 2))) for _ in case]
    grown = halo(base, widths).bind(parent)
    for tile, wide in zip(base.bind(parent).tiles, grown.tiles, strict=True):
        wanted = {
            point
            for point in parent.points()
            if not tile.is_empty
            and all(
                low - below <= x < high + above
                for x, low, high, (below, above) in zip(point, tile.lo, tile.hi, widths, strict=True)
            )
        }
        assert set(wide.points()) == wanted


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)), max_size=6),
)
@PROFILE
def test_disjoint_and_complete_are_computed(corners: list[tuple[int, int, int, int]]) -> None:
    parent = Rect.of_shape((5, 5))
    tiles = [Rect((min(a, b), min(c, d)), (max(a, b), max(c, d))) for a, b, c, d in corners]
    partition = rectangles(tiles).bind(parent)
    counted = [point for tile in tiles for point in tile.points()]
    assert partition.disjoint == (len(counted) == len(set(counted)))
    assert partition.complete == (set(counted) == set(parent.points()))


def test_replicate_gives_everyone_the_whole() -> None:
    parent = Rect.of_shape((3, 4))
    partition = replicate((2, 2)).bind(parent)
    assert partition.tiles == (parent,) * 4
    assert not partition.disjoint
    assert partition.complete
    assert replicate(3).colors == Rect.of_shape((3,))
    assert replicate(1).bind(parent).disjoint


def test_rectangles_take_boxes_or_bounds() -> None:
    recipe = rectangles([Rect((0,), (2,)), ((2,), (5,))], colors=Rect.of_shape((1, 2)))
    partition = recipe.bind(Rect.of_shape((6,)))
    assert partition.tile((0, 1)) == Rect((2,), (5,))
    assert partition.disjoint
    assert not partition.complete


def test_recipes_are_values() -> None:
    assert halo(blocks((2, 2)), (1, (0, 1))) == halo(blocks([2, 2]), [(1, 1), (0, 1)])
    assert len({blocks((2,)), blocks((2,)), replicate(2)}) == 2
    assert isinstance(blocks((2,)), Partitioning)


SQUARE = Rect.of_shape((4, 4))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: blocks((2, 0)), "axis 1"),
        (lambda: replicate(0), "at least 1"),
        (lambda: blocks(2.0), r"blocks expected a whole number for every axis, got 2.0"),  # type: ignore[arg-type]
        (lambda: replicate((2, "3")), r"whole number for every axis, got \(2, '3'\)"),  # type: ignore[arg-type]
        (lambda: halo(blocks((2,)), (-1,)), "axis 0"),
        (lambda: halo(blocks((2,)), ((0, -1),)), "at least 0"),
        (lambda: blocks((2,)).bind(SQUARE), r"2 axes"),
        (lambda: halo(blocks((2, 2)), (1,)).bind(SQUARE), r"2 axes"),
        (lambda: rectangles([Rect((0, 0), (5, 4))]).bind(SQUARE), r"tile \(0,\) is \[0:5, 0:4\]"),
        (lambda: rectangles([Rect((0,), (5,))]).bind(SQUARE), r"tile \(0,\)"),
        (lambda: rectangles([SQUARE], colors=Rect.of_shape((2,))), "expected 2 tiles"),
        (lambda: Partition(SQUARE, Rect.of_shape((2,)), (SQUARE,)), "expected 2 tiles"),
        (lambda: blocks((2, 2)).bind(SQUARE).tile((0, 2)), "colour"),
        (lambda: blocks((2, 2)).bind(SQUARE).tile((0,)), "colour"),
    ],
)
def test_what_does_not_fit_is_refused(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        wrong()


def test_a_number_alone_stands_for_one_axis() -> None:
    line = Rect.of_shape((8,))
    assert blocks(2) == blocks((2,)) == blocks(np.int64(2))  # type: ignore[arg-type]
    assert halo(blocks(2), 1) == halo(blocks((2,)), (1,))
    assert [str(tile) for tile in halo(blocks(2), 1).bind(line).subspaces] == ["[0:5]", "[3:8]"]


def test_a_recipe_on_the_right_is_bound_to_the_parent_of_the_left() -> None:
    line = Rect.of_shape((8,))
    halves, grown = blocks(2).bind(line), halo(blocks(2), 1).bind(line)
    assert grown - blocks(2) == grown - halves
    assert grown & blocks(2) == halves
    assert halves | halo(blocks(2), 1) == halves | grown
    assert grown.cross(blocks(2)) == grown.cross(halves)
