"""Partitions and their algebra, colour by colour and point by point."""

from __future__ import annotations

import operator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maniple.process.error import RequestError
from maniple.regions.index_space import IndexSpace, RectSet, simplest
from maniple.regions.partition import blocks, halo, rectangles, restriction, weights
from maniple.regions.rectangle import Rect
from maniple.regions.subspace import Partition

PROFILE = settings(derandomize=True, deadline=None, max_examples=150)
Points = set[tuple[int, ...]]


def points(space: IndexSpace) -> Points:
    return {point for rect in space.rects for point in rect.points()}


@st.composite
def boxes(draw: st.DrawFn, frame: Rect) -> Rect:
    sides = [sorted(draw(st.tuples(st.integers(0, high), st.integers(0, high)))) for high in frame.hi]
    return Rect(tuple(low for low, _ in sides), tuple(high for _, high in sides))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Partition, Partition]:
    frame = draw(st.sampled_from([Rect.of_shape((9,)), Rect.of_shape((3, 4))]))
    parent: IndexSpace = frame
    if draw(st.booleans()):
        parent = simplest(RectSet.of(draw(st.lists(boxes(frame), min_size=1, max_size=3))), frame.ndim)
    colors = Rect.of_shape((draw(st.integers(1, 3)),))
    made = []
    for _ in range(2):
        some = [RectSet.of(draw(st.lists(boxes(frame), max_size=3))) & parent for _ in range(colors.volume)]
        made.append(Partition(parent, colors, tuple(simplest(space, frame.ndim) for space in some)))
    return made[0], made[1]


@given(pairs())
@PROFILE
def test_partitions_are_combined_colour_by_colour(pair: tuple[Partition, Partition]) -> None:
    first, second = pair
    for combine in (operator.or_, operator.and_, operator.sub):
        found = combine(first, second)
        assert (found.parent, found.colors) == (first.parent, first.colors)
        for one, other, space in zip(first.subspaces, second.subspaces, found.subspaces, strict=True):
            assert points(space) == combine(points(one), points(other))
    crossed = first.cross(second)
    for color in crossed.colors.points():
        assert points(crossed.tile(color)) == points(first.tile(color[:1])) & points(second.tile(color[1:]))


@given(pairs())
@PROFILE
def test_disjointness_and_completeness_are_computed(pair: tuple[Partition, Partition]) -> None:
    for partition in pair:
        every = [point for space in partition.subspaces for point in points(space)]
        assert partition.disjoint == (len(every) == len(set(every)))
        assert partition.complete == (set(every) == points(partition.parent))


@given(pairs(), st.integers(1, 3))
@PROFILE
def test_recipes_cut_the_bounds_of_a_sparse_space(pair: tuple[Partition, Partition], count: int) -> None:
    parent = pair[0].parent
    if parent.is_empty:
        return
    counts = [count] * parent.ndim
    for recipe in (blocks(counts), halo(blocks(counts), [1] * parent.ndim)):
        dense = recipe.bind(parent.bounds)
        for box, space in zip(dense.subspaces, recipe.bind(parent).subspaces, strict=True):
            assert points(space) == points(box) & points(parent)


def test_weights_and_restriction_cut_as_their_tables_say() -> None:
    cases = {(8, (1, 2, 1)): "[0:2] [2:6] [6:8]", (10, (1, 0, 2)): "[0:3] [3:3] [3:10]"}
    for (extent, shares), wanted in cases.items():
        cut = weights(shares).bind(Rect.of_shape((extent,)))
        assert " ".join(map(str, cut.subspaces)) == wanted
        assert cut.disjoint
        assert cut.complete
    moved = restriction((4,), [[2]], Rect((-1,), (3,))).bind(Rect.of_shape((8,)))
    assert " ".join(map(str, moved.subspaces)) == "[0:3] [1:5] [3:7] [5:8]"
    plane = restriction((2, 2), [[0, 2], [3, 0]], Rect.of_shape((2, 3))).bind(Rect.of_shape((4, 6)))
    assert [str(space) for space in plane.subspaces] == ["[0:2, 0:3]", "[2:4, 0:3]", "[0:2, 3:6]", "[2:4, 3:6]"]


WHOLE = Rect.of_shape((8,))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: weights([1, -1]), "whole numbers of at least 0"),
        (lambda: weights([0, 0]), "not all 0"),
        (lambda: weights([1], [1]).bind(WHOLE), "give each its own"),
        (lambda: restriction((2,), [[1, 1]], WHOLE), "1 rows and 1 columns"),
        (lambda: restriction((2,), [[1]], WHOLE).bind(Rect.of_shape((2, 2))), "does not fit"),
        (lambda: blocks((2,)).bind(WHOLE) | blocks((4,)).bind(WHOLE), "with the same colours"),
        (lambda: blocks((2,)).bind(WHOLE) - blocks((2,)).bind(Rect.of_shape((9,))), "of one index space"),
        (lambda: rectangles([Rect((5,), (9,))]).bind(WHOLE), "outside of its parent"),
        (lambda: Partition(RectSet.of([Rect((0,), (2,)), Rect((4,), (6,))]), Rect.of_shape((1,)), (WHOLE,)), "outside"),
    ],
)
def test_what_does_not_fit_is_refused(wrong: object, message: str) -> None:
    assert callable(wrong)
    with pytest.raises(RequestError, match=message):
        wrong()
