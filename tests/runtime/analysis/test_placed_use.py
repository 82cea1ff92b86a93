"""Placed uses: columns give the uses that tuples give, and say which are alike."""

from __future__ import annotations

import numpy as np

from maniple.regions.index_space import RectSet
from maniple.regions.logical_region import LogicalRegion
from maniple.regions.privilege import READ, Coherence
from maniple.regions.rectangle import Rect
from maniple.runtime.analysis.placed_use import PlacedUse, PlacedUses, Placing, place_uses
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.launch import Launch, Requirement
from maniple.runtime.schedule.launch_columns import Points, Rects

MACHINE = Machine.preset("cpu:2x2")
POINTS = Points(np.asarray([(0,), (0,), (4,), (5,)]), np.asarray([1, 1, 2, 3]), np.asarray([0, 2, 1, 3]))
RECTS = Rects(np.asarray([[(0, 4)], [(0, 4)], [(4, 4)], [(4, 6)]]))
REGION = LogicalRegion(0, "x", Rect.of_shape((6,)), "float32")
LAUNCH = Launch("work", POINTS, (Requirement(REGION, READ, RECTS),))


def test_the_uses_of_a_launch_leave_out_who_uses_nothing() -> None:
    uses = Placing(MACHINE).uses(LAUNCH, LAUNCH.requirements[0])
    assert isinstance(uses, PlacedUses)
    assert tuple(uses) == place_uses(LAUNCH, LAUNCH.requirements[0], MACHINE)
    assert uses[2] == PlacedUse(3, (5,), 3, 1, Rect((4,), (6,)))
    # point, number of the colour, processor, memory, low, high
    assert uses.table.tolist() == [[0, 0, 0, 0, 0, 4], [1, 0, 2, 1, 0, 4], [3, 2, 3, 1, 4, 6]]


def test_uses_are_found_once_for_launches_with_the_same_points_and_boxes() -> None:
    placing, again = Placing(MACHINE), Launch("again", POINTS, (Requirement(REGION, READ, RECTS),))
    uses = placing.uses(LAUNCH, LAUNCH.requirements[0])
    assert placing.uses(again, again.requirements[0]) is uses
    shared = Requirement(REGION, READ, RECTS, Coherence.SIMULTANEOUS)
    assert all(use.shared for use in placing.uses(LAUNCH, shared))


def test_equal_columns_are_equal_uses() -> None:
    uses = Placing(MACHINE).uses(LAUNCH, LAUNCH.requirements[0])
    other = Placing(MACHINE).uses(LAUNCH, LAUNCH.requirements[0])
    assert uses == other
    assert hash(uses) == hash(other)
    moved = Placing(MACHINE).uses(LAUNCH, Requirement(REGION, READ, Rects(RECTS.bounds - 1)))
    assert uses != moved


def test_columns_hold_boxes_that_nobody_shares() -> None:
    uses = place_uses(LAUNCH, LAUNCH.requirements[0], MACHINE)
    found = PlacedUses.of(uses)
    assert found is not None
    assert tuple(found) == uses
    assert PlacedUses.of(found) is found
    assert PlacedUses.of([PlacedUse(0, (0,), 0, 0, Rect((0,), (4,)), shared=True)]) is None
    assert PlacedUses.of([PlacedUse(0, (0,), 0, 0, RectSet.of([Rect((0,), (1,)), Rect((2,), (3,))]))]) is None
