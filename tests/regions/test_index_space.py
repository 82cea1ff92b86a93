"""Index spaces against sets of points: every operation, dense and sparse, on no axes up to three."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maniple.process.error import RequestError
from maniple.regions.index_space import (
    IndexSpace,
    RectSet,
    as_one,
    crossing,
    intersect,
    meets,
    part,
    simplest,
    union,
    unite,
    without,
)
from maniple.regions.rectangle import Rect

PROFILE = settings(derandomize=True, deadline=None, max_examples=150)
Points = set[tuple[int, ...]]


def boxes(ndim: int) -> st.SearchStrategy[Rect]:
    side = st.tuples(st.integers(-1, 5), st.integers(0, 4))
    return st.lists(side, min_size=ndim, max_size=ndim).map(
        lambda sides: Rect(tuple(low for low, _ in sides), tuple(low + extent for low, extent in sides))
    )


def sets(ndim: int) -> st.SearchStrategy[RectSet]:
    return st.lists(boxes(ndim), max_size=6).map(RectSet.of)


def spaces(ndim: int) -> st.SearchStrategy[IndexSpace]:
    return st.one_of(boxes(ndim), sets(ndim), sets(ndim).map(lambda s: RectSet.of_columns(*s.columns)))


dimensions = st.integers(0, 3)
pairs = dimensions.flatmap(lambda n: st.tuples(spaces(n), spaces(n)))


def points(*found: IndexSpace) -> Points:
    return {point for space in found for rect in space.rects for point in rect.points()}


def well_formed(space: IndexSpace, wanted: Points) -> None:
    """Disjoint boxes, none empty, ascending, of exactly these points."""
    assert points(space) == wanted
    assert space.volume == sum(rect.volume for rect in space.rects) == len(wanted)
    assert space.is_empty == (not wanted)
    assert list(space.rects) == sorted(space.rects, key=lambda rect: (rect.lo, rect.hi))
    assert not any(rect.is_empty for rect in space.rects)


@given(pairs)
@PROFILE
def test_two_spaces_against_their_points(pair: tuple[IndexSpace, IndexSpace]) -> None:
    first, second = pair
    a, b = points(first), points(second)
    well_formed(intersect(first, second), a & b)
    assert meets(first, second) == bool(a & b)
    rest = without(first, second)
    assert points(*rest) == a - b
    assert sum(part.volume for part in rest) == len(a - b)
    assert not any(part.is_empty for part in rest)
    well_formed(union([first, second]), a | b)


@given(dimensions.flatmap(lambda n: st.tuples(sets(n), spaces(n))))
@PROFILE
def test_the_operators_of_a_set(pair: tuple[RectSet, IndexSpace]) -> None:
    first, second = pair
    a, b = points(first), points(second)
    well_formed(first | second, a | b)
    well_formed(first & second, a & b)
    well_formed(first - second, a - b)
    assert first.covers(second) == (b <= a)
    assert first.overlaps(second) == bool(a & b)


@given(dimensions.flatmap(lambda n: st.tuples(sets(n), sets(n))))
@PROFILE
def test_sets_are_equal_when_their_points_are(pair: tuple[RectSet, RectSet]) -> None:
    first, second = pair
    assert (first == second) == (points(first) == points(second))
    rebuilt = RectSet.empty()
    for rect in reversed(first.rects):
        rebuilt |= rect
    assert rebuilt == first
    assert hash(rebuilt) == hash(first)


@given(st.integers(1, 3).flatmap(sets))
@PROFILE
def test_bounds_and_positions(space: RectSet) -> None:
    if space.is_empty:
        with pytest.raises(RequestError, match="has no bounds"):
            _ = space.bounds
        return
    bounds = space.bounds
    assert all(bounds.contains(rect) for rect in space.rects)
    for axis in range(space.ndim):
        assert bounds.lo[axis] == min(point[axis] for point in points(space))
        assert bounds.hi[axis] == 1 + max(point[axis] for point in points(space))
    found = [tuple(int(i) for i in point) for point in zip(*space.positions(), strict=True)]
    listed = [tuple(i - low for i, low in zip(p, bounds.lo, strict=True)) for r in space.rects for p in r.points()]
    assert found == listed
    marked = np.zeros(bounds.shape, dtype=bool)
    marked[space.positions()] = True
    assert int(marked.sum()) == space.volume


@given(dimensions.flatmap(lambda n: st.lists(spaces(n), max_size=5)))
@PROFILE
def test_crossing_finds_every_pair(found: list[IndexSpace]) -> None:
    filled = [space for space in found if not space.is_empty]
    pairs = {(i, j) for i, j in itertools.combinations(range(len(filled)), 2) if points(filled[i]) & points(filled[j])}
    listed = list(crossing(filled))
    assert len(listed) == len(pairs)
    assert set(listed) == pairs


@given(dimensions.flatmap(spaces), st.integers(1, 5))
@PROFILE
def test_parts_are_disjoint_and_nearly_equal(space: IndexSpace, count: int) -> None:
    if space.is_empty:
        return
    parts = part(space, count)
    assert 1 <= len(parts) <= count
    assert points(*parts) == points(space)
    assert sum(part.volume for part in parts) == space.volume
    assert not any(part.is_empty for part in parts)
    if isinstance(space, Rect) and space.shape:
        most = max(space.shape)
        slab = space.volume // most
        assert max(part.volume for part in parts) - min(part.volume for part in parts) in {0, slab}


@given(st.integers(1, 3).flatmap(sets))
@PROFILE
def test_disjoint_parts_are_joined_again(space: RectSet) -> None:
    if space.is_empty:
        return
    parts = [simplest(RectSet([rect]), space.ndim) for rect in space.rects]
    for found in (unite(parts), (as_one(parts),)):
        assert points(*found) == points(space)
        assert sum(part.volume for part in found) == space.volume


def test_a_set_of_one_box_is_the_box() -> None:
    box = Rect((1, 2), (3, 4))
    assert simplest(RectSet.of([box]), 2) == box
    assert simplest(RectSet.empty(), 2) == Rect((0, 0), (0, 0))
    two = RectSet.of([box, Rect((8, 8), (9, 9))])
    assert simplest(two, 2) is two


def test_long_sets_are_printed_short() -> None:
    assert str(RectSet.of([Rect((2 * i,), (2 * i + 1,)) for i in range(10)])).endswith("[14:15], ... 2 more}")
    assert str(RectSet.of([Rect((0,), (1,)), Rect((1,), (3,))])) == "{[0:3]}"


def test_a_set_is_not_equal_to_something_else() -> None:
    assert RectSet.empty() != ()
    assert RectSet.empty() == RectSet.of([Rect((3,), (3,))])


def test_boxes_of_different_axes_make_no_set() -> None:
    with pytest.raises(RequestError):
        RectSet.of([Rect((0,), (4,)), Rect((0, 0), (4, 4))])
