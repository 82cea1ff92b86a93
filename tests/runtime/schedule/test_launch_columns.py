"""Columns of launches: what they hold is what tuples of points and boxes hold."""

from __future__ import annotations

import numpy as np

from maniple.regions.rectangle import Rect
from maniple.runtime.schedule.launch import Launch, Point
from maniple.runtime.schedule.launch_columns import Points, Rects, processors_of, volumes_of

POINTS = Points(np.asarray([(0, 0), (0, 0), (0, 1)]), np.asarray([0, 0, 1]), np.asarray([0, 2, 1]))
RECTS = Rects(np.asarray([[(0, 4), (0, 3)], [(0, 4), (0, 3)], [(0, 4), (3, 6)]]))
DRAWN = (Point((0, 0), 0), Point((0, 0), 2, 1), Point((0, 1), 1))
BOXES = (Rect((0, 0), (4, 3)), Rect((0, 0), (4, 3)), Rect((0, 3), (4, 6)))


def test_the_table_of_a_launch() -> None:
    """The table in the module's first lines."""
    assert POINTS.replicas.tolist() == [0, 1, 0]
    assert POINTS == DRAWN
    assert DRAWN == POINTS
    assert RECTS == BOXES
    assert tuple(RECTS) == tuple(RECTS[place] for place in range(3)) == BOXES
    assert hash(POINTS) == hash(DRAWN)
    assert hash(RECTS) == hash(BOXES)


def test_others_are_not_equal() -> None:
    assert DRAWN[:2] != POINTS
    assert Points(POINTS.colors, POINTS.numbers, np.asarray([0, 2, 3])) != POINTS
    assert Rects(RECTS.bounds + 1) != RECTS
    assert RECTS != "no boxes"


def test_some_points_keep_their_replicas() -> None:
    assert POINTS.select(np.asarray([0, 2])) == (DRAWN[0], DRAWN[2])


def test_columns_and_tuples_say_the_same() -> None:
    for points, rects in ((POINTS, RECTS), (DRAWN, BOXES)):
        assert processors_of(points).tolist() == [0, 2, 1]
        assert volumes_of(rects).tolist() == [12, 12, 12]
        assert Launch("work", points, ()).label(1) == "work[0,0]@p2'1"
    assert Launch("work", POINTS, ()) == Launch("work", DRAWN, ())


def test_a_scalar_has_one_element() -> None:
    assert volumes_of(Rects(np.empty((2, 0, 2), dtype=np.int64))).tolist() == [1, 1]
