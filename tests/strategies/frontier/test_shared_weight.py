"""Weights of several users: prices together and at least, over every assignment of a small graph, and the gap."""

from __future__ import annotations

from itertools import product

import pytest

import maniple as mp
from maniple.strategies.frontier.additive_model import additive_model
from maniple.strategies.frontier.full_split import full_splits
from maniple.strategies.frontier.gap_search import solve
from maniple.strategies.frontier.shared_weight import gap
from maniple.strategies.frontier.weighted_sum import Found
from maniple.strategies.interface.space import Space
from maniple.strategies.interface.strategy import Problem

pytestmark = pytest.mark.simulator


def graph_of(*, tied: bool) -> mp.Graph:
    """Three layers, of which the first and the last have one weight, or each its own."""
    graph = mp.Graph("tied" if tied else "apart")
    x, y = graph.input("x", (4, 64)), graph.input("y", (4, 64))
    weight = graph.parameter("weight", (64, 64)) if tied else None
    first = graph.linear(x, 64, weight=weight, bias=False)
    last = graph.linear(graph.linear(first, 64, bias=False), 64, weight=weight, bias=False)
    graph.loss(graph.mse_loss(last, y))
    return graph


def test_every_assignment_is_within_the_gap_of_a_point_and_no_less_than_the_bound() -> None:
    problem = Problem(graph_of(tied=True), mp.Machine.preset("p100x4"))
    space = Space.of(problem.graph, 4)
    choices = tuple(full_splits(space, number) for number in range(len(space.names)))
    model, _, shared = additive_model(problem, space, choices)
    assert [space.names[number] for number in shared.operators] == ["linear", "linear_2"]
    points, bound, least = solve(model, 0.0, 1).points, solve(shared.least(), 0.0, 1), shared.least()
    found = gap([shared.together(p) for p in points], [(p.memory, p.ticks) for p in bound.points], bound.epsilon)
    assert found > 0.0
    mine, differ = [shared.together(point) for point in points], 0
    no_homes = (0,) * len(choices)
    for chosen in product(*map(range, model.sizes)):
        memory, ticks = model.total(chosen, no_homes)
        price = shared.together(Found(memory, ticks, chosen, no_homes))
        low = least.total(chosen, no_homes)
        assert low[0] <= price[0]
        assert low[1] <= price[1] + 4  # each part is rounded to a nanosecond
        differ += price != (memory, ticks)
        assert any(m <= (1 + found) * price[0] and t <= (1 + found) * (price[1] + 4) for m, t in mine)
        if chosen[shared.operators[0]] == chosen[shared.operators[1]]:
            assert price == pytest.approx((memory, ticks), abs=4)  # who cuts it alike pays what the model says
    assert differ, "without users that disagree nothing is seen of their common home"


def test_a_frontier_names_who_shares_and_tells_the_gap() -> None:
    machine = mp.Machine.preset("p100x4")
    tied, apart = (
        mp.search(graph_of(tied=one), machine, strategy="pareto", objective="pareto") for one in (True, False)
    )
    assert (tied.exact, tied.inexact) == (False, ("linear", "linear_2"))
    assert tied.gap is not None
    assert tied.gap > 0.0
    assert mp.Frontier.parse(tied.text()) == tied
    assert (apart.exact, apart.inexact, apart.gap) == (True, (), None)


def test_the_gap_is_the_largest_of_the_smallest_ratios() -> None:
    """(8, 20) is reached within 25 % by (10, 20), and (16, 10) within 20 % by (16, 12)."""
    assert gap([(10, 20), (16, 12)], [(8, 20), (16, 10)], 0.0) == pytest.approx(0.25)
    assert gap([(10, 20), (16, 12)], [(8, 20), (16, 10)], 0.01) == pytest.approx(1.01 * 1.25 - 1)
    assert gap([(5, 5)], [(5, 5)], 0.0) == 0.0
