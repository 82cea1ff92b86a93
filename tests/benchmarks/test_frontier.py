"""The frontier's benchmark: its comparison with brute force counts what is wrong, and what weighted sums miss."""

from __future__ import annotations

import frontier
import numpy as np
import pytest

import maniple as mp
from maniple.strategies.frontier.pareto import Pareto
from maniple.strategies.interface.strategy import Problem

pytestmark = pytest.mark.simulator


def test_no_random_graph_is_wrong_and_weighted_sums_miss_points() -> None:
    found = frontier.brute_force(40)
    assert found["graphs"] == 40
    assert found["wrong"] == 0
    assert isinstance(found["points_no_weighted_sum_reaches"], int)
    assert found["points_no_weighted_sum_reaches"] > 0


def test_a_frontier_that_lacks_points_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontier, "reduce", lambda memory, ticks: np.lexsort((ticks, memory))[:1])
    wrong = frontier.brute_force(40)["wrong"]
    assert isinstance(wrong, int)
    assert wrong > 0


def layers() -> mp.Graph:
    graph = mp.Graph("layers")
    x, y = graph.input("x", (8, 12)), graph.input("y", (8,), dtype="int64")
    for _ in range(2):
        x = graph.relu(graph.linear(x, 12))
    graph.loss(graph.cross_entropy(graph.linear(x, 4), y))
    return graph


def test_the_fastest_alone_is_the_frontiers_fastest_and_its_own_bound() -> None:
    strategy, graph = Pareto(), layers()
    state = strategy.step(strategy.step(strategy.init(Problem(graph, mp.Machine.preset("p100x4")))))
    row = frontier.fastest("layers", graph, "p100x4")
    assert row["model_ms"] == pytest.approx(state.points[-1].ticks / 1e6, abs=0.0)
    assert row["bound_ms"] == pytest.approx(row["model_ms"], rel=1e-9)
    assert row["inexact"] == 0


def test_prices_at_once_take_fewer_calls() -> None:
    counted = frontier.calls(layers(), "p100x8")
    assert counted["prices"] > 20
    assert counted["at once"] < 0.5 * counted["one by one"]


def test_a_row_of_a_search_with_stages_counts_its_pipelines() -> None:
    row = frontier.search("layers", layers(), "p100x4", 0, ("stages",))
    assert isinstance(row["pipelines"], int)
    assert row["pipelines"] > 0
