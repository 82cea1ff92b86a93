"""Dependent partitions against what they are defined as, point by point."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maniple.process.error import RequestError
from maniple.regions.dependent import by_field, image, preimage
from maniple.regions.index_space import IndexSpace, RectSet
from maniple.regions.partition import blocks, rectangles
from maniple.regions.rectangle import Rect
from maniple.regions.subspace import Partition

PROFILE = settings(derandomize=True, deadline=None, max_examples=150)
SHAPES = ((1,), (9,), (40,), (3, 4), (2, 3, 3))
Point = tuple[int, ...]


def points(space: IndexSpace) -> set[Point]:
    return {point for rect in space.rects for point in rect.points()}


@st.composite
def boxes(draw: st.DrawFn, frame: Rect) -> Rect:
    sides = [
        sorted(draw(st.tuples(st.integers(a, b), st.integers(a, b)))) for a, b in zip(frame.lo, frame.hi, strict=True)
    ]
    return Rect(tuple(low for low, _ in sides), tuple(high for _, high in sides))


@st.composite
def spaces(draw: st.DrawFn, frame: Rect) -> IndexSpace:
    """All of a box, a part of it, or some of its points."""
    if draw(st.booleans()):
        return frame
    found = RectSet.of(draw(st.lists(boxes(frame), min_size=1, max_size=4)))
    return frame if found.is_empty else found


@st.composite
def partitions(draw: st.DrawFn, space: IndexSpace) -> Partition:
    if draw(st.booleans()):
        return blocks([draw(st.integers(1, 3)) for _ in range(space.ndim)]).bind(space)
    tiles = [
        RectSet.of(draw(st.lists(boxes(space.bounds), max_size=3))) & space for _ in range(draw(st.integers(1, 4)))
    ]
    return rectangles([tile for tile in tiles if not tile.is_empty] or [space.rects[0]]).bind(space)


@st.composite
def numbers(draw: st.DrawFn, shape: Point, most: int) -> np.ndarray:
    values = draw(st.lists(st.integers(-1, most), min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
    return np.array(values, dtype=draw(st.sampled_from([np.int64, np.int32]))).reshape(shape)


def at(values: np.ndarray, point: Point, space: IndexSpace) -> int:
    return int(values[tuple(x - low for x, low in zip(point, space.bounds.lo, strict=True))])


def numbered(frame: Rect) -> dict[int, Point]:
    return dict(enumerate(frame.points()))


def shown(partition: Partition) -> list[set[Point]]:
    for space in partition.subspaces:
        assert space.volume == len(points(space))
        assert isinstance(space, Rect) or len(space) > 1
    return [points(space) for space in partition.subspaces]


@given(st.data())
@PROFILE
def test_by_field(data: st.DataObject) -> None:
    space = data.draw(st.sampled_from(SHAPES).map(Rect.of_shape).flatmap(spaces))
    colors = Rect.of_shape(data.draw(st.sampled_from([(1,), (3,), (2, 2)])))
    values = data.draw(numbers(space.bounds.shape, colors.volume))
    found = by_field(space, values, colors)
    assert shown(found) == [{p for p in points(space) if at(values, p, space) == c} for c in range(colors.volume)]
    assert found.disjoint
    assert found.complete == all(0 <= at(values, p, space) < colors.volume for p in points(space))


@given(st.data())
@PROFILE
def test_image_and_preimage(data: st.DataObject) -> None:
    source, frame = (data.draw(st.sampled_from(SHAPES).map(Rect.of_shape)) for _ in range(2))
    space, target = data.draw(spaces(source)), data.draw(spaces(frame))
    pointers = data.draw(numbers(space.bounds.shape, frame.volume - 1))
    named = numbered(frame)
    cut = data.draw(partitions(space))
    wanted = [
        {named[at(pointers, p, space)] for p in points(tile) if at(pointers, p, space) >= 0} & points(target)
        for tile in cut.subspaces
    ]
    assert shown(image(cut, [pointers], target, frame)) == wanted
    back = data.draw(partitions(target))
    assert shown(preimage(back, [pointers], space, frame)) == [
        {p for p in points(space) if named.get(at(pointers, p, space)) in points(tile)} for tile in back.subspaces
    ]


@given(st.data())
@PROFILE
def test_image_and_preimage_of_ranges(data: st.DataObject) -> None:
    source, frame = (data.draw(st.sampled_from(SHAPES).map(Rect.of_shape)) for _ in range(2))
    space, target = data.draw(spaces(source)), data.draw(spaces(frame))
    low, high = (data.draw(numbers(space.bounds.shape, frame.volume - 1)) for _ in range(2))
    named = numbered(frame)

    def reached(p: Point) -> set[Point]:
        first = at(low, p, space)
        return {named[i] for i in range(first, at(high, p, space))} if first >= 0 else set()

    cut = data.draw(partitions(space))
    assert shown(image(cut, [low, high], target, frame)) == [
        {q for p in points(tile) for q in reached(p)} & points(target) for tile in cut.subspaces
    ]
    back = data.draw(partitions(target))
    assert shown(preimage(back, [low, high], space, frame)) == [
        {p for p in points(space) if reached(p) & points(tile)} for tile in back.subspaces
    ]


def test_the_circuit_of_the_paper() -> None:
    """Six wires between six nodes; nodes 0 to 2 are of piece 0. Each piece's wires reach into the other."""
    nodes, wires = Rect.of_shape((6,)), Rect.of_shape((6,))
    into, out = np.array([0, 1, 2, 3, 4, 5]), np.array([1, 2, 3, 4, 5, 0])
    pieces = blocks((2,)).bind(nodes)
    owned = preimage(pieces, [into], wires, nodes)
    reached = image(owned, [out], nodes, nodes)
    ghost = reached - pieces
    assert [str(space) for space in owned.subspaces] == ["[0:3]", "[3:6]"]
    assert [str(space) for space in reached.subspaces] == ["[1:4]", "{[0:1], [4:6]}"]
    assert [str(space) for space in ghost.subspaces] == ["[3:4]", "[0:1]"]


def test_few_and_many_marks_give_the_same_image() -> None:
    """A thin image is sorted, a thick one marked: the same points either way."""
    frame = Rect.of_shape((10_000,))
    for count in (3, 5_000):
        pointers = np.arange(count) * 7919 % 10_000
        (found,) = image(blocks((1,)).bind(Rect.of_shape((count,))), [pointers], frame, frame).subspaces
        assert sorted(points(found)) == sorted((p,) for p in set(pointers.tolist()))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: by_field(Rect.of_shape((3,)), np.zeros(4, dtype=int), Rect.of_shape((2,))), r"shape \(3,\)"),
        (lambda: by_field(Rect.of_shape((3,)), np.zeros(3), Rect.of_shape((2,))), "whole numbers"),
        (lambda: by_field(Rect((), ()), np.zeros((), dtype=int), Rect.of_shape((2,))), "at least one axis"),
        (
            lambda: image(blocks((1,)).bind(Rect.of_shape((3,))), [np.array([0, 9, 1])], *[Rect.of_shape((9,))] * 2),
            r"pointers below 9 into \[0:9\], got 9",
        ),
    ],
)
def test_what_does_not_fit_is_refused(wrong: object, message: str) -> None:
    assert callable(wrong)
    with pytest.raises(RequestError, match=message):
        wrong()
