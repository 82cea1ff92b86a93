"""Runoffs of frontiers: which points stay, and with which time."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

import maniple as mp
from maniple.process.error import RequestError
from maniple.strategies.cost_model.cost_model import Repeated
from maniple.strategies.interface.plan_frontier import Frontier, FrontierPoint
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.search import frontier_runoff
from maniple.strategies.search.frontier_runoff import decide_frontier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.strategies.cost_model.cost_model import CostModel

SEARCHED_MS = (40.0, 39.0, 30.0)
PASSES_MS = ((48.0, 41.0, 41.5, 40.6, 40.9), (47.0, 41.4, 41.1, 40.5, 41.2), (38.0, 31.0, 31.2, 30.8, 30.9))
TABLE = """
    1 GiB     40.0 ms         41.0 ms        48.0 41.0 41.5 40.6 40.9    the leanest: stays
    2 GiB     39.0 ms         41.1 ms        47.0 41.4 41.1 40.5 41.2    the first is not slower: goes
    3 GiB     30.0 ms         31.0 ms        38.0 31.0 31.2 30.8 30.9    the first is slower: stays
"""


def graph_of() -> mp.Graph:
    g = mp.Graph("layer")
    x, y = g.input("x", (8, 16)), g.input("y", (8, 16))
    g.loss(g.mse_loss(g.linear(x, 16), y))
    return g


def frontier() -> Frontier:
    plan = mp.search(graph_of(), mp.Machine.cpu(2))
    points = [
        FrontierPoint(ms / 1e3, gib << 30, ms / 1e3, gib << 30, 2, replace(plan, strategy=str(gib)))
        for gib, ms in enumerate(SEARCHED_MS, 1)
    ]
    return Frontier(tuple(points), True, 0.0, 3, 3, (), 1.0, 1.0, 1 << 40)


def repeated(passes_ms: Sequence[tuple[float, ...]]) -> Repeated:
    """Costs that simulations are to say: by the number of a point."""
    middle = [median(row) for row in passes_ms]
    return Repeated(cast("CostModel", middle), cast("Any", tuple(zip(*passes_ms, strict=True))))


@pytest.fixture(autouse=True)
def _simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    def simulation(_graph: object, _machine: object, plan: mp.Plan, costs: Any, _optimizer: object) -> SimpleNamespace:
        return SimpleNamespace(makespan_ns=round(1e6 * costs[int(plan.strategy) - 1]))

    monkeypatch.setattr(frontier_runoff, "Simulation", simulation)


def test_the_table_of_a_runoff() -> None:
    assert TABLE.strip() in (frontier_runoff.__doc__ or "")
    found = decide_frontier(Problem(graph_of(), mp.Machine.cpu(2)), repeated(PASSES_MS), frontier())
    assert [(point.peak_memory_bytes >> 30, point.step_s) for point in found] == [(1, 0.041), (3, 0.031)]
    assert [point.plan.predicted.step_s for point in found] == [0.041, 0.031]
    assert (found.model_points, found.simulated) == (3, 3)


def test_a_point_that_is_faster_in_all_passes_but_one_stays() -> None:
    passes = [PASSES_MS[0], (48.5, 38.0, 38.1, 38.2, 38.0), PASSES_MS[2]]
    found = decide_frontier(Problem(graph_of(), mp.Machine.cpu(2)), repeated(passes), frontier())
    assert [point.peak_memory_bytes >> 30 for point in found] == [1, 2, 3]


class Clock:
    """Costs that are timed here; says which plans were timed side by side."""

    timing = True

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def survey(self, within_s: float) -> None:
        return None

    def side_by_side(self, plans: Sequence[mp.Plan], within_s: float) -> Repeated | None:
        self.asked.append([plan.strategy for plan in plans])
        if len(self.asked) > 1:
            raise KeyboardInterrupt
        return repeated(PASSES_MS)


def test_a_search_with_measured_costs_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from maniple.strategies.frontier.pareto import Pareto

    monkeypatch.setattr(Pareto, "terminate", lambda *_: True)
    monkeypatch.setattr(Pareto, "frontier", lambda *_: frontier())
    clock = Clock()
    asked: dict[str, Any] = {"strategy": "pareto", "objective": "pareto", "costs": clock}
    found = mp.search(graph_of(), mp.Machine.cpu(2), **asked)
    assert isinstance(found, Frontier)
    assert clock.asked == [["1", "2", "3"]]
    assert [point.peak_memory_bytes >> 30 for point in found] == [1, 3]
    # Interrupted, it is what was found before.
    assert len(mp.search(graph_of(), mp.Machine.cpu(2), **asked)) == 3
    with pytest.raises(RequestError):
        found.best(memory=1)
