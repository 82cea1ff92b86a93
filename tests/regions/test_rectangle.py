from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maniple.process.error import RequestError
from maniple.regions.rectangle import Rect, merge, overlapping

settings.register_profile("regions", derandomize=True, deadline=None, max_examples=300)
PROFILE = settings.get_profile("regions")


def boxes(ndim: int) -> st.SearchStrategy[Rect]:
    side = st.tuples(st.integers(-1, 5), st.integers(0, 4))
    return st.lists(side, min_size=ndim, max_size=ndim).map(
        lambda sides: Rect(tuple(low for low, _ in sides), tuple(low + extent for low, extent in sides))
    )


def many(ndim: int, most: int = 6) -> st.SearchStrategy[list[Rect]]:
    return st.lists(boxes(ndim), max_size=most)


dimensions = st.integers(0, 3)
pairs = dimensions.flatmap(lambda n: st.tuples(boxes(n), boxes(n)))
lists = dimensions.flatmap(many)


def points(*rects: Rect) -> set[tuple[int, ...]]:
    return {point for rect in rects for point in rect.points()}


def assert_disjoint(rects: tuple[Rect, ...]) -> None:
    assert sum(rect.volume for rect in rects) == len(points(*rects))
    assert not any(rect.is_empty for rect in rects)


def test_a_box_of_no_axes_is_a_scalar() -> None:
    scalar = Rect((), ())
    assert (scalar.volume, scalar.ndim, scalar.shape, scalar.is_empty) == (1, 0, (), False)
    assert list(scalar.points()) == [()]
    assert scalar.subtract(scalar) == ()
    assert scalar.slices(()) == ()
    assert scalar.overlaps(scalar)


def test_an_empty_box_keeps_its_shape_and_clamps_its_bounds() -> None:
    assert Rect.of_shape((0, 8)).shape == (0, 8)
    assert Rect((5, 0), (3, 8)) == Rect((5, 0), (5, 8))
    assert Rect((5, 0), (3, 8)).is_empty
    assert Rect((5, 2), (5, 8)).slices((9, 0)) == (slice(0, 0), slice(0, 6))
    assert Rect((0,), (4,)).contains(Rect((9,), (9,)))


def test_its_text_is_the_slices() -> None:
    assert str(Rect((0, 2), (4, 8))) == "[0:4, 2:8]"
    assert str(Rect((), ())) == "[]"


def test_split_puts_the_remainder_first_and_empty_pieces_last() -> None:
    assert [str(piece) for piece in Rect((1, 0), (11, 2)).split(0, 4)] == [
        "[1:4, 0:2]",
        "[4:7, 0:2]",
        "[7:9, 0:2]",
        "[9:11, 0:2]",
    ]
    assert [piece.shape for piece in Rect.of_shape((2,)).split(0, 3)] == [(1,), (1,), (0,)]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Rect((0,), (1, 2)),
        lambda: Rect((0,), (4,)).intersect(Rect((0, 0), (4, 4))),
        lambda: Rect((0,), (4,)).overlaps(Rect((0, 0), (4, 4))),
        lambda: Rect((0,), (4,)).contains(Rect((0, 0), (4, 4))),
        lambda: Rect((0,), (4,)).subtract(Rect((0, 0), (4, 4))),
        lambda: Rect((0,), (4,)).hull(Rect((0, 0), (4, 4))),
        lambda: Rect((0,), (4,)).shift((1, 1)),
        lambda: Rect((0,), (4,)).slices((0, 0)),
        lambda: Rect((0,), (4,)).slices((1,)),
        lambda: Rect((0,), (4,)).split(1, 2),
        lambda: Rect((0,), (4,)).split(0, 0),
    ],
)
def test_what_does_not_fit_is_refused(wrong: object) -> None:
    assert callable(wrong)
    with pytest.raises(RequestError):
        wrong()


def test_the_message_names_both_numbers_of_axes() -> None:
    with pytest.raises(RequestError, match=r"\[0:4\] with 1 and \[0:4, 0:4\] with 2"):
        Rect((0,), (4,)).overlaps(Rect((0, 0), (4, 4)))


@given(pairs)
@PROFILE
def test_boxes_against_their_points(pair: tuple[Rect, Rect]) -> None:
    first, second = pair
    a, b = points(first), points(second)
    assert first.volume == len(a)
    assert first.is_empty == (not a)
    assert points(first.intersect(second)) == a & b
    assert first.overlaps(second) == bool(a & b)
    assert first.contains(second) == (b <= a)
    rest = first.subtract(second)
    assert points(*rest) == a - b
    assert_disjoint(rest)
    assert list(rest) == sorted(rest, key=lambda rect: rect.lo)
    hull = first.hull(second)
    assert hull.contains(first)
    assert hull.contains(second)
    if a and b:
        assert hull.lo == tuple(map(min, first.lo, second.lo))
        assert hull.hi == tuple(map(max, first.hi, second.hi))


@given(pairs, st.integers(1, 5))
@PROFILE
def test_shift_slices_and_split(pair: tuple[Rect, Rect], parts: int) -> None:
    rect, other = pair
    moved = rect.shift(other.lo)
    assert moved.shape == rect.shape
    assert points(moved) == {tuple(map(sum, zip(p, other.lo, strict=True))) for p in points(rect)}
    if rect.contains(other) and not other.is_empty:
        sides = [range(low, high)[cut] for low, high, cut in zip(rect.lo, rect.hi, other.slices(rect.lo), strict=True)]
        assert set(itertools.product(*sides)) == points(other)
    for axis in range(rect.ndim):
        pieces = rect.split(axis, parts)
        sizes = [piece.shape[axis] for piece in pieces]
        assert len(pieces) == parts
        assert sizes == sorted(sizes, reverse=True)
        assert max(sizes) - min(sizes) <= 1
        assert points(*pieces) == points(rect)
        assert sum(piece.volume for piece in pieces) == rect.volume


@given(lists)
@PROFILE
def test_overlapping_finds_every_pair(rects: list[Rect]) -> None:
    found = list(overlapping(rects))
    wanted = {(i, j) for i, j in itertools.combinations(range(len(rects)), 2) if points(rects[i]) & points(rects[j])}
    assert len(found) == len(set(found))
    assert set(found) == wanted


def test_neighbours_are_joined() -> None:
    tiles = [Rect((i, j), (i + 1, j + 1)) for i in range(8) for j in range(8)]
    assert merge(tiles) == (Rect((0, 0), (8, 8)),)
