"""Bounds: the blocks of a plan are those of the region layer's partitions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rects import rects_of

from maniple.operators.rules.bounds import blocks_of, row_major
from maniple.regions.partition import blocks
from maniple.regions.rectangle import Rect


@given(cuts=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 12)), max_size=3))
def test_blocks_are_those_that_a_region_is_cut_into(cuts: list[tuple[int, int]]) -> None:
    """More blocks than elements, and no dimensions at all, too."""
    shape, degrees = tuple(extent for extent, _ in cuts), tuple(degree for _, degree in cuts)
    partition = blocks(degrees).bind(Rect.of_shape(shape))
    assert rects_of(blocks_of(shape, degrees)) == partition.tiles
    assert [tuple(index) for index in row_major(degrees).tolist()] == list(partition.colors.points())
