"""The lower bound against the times of plans: none may be faster."""

from __future__ import annotations

import runpy
from pathlib import Path
from statistics import median

import pytest

import maniple as mp
from maniple.strategies.bound import lower_bound_s
from maniple.strategies.registry import lookup
from maniple.strategies.simulation.simulation import Simulation
from maniple.strategies.strategy import Problem

pytestmark = pytest.mark.simulator

SEEDS = range(25)


def dense() -> mp.Graph:
    """Layers, a skip, and a loss whose classes can be split."""
    graph = mp.Graph("dense")
    x, y = graph.input("x", (6, 5)), graph.input("y", (6,), dtype="int64")
    hidden = graph.relu(graph.linear(x, 7))
    graph.loss(graph.cross_entropy(graph.linear(graph.add(hidden, graph.linear(hidden, 7)), 4), y))
    return graph


def convolved() -> mp.Graph:
    """An image, cut with halos."""
    graph = mp.Graph("convolved")
    x, y = graph.input("x", (4, 2, 6, 6)), graph.input("y", (4,), dtype="int64")
    image = graph.max_pool2d(graph.relu(graph.conv2d(x, 3, 3, padding=1)), 2)
    graph.loss(graph.cross_entropy(graph.linear(graph.flatten(image), 5), y))
    return graph


@pytest.mark.parametrize("name", ["cpu:1", "cpu:3", "cpu:2x1", "p100x4"])
@pytest.mark.parametrize("graph", [dense(), convolved()], ids=["dense", "convolved"])
def test_no_plan_is_faster_than_the_bound(graph: mp.Graph, name: str) -> None:
    machine = mp.Machine.preset(name)
    bound_ns = lower_bound_s(graph, machine) * 1e9
    assert bound_ns > 0
    plans = [lookup(strategy)().plan(Problem(graph, machine)) for strategy in ("data_parallel", "expert")]
    plans += [lookup("random")().plan(Problem(graph, machine, seed=seed)) for seed in SEEDS]
    for plan in plans:
        assert Simulation(graph, machine, plan).makespan_ns >= bound_ns - 1


def test_the_bound_is_below_the_fastest_plan_of_small_graphs_and_near_it(repository: Path) -> None:
    """Some of the graphs of the benchmark, which tries 300."""
    table = runpy.run_path(str(repository / "benchmarks" / "lower_bound.py"))
    shares = [table["share"](seed) for seed in range(12)]
    assert max(shares) <= 1 + 1e-9
    assert median(shares) >= 0.6


@pytest.mark.parametrize("name", ["cpu:2", "p100x2"])
def test_splitting_an_exchange_takes_nothing_off_the_bound(name: str) -> None:
    """Attention and norms as primitives, cut in every way that random plans find."""
    graph = mp.Graph("composites")
    x, y = graph.input("x", (2, 4, 6, 8)), graph.input("y", (2,), dtype="int64")
    hidden = graph.scaled_dot_product_attention(x, x, graph.linear(x, 8))
    graph.loss(graph.cross_entropy(graph.linear(graph.flatten(graph.layer_norm(hidden, 8)), 3), y))
    machine = mp.Machine.preset(name)
    bound_ns = lower_bound_s(graph, machine) * 1e9
    for seed in range(20):
        plan = lookup("random")().plan(Problem(graph, machine, seed=seed))
        assert Simulation(graph, machine, plan).makespan_ns >= bound_ns - 1
