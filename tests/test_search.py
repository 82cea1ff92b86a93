"""The search driver: refusals, budgets, seeds, and plans that fit."""

from __future__ import annotations

import math

import pytest

import maniple as mp
from maniple import search as face
from maniple.regions.error import RequestError
from maniple.strategies.registry import installed


def network(*, loss: bool = True) -> mp.Graph:
    g = mp.Graph("g")
    x, y = g.input("x", (8, 2)), g.input("y", (8,), dtype="int64")
    logits = g.linear(x, 4)
    if loss:
        g.loss(g.cross_entropy(logits, y))
    return g


MACHINE = mp.Machine.cpu(2)


@pytest.mark.parametrize("strategy", sorted(installed().names()))
def test_every_installed_strategy_gives_a_plan_that_fits(strategy: str) -> None:
    graph = network()
    plan = mp.search(graph, MACHINE, strategy=strategy, budget=0.2)
    plan.validate(graph, MACHINE)
    assert plan.strategy == strategy


def test_the_same_arguments_give_the_same_plan() -> None:
    graph = network()
    plans = [mp.search(graph, MACHINE, strategy="random", seed=seed).to_json() for seed in (5, 5)]
    assert plans[0] == plans[1]
    others = [mp.search(graph, MACHINE, strategy="random", seed=seed).to_json() for seed in range(6)]
    assert any(other["operators"] != plans[0]["operators"] for other in others)


def test_an_unknown_strategy_shows_the_nearest() -> None:
    with pytest.raises(RequestError, match="did you mean 'data_parallel'"):
        mp.search(network(), MACHINE, strategy="data_paralel")


def test_an_unknown_objective_shows_the_good_ones() -> None:
    with pytest.raises(RequestError, match="objective 'speed': expected time, memory or pareto"):
        mp.search(network(), MACHINE, objective="speed")  # type: ignore[arg-type]


@pytest.mark.parametrize("budget", [0.0, -1.0, math.nan])
def test_a_budget_is_above_zero(budget: float) -> None:
    with pytest.raises(RequestError, match="budget: expected more than 0 seconds"):
        mp.search(network(), MACHINE, budget=budget)


def test_a_graph_needs_a_loss() -> None:
    with pytest.raises(RequestError, match="loss"):
        mp.search(network(loss=False), MACHINE)


def test_the_face_is_the_function() -> None:
    assert callable(face)
