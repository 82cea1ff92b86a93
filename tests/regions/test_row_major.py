"""Row-major order: the table of the docstring, and runs counted point by point."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from maniple.regions import row_major
from maniple.regions.index_space import RectSet
from maniple.regions.rectangle import Rect
from maniple.regions.row_major import runs


def test_the_table_of_the_docstring() -> None:
    bounds, columns, rows = Rect((0, 0), (8, 8)), Rect((0, 2), (8, 4)), Rect((2, 0), (4, 8))
    assert runs(columns, bounds) == 8
    assert runs(rows, bounds) == 1
    assert runs(RectSet([rows, Rect((4, 0), (5, 3))]), bounds) == 1
    text = row_major.__doc__ or ""
    assert "[0:8, 2:4]                  8 of 2 points" in text
    assert "[2:4, 0:8]                  1 of 16" in text
    assert "[2:4, 0:8] and [4:5, 0:3]   1 of 19" in text


@st.composite
def spaces(draw: st.DrawFn) -> tuple[Rect, list[Rect]]:
    """A region of up to four axes that begins anywhere, and boxes in it that may overlap."""
    low = tuple(draw(st.lists(st.integers(0, 3), max_size=4)))
    extents = [draw(st.integers(1, 6)) for _ in low]
    boxes = []
    for _ in range(draw(st.integers(0, 5))):
        cuts = [sorted((draw(st.integers(0, extent)), draw(st.integers(0, extent)))) for extent in extents]
        boxes.append(Rect(tuple(first for first, _ in cuts), tuple(last for _, last in cuts)).shift(low))
    return Rect.of_shape(extents).shift(low), boxes


@given(spaces())
def test_runs_are_those_that_are_counted_point_by_point(drawn: tuple[Rect, list[Rect]]) -> None:
    bounds, boxes = drawn
    for space in (*boxes, RectSet.of(boxes)):
        there = np.zeros(bounds.shape, dtype=np.int64)
        for box in space.rects:
            there[box.slices(bounds.lo)] = 1
        assert runs(space, bounds) == (np.diff(there.ravel(), prepend=0) > 0).sum()
