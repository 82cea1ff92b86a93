from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from maniple.regions.arrangement import arrange, meetings
from maniple.regions.index_space import RectSet
from maniple.regions.rectangle import Rect

PROFILE = settings(derandomize=True, deadline=None, max_examples=300)


def boxes(ndim: int) -> st.SearchStrategy[Rect]:
    side = st.tuples(st.integers(0, 5), st.integers(0, 4))
    return st.lists(side, min_size=ndim, max_size=ndim).map(
        lambda sides: Rect(tuple(low for low, _ in sides), tuple(low + extent for low, extent in sides))
    )


@given(st.integers(0, 3).flatmap(lambda n: st.lists(boxes(n), max_size=7)))
@PROFILE
def test_each_point_is_in_one_cell_with_the_boxes_that_cover_it(rects: list[Rect]) -> None:
    found = [(point, members) for cell, members in arrange(rects) for point in cell.points()]
    wanted: dict[tuple[int, ...], tuple[int, ...]] = {}
    for position, rect in enumerate(rects):
        for point in rect.points():
            wanted[point] = (*wanted.get(point, ()), position)
    assert len(found) == len(wanted)
    assert dict(found) == wanted


def test_the_drawn_table() -> None:
    rects = [Rect((0,), (4,)), Rect((2,), (6,)), Rect((0,), (4,))]
    assert [(str(cell), members) for cell, members in arrange(rects[:2])] == [
        ("[0:2]", (0,)),
        ("[2:4]", (0, 1)),
        ("[4:6]", (1,)),
    ]
    assert [(str(cell), members) for cell, members in arrange(rects)] == [
        ("[0:2]", (0, 2)),
        ("[2:4]", (0, 1, 2)),
        ("[4:6]", (1,)),
    ]


@given(st.integers(1, 3).flatmap(lambda n: st.tuples(st.lists(boxes(n), max_size=6), st.lists(boxes(n), max_size=6))))
@PROFILE
def test_meetings_are_all_pairs_that_share_a_point(case: tuple[list[Rect], list[Rect]]) -> None:
    first, second = RectSet.of(case[0]).rects, RectSet.of(case[1]).rects
    assert meetings(first, second) == _brute(first, second)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
@PROFILE
def test_meetings_of_large_tilings(rows: int, columns: int, other_rows: int, other_columns: int) -> None:
    whole = Rect.of_shape((12, 12))

    def tiles(down: int, across: int) -> list[Rect]:
        return [tile for row in whole.split(0, 3 * down) for tile in row.split(1, 3 * across)]

    first, second = tiles(rows, columns), tiles(other_rows, other_columns)
    assert meetings(first, second) == _brute(first, second)
    assert meetings(first, first) == [(i, i) for i in range(len(first))]
    some = [*first[::2], *second[1::2]]
    kept = RectSet.of(some).rects
    assert meetings(first, kept) == _brute(first, kept)


def _brute(first: list[Rect] | tuple[Rect, ...], second: list[Rect] | tuple[Rect, ...]) -> list[tuple[int, int]]:
    return [
        (i, j)
        for i, j in itertools.product(range(len(first)), range(len(second)))
        if set(first[i].points()) & set(second[j].points())
    ]
