"""Placement of plans through mappers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

import maniple as mp
from maniple.operators.plan.mapper_placement import map_plan
from maniple.process.error import RequestError
from maniple.runtime.program.mapper import LaunchView, Mapper, TaskView

MACHINE = mp.Machine.cpu(2, ranks=2)


@pytest.fixture
def graph() -> mp.Graph:
    g = mp.Graph("g")
    x, y = g.input("x", (8, 2)), g.input("y", (8,), dtype="int64")
    g.loss(g.cross_entropy(g.linear(x, 3), y))
    return g


class Asked(Mapper):
    """Follows the plan and remembers what it was asked."""

    def __init__(self) -> None:
        self.views: list[LaunchView] = []

    def shard(self, launch: LaunchView) -> Sequence[int]:
        self.views.append(launch)
        return super().shard(launch)


class Shifted(Mapper):
    """Every task on the next processor."""

    def _next(self, launch: LaunchView, index: int) -> int:
        assert launch.suggested is not None
        return (launch.suggested[index] + 1) % 4

    def shard(self, launch: LaunchView) -> Sequence[int]:
        return [launch.machine.rank_of(self._next(launch, index)) for index in range(len(launch.colors))]

    def select_processor(self, task: TaskView) -> int:
        return self._next(task.launch, task.index)


class OnOne(Mapper):
    def shard(self, launch: LaunchView) -> Sequence[int]:
        return [0] * len(launch.colors)

    def select_processor(self, task: TaskView) -> int:
        return 0


def test_a_mapper_is_asked_once_for_each_operator_and_each_weight(graph: mp.Graph) -> None:
    plan = mp.search(graph, MACHINE)
    asked = Asked()
    assert map_plan(plan, graph, MACHINE, asked) == plan
    names = [view.name for view in asked.views]
    assert names == ["linear", "cross_entropy", "linear.weight.update", "linear.bias.update"]
    for view in asked.views[:2]:
        assert view.suggested == plan.operator(view.name).processors
        assert len(view.colors) == 4


def replicated(plan: mp.Plan) -> mp.Plan:
    """The plan with a whole copy of every weight on every processor."""
    homes = [
        (name, replace(home, degrees=(1,) * len(home.degrees), processors=(0, 1, 2, 3), replicas=4))
        for name, home in plan.weights
    ]
    return replace(plan, weights=tuple(homes))


def test_replicas_are_points_with_one_more_coordinate(graph: mp.Graph) -> None:
    plan = replicated(mp.search(graph, MACHINE))
    asked = Asked()
    map_plan(plan, graph, MACHINE, asked)
    home = plan.weight("linear.bias")
    assert home.replicas == 4
    assert asked.views[3].colors == ((0, 0), (0, 1), (0, 2), (0, 3))
    assert asked.views[3].suggested == home.processors


def test_the_answers_replace_the_processors_and_nothing_else(graph: mp.Graph) -> None:
    plan = mp.search(graph, MACHINE)
    moved = map_plan(plan, graph, MACHINE, Shifted())
    moved.validate(graph, MACHINE)
    for node in graph.nodes:
        before, after = plan.operator(node.name), moved.operator(node.name)
        assert after.processors == tuple((processor + 1) % 4 for processor in before.processors)
        assert replace(after, processors=before.processors) == before


def test_replicas_of_one_point_need_different_processors(graph: mp.Graph) -> None:
    plan = replicated(mp.search(graph, MACHINE))
    with pytest.raises(RequestError, match=r"mapper OnOne put replicas of .* on one processor: \(0, 0, 0, 0\)"):
        map_plan(plan, graph, MACHINE, OnOne())
