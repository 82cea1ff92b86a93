"""The benchmark of what plans take: which plans it measures, and what it says of them."""

from __future__ import annotations

import frontier_truth
import pytest
from frontier_truth import Measured, head, line, summary

import maniple as mp
from maniple.runtime.machine.world_machine import host_machine
from maniple.testing import local_worlds, run_on_worlds

pytestmark = pytest.mark.simulator


def row(name: str, predicted: int, scratch: int, measured: int, seconds: tuple[float, float]) -> Measured:
    return Measured(name, "pareto", predicted << 20, scratch << 20, measured << 20, *seconds)


def test_what_is_said_of_rows() -> None:
    rows = [row("a", 100, 0, 110, (1.0, 2.0)), row("a", 100, 10, 110, (2.0, 3.0)), row("b", 80, 20, 60, (1.0, 1.0))]
    told = summary(rows, timed=True)
    assert "the prediction alone: off by 10.0 % (median), 25.0 % at most" in told
    assert "with scratch: off by 10.0 % (median), 40.0 % at most; 1 within 5 % with scratch." in told
    assert "(Kendall's tau): a 1.00, b of one time." in told
    assert line(rows[1], timed=False) == "| a | pareto | 100.0 | 10.0 | 110.0 | 1.100 | 1.000 |"
    assert head(timed=True).count("|") // 2 == line(rows[0], timed=True).count("|")


def test_the_frontiers_plans_come_first_and_each_is_another_one() -> None:
    graph = mp.Graph("layers")
    x, y = graph.input("x", (8, 32)), graph.input("y", (8, 32))
    for _ in range(2):
        x = graph.linear(x, 32)
    graph.loss(graph.mse_loss(x, y))
    machine = run_on_worlds(local_worlds(2), host_machine)[0]
    plans = frontier_truth.plans_of(graph, machine)
    found = mp.search(graph, machine, strategy="pareto", objective="pareto", optimizer=frontier_truth.OPTIMIZER)
    assert len(plans) == frontier_truth.PLANS
    assert [plan for _, plan in plans][: len(found)] == [point.plan for point in found][: frontier_truth.PLANS]
    assert all(plan.processors_used() == (0, 1) for _, plan in plans)
    assert len({plan.operators for _, plan in plans}) >= frontier_truth.PLANS - len(found) + 1
