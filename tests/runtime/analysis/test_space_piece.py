"""Pieces of spaces: the table of the docstring, and drawn spaces that their pieces cover once, in either form."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from maniple.regions.columns.boxes import HIGH, LOW, WIDTH
from maniple.regions.index_space import IndexSpace, RectSet
from maniple.regions.rectangle import Rect, recut
from maniple.runtime.analysis import space_piece
from maniple.runtime.analysis.space_piece import PiecedSpaces
from maniple.runtime.schedule.space import BoxSpaces


def test_the_table_of_the_docstring() -> None:
    spaces = PiecedSpaces([Rect((0, 0), (8, 3)), Rect((0, 0), (2, 9))])
    rows, columns = spaces.cut(0, 4), spaces.cut(1, 3)
    found = spaces.all()
    assert [found[piece].bounds for piece in rows] == [Rect((low, 0), (low + 2, 3)) for low in (0, 2, 4, 6)]
    assert [found[piece].bounds for piece in columns] == [Rect((0, low), (2, low + 3)) for low in (0, 3, 6)]
    assert spaces.cut(0, 4) == rows
    for line in ("(8, 3) in 4 pieces    rows 0 and 1", "(2, 9) in 3 pieces    columns 0 to 2"):
        assert line in (space_piece.PiecedSpaces.__doc__ or "")


def test_what_is_not_cut_is_as_it_was() -> None:
    given: list[IndexSpace] = [Rect((0,), (5,))]
    spaces = PiecedSpaces(given)
    assert spaces.cut(0, 1) == [0]
    assert spaces.all() is given


@pytest.mark.parametrize("seed", range(20))
def test_pieces_cover_a_space_once(seed: int) -> None:
    chance = Random(seed)
    boxes = []
    for number in range(chance.randint(1, 4)):
        low = chance.randint(0, 3)
        boxes.append(Rect((10 * number, low), (10 * number + chance.randint(1, 9), low + chance.randint(1, 9))))
    table = np.zeros((len(boxes), WIDTH), dtype=np.int64)
    table[:, HIGH:] = 1
    for row, box in enumerate(boxes):
        table[row, LOW : LOW + 2], table[row, HIGH : HIGH + 2] = box.lo, box.hi
    whole: IndexSpace = boxes[0] if len(boxes) == 1 else RectSet(recut(boxes))
    one, last = np.zeros(1, dtype=np.int64), np.full(1, len(boxes))
    for given in ([whole], BoxSpaces(Rect((0, 0), (50, 20)), (0, 1), table, one, last)):
        spaces = PiecedSpaces(given)
        count = chance.randint(2, 12)
        pieces = spaces.cut(0, count)
        found = spaces.all()
        times = np.zeros((50, 20), dtype=np.int64)
        for piece in pieces:
            assert found[piece].volume > 0
            for rect in found[piece].rects:
                times[rect.slices((0, 0))] += 1
        expected = np.zeros_like(times)
        for box in boxes:
            expected[box.slices((0, 0))] = 1
        assert np.array_equal(times, expected)
        assert len(pieces) == min(count, max(max(rect.shape) for rect in whole.rects)) or len(boxes) > 1
        assert found[0].volume == whole.volume
