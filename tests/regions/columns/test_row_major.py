"""Row-major order: the tables of the docstring, and runs counted axis by axis and point by point."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numba
import numpy as np
from counted_runs import runs, touched_bytes
from hypothesis import given
from hypothesis import strategies as st

from maniple.regions.columns import row_major
from maniple.regions.columns.row_major import Boxes, Layout
from maniple.regions.index_space import IndexSpace, RectSet
from maniple.regions.rectangle import Rect


@numba.njit
def count_touched(table: Boxes, layout: Layout) -> int:
    """Call what compiled code alone calls."""
    return row_major.touched_bytes(table, layout)


def counted(spaces: Sequence[IndexSpace], bounds: Rect, itemsize: int, line: int) -> list[int]:
    """What is counted for parts of a region."""
    back = tuple(-low for low in bounds.lo)
    rows = [(0, *box.shift(back).lo, *box.shift(back).hi) for space in spaces for box in space.rects]
    table = np.asarray(rows, dtype=np.int64).reshape(len(rows), 1 + 2 * bounds.ndim)
    starts = np.cumsum([0, *(len(space.rects) for space in spaces)]).tolist()
    layout = np.asarray((*bounds.shape, itemsize, line), dtype=np.int64)
    return [count_touched(table[begin:end], layout) for begin, end in pairwise(starts)]


def test_the_table_of_runs() -> None:
    bounds, columns, rows = Rect((0, 0), (8, 8)), Rect((0, 2), (8, 4)), Rect((2, 0), (4, 8))
    shown = [columns, rows, RectSet([rows, Rect((4, 0), (5, 3))])]
    assert counted(shown, bounds, 0, 1) == [8, 1, 1]
    text = row_major.__doc__ or ""
    assert "[0:8, 2:4]                  8 of 2 points" in text
    assert "[2:4, 0:8]                  1 of 16" in text
    assert "[2:4, 0:8] and [4:5, 0:3]   1 of 19" in text


def test_the_table_of_lines() -> None:
    shown = [Rect((0, 2), (8, 4)), Rect((2, 0), (4, 8)), Rect((0, 0), (8, 8))]
    assert counted(shown, Rect((0, 0), (8, 8)), 4, 64) == [512, 64, 256]
    text = row_major.__doc__ or ""
    assert "a fourth by x (the inner axis)                    8 of 8 bytes   64        512" in text
    assert "a fourth by y                                     1 of 64        64        64" in text
    assert "all                                               1 of 256       256       256" in text


def test_a_tile_of_boxes_touches_a_line_for_each_run_or_all_its_bytes() -> None:
    """Two strips of 8 runs; with a box that continues some of them; in long runs; and nothing."""
    strips = [Rect((0, 0), (8, 2)), Rect((0, 4), (8, 6))]
    long = RectSet([Rect((0, 0), (4, 8)), Rect((5, 0), (7, 8))])
    shown = [RectSet(strips), RectSet([*strips, Rect((2, 6), (4, 8))]), long, RectSet()]
    assert counted(shown, Rect((0, 0), (8, 8)), 4, 64) == [16 * 64, 14 * 64, 6 * 8 * 4, 0]


def test_nobody_counts_lines_of_no_bytes() -> None:
    assert counted([Rect((0,), (8,))], Rect((0,), (8,)), 4, 0) == [0]


@st.composite
def spaces(draw: st.DrawFn) -> tuple[Rect, list[Rect]]:
    """A region of up to six axes that begins anywhere, and boxes in it that may overlap."""
    low = tuple(draw(st.lists(st.integers(0, 3), max_size=6)))
    extents = [draw(st.integers(1, 6 if len(low) < 5 else 3)) for _ in low]
    boxes = []
    for _ in range(draw(st.integers(0, 5))):
        cuts = [sorted((draw(st.integers(0, extent)), draw(st.integers(0, extent)))) for extent in extents]
        boxes.append(Rect(tuple(first for first, _ in cuts), tuple(last for _, last in cuts)).shift(low))
    return Rect.of_shape(extents).shift(low), boxes


@given(spaces())
def test_runs_are_those_that_are_counted_point_by_point(drawn: tuple[Rect, list[Rect]]) -> None:
    bounds, boxes = drawn
    shown = [*boxes, RectSet.of(boxes), RectSet(RectSet.of(boxes).rects[::-1])]  # also where no order helps
    expected = []
    for space in shown:
        there = np.zeros(bounds.shape, dtype=np.int64)
        for box in space.rects:
            there[box.slices(bounds.lo)] = 1
        expected.append(int((np.diff(there.ravel(), prepend=0) > 0).sum()))
    assert counted(shown, bounds, 0, 1) == expected
    assert [runs(space, bounds) for space in shown] == expected


@given(spaces(), st.sampled_from([1, 4, 8]))
def test_touched_bytes_are_those_of_the_oracle(drawn: tuple[Rect, list[Rect]], itemsize: int) -> None:
    bounds, boxes = drawn
    shown = [*boxes, RectSet.of(boxes)]
    assert counted(shown, bounds, itemsize, 64) == [touched_bytes(space, bounds, itemsize, 64) for space in shown]
