from __future__ import annotations

from maniple.regions.movement import Copy, Fold, Movements, Part
from maniple.regions.privilege import ReductionOp
from maniple.regions.rectangle import Rect

SUM = ReductionOp("sum", "+")


def test_volume_counts_what_leaves_a_memory() -> None:
    parts = (Part(0, ((0, 0),), base=True), Part(1, ((0, 1), (0, 2)), base=False), Part(2, (), base=True))
    fold = Fold(Rect.of_shape((3, 2)), 1, SUM, parts)
    at_home = Fold(Rect((3, 0), (4, 2)), 1, SUM, (Part(1, ((0, 1),), base=False),))
    copy = Copy(Rect.of_shape((5,)), 1, 0)
    assert Movements().volume() == 0
    assert Movements((at_home,)).volume() == 0
    assert Movements((fold, at_home), (copy,)).volume() == 2 * 6 + 5


def test_one_value_leaves_a_memory_however_many_contributions_it_has() -> None:
    few = Fold(Rect.of_shape((4,)), 0, SUM, (Part(1, ((0, 1),), base=False),))
    many = Fold(Rect.of_shape((4,)), 0, SUM, (Part(1, ((0, 1), (0, 2), (0, 3)), base=True),))
    assert Movements((few,)).volume() == Movements((many,)).volume() == 4
