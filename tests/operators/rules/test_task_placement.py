"""Where tasks of an operator run: a point for each tile that has something to do, a replica for each memory.

``cpu:2x2`` has processors 0 and 1 on memory 0, 2 and 3 on memory 1.
"""

from __future__ import annotations

import numpy as np

import maniple as mp
from maniple.operators.rules.configuration import OperatorPlan
from maniple.operators.rules.rule import Rule
from maniple.operators.rules.task_placement import (
    PlacedTasks,
    keep_replicas,
    memory_by_processor,
    place_tasks,
    processors_by_point,
)
from maniple.regions.rectangle import Rect
from maniple.runtime.schedule.launch import Point
from maniple.runtime.schedule.launch_columns import Points

MEMORY_OF = memory_by_processor(mp.Machine.preset("cpu:2x2"))
LINEAR = Rule.parse("b k, n k -> b n").bind(((4, 6), (3, 6)))


def placed(processors: tuple[int, ...], copies: int = 1, **degrees: int) -> PlacedTasks:
    everything = tuple((factor.name, degrees.get(factor.name, 1)) for factor in LINEAR.factors)
    return place_tasks(LINEAR, OperatorPlan(everything, processors, copies), MEMORY_OF)


def test_a_memory_holds_one_replica_of_a_point() -> None:
    """The first processor of each memory computes it: a second one would write the same elements there."""
    chosen = processors_by_point(OperatorPlan((("b", 2),), (1, 0, 3, 2, 3, 2, 0, 1), 4))
    points, processors = keep_replicas(chosen, MEMORY_OF)
    assert (points.tolist(), processors.tolist()) == ([0, 0, 1, 1], [1, 3, 3, 0])
    found = Points(np.asarray([(5,), (5,), (6,), (6,)]), points, processors)
    assert found == (Point((5,), 1, 0), Point((5,), 3, 1), Point((6,), 3, 0), Point((6,), 0, 1))
    assert keep_replicas(chosen, MEMORY_OF, once=True)[1].tolist() == [1, 3]


def test_tiles_come_with_their_points_and_replicas_next_to_each_other() -> None:
    tasks = placed((0, 2, 1, 3), 2, b=2)
    assert tasks.table.folds == (None,)
    assert [(point.color[0], point.processor, point.replica) for point in tasks.points] == [
        (0, 0, 0),
        (0, 2, 1),
        (1, 1, 0),
        (1, 3, 1),
    ]
    assert [tile.range("b") for tile in tasks.tiles] == [(0, 2), (0, 2), (2, 4), (2, 4)]


def test_backward_runs_replica_zero_alone_for_a_gradient_counts_once() -> None:
    primary = placed((0, 2, 1, 3), 2, b=2).primary()
    assert [point.processor for point in primary.points] == [0, 1]
    assert [tile.range("b") for tile in primary.tiles] == [(0, 2), (2, 4)]


def test_a_task_that_does_not_use_a_tensor_uses_the_empty_box() -> None:
    biased = Rule.parse("b k, n k, [n]@k -> b n").bind(((4, 6), (3, 6), (3,)))
    tasks = place_tasks(biased, OperatorPlan((("b", 1), ("n", 1), ("k", 2)), (0, 1)), MEMORY_OF)
    assert tasks.rects("operand", 2, 1) == (Rect((0,), (3,)), Rect((0,), (0,)))
    assert tasks.rects("operand", 0, 2) == (Rect((0, 0), (4, 3)), Rect((0, 3), (4, 6)))


def test_what_folds_has_no_replicas_for_a_contribution_counts_once() -> None:
    tasks = placed((0, 2, 1, 3), 2, k=2)
    assert tasks.table.folds == ("+",)
    assert [(point.processor, point.replica) for point in tasks.points] == [(0, 0), (1, 0)]


def test_a_part_without_elements_has_no_task() -> None:
    tasks = placed((0, 1, 2, 3, 0), n=5)
    assert [point.processor for point in tasks.points] == [0, 1, 2]
    assert not any(tile.is_empty for tile in tasks.tiles)
