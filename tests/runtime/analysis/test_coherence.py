"""Atomic launches as launches whose points do not interfere."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maniple.regions.logical_region import LogicalRegion
from maniple.regions.privilege import READ, READ_WRITE, Coherence, Privilege
from maniple.regions.rectangle import Rect
from maniple.runtime.analysis.coherence import serialise
from maniple.runtime.schedule.launch import Launch, Point, Requirement

X = LogicalRegion(0, "x", Rect.of_shape((8,)), "float32")


def binder(point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], object]:
    return lambda: point


def launch(spans: Sequence[tuple[int, int]], privilege: Privilege = READ_WRITE) -> Launch:
    points = tuple(Point((number,), number) for number in range(len(spans)))
    rects = tuple(Rect((low,), (high,)) for low, high in spans)
    return Launch("work", points, (Requirement(X, privilege, rects, Coherence.ATOMIC),), binder)


def test_the_drawn_table() -> None:
    parts = serialise(launch([(0, 2), (1, 3), (4, 6), (2, 5)]))
    assert [points for _, points in parts] == [(0, 2), (1,), (3,)]
    for part, points in parts:
        assert [point.color for point in part.points] == [(number,) for number in points]
        assert part.binder is not None
        assert [part.binder(place, (), 1)() for place in range(len(points))] == list(points)


spans = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 8)), min_size=1, max_size=7)


@given(spans)
@settings(max_examples=100)
def test_each_point_is_behind_those_it_interferes_with_and_no_further(some: list[tuple[int, int]]) -> None:
    parts = serialise(launch(some))
    turn = {point: number for number, (_, points) in enumerate(parts) for point in points}
    assert sorted(turn) == list(range(len(some)))
    for point, (low, high) in enumerate(some):
        met = [p for p in range(point) if set(range(*some[p])) & set(range(low, high))]
        assert turn[point] == max((turn[p] + 1 for p in met), default=0)


def test_readers_stay_together() -> None:
    whole = launch([(0, 8), (0, 8)], READ)
    assert serialise(whole) == ((whole, (0, 1)),)
