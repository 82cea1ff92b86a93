"""No plan is faster than the lower bound, and no cut of an operator takes less than the bound counts for it."""

from __future__ import annotations

import runpy
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_roofline import task_ns

import maniple as mp
from maniple.operators.lowering.expansion import training_step
from maniple.runtime.machine.machine import Machine
from maniple.strategies.bound import lower_bound_s
from maniple.strategies.bound.span import spans
from maniple.strategies.bound.whole_step import MOMENTUM
from maniple.strategies.interface.registry import STRATEGIES
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.simulation.simulation import Simulation

pytestmark = pytest.mark.simulator


@cache
def benchmark() -> dict[str, Any]:
    """The benchmark that draws graphs with all kinds of operators, and plans of them."""
    return runpy.run_path(str(Path(__file__).resolve().parents[2] / "benchmarks" / "lower_bound.py"))


@given(graphs=st.integers(0, 10**6), plans=st.integers(0, 10**6))
@settings(max_examples=25)
def test_no_plan_is_faster_than_the_bound(graphs: int, plans: int) -> None:
    graph, machine = benchmark()["drawn"](graphs)
    plan = STRATEGIES.lookup("random")().plan(Problem(graph, machine, seed=plans))
    simulation = Simulation(graph, machine, plan)
    bound_ns = lower_bound_s(graph, machine) * 1e9
    assert bound_ns <= simulation.makespan_ns
    chance = Random(plans)
    for _ in range(4):
        assert simulation.propose(benchmark()["finely_cut"](graph, machine, chance)) >= bound_ns
        simulation.accept()


@given(graphs=st.integers(0, 10**6), plans=st.integers(0, 10**6))
@settings(max_examples=40)
def test_no_cut_of_a_launch_takes_less_than_the_bound_counts_for_it(graphs: int, plans: int) -> None:
    """All parts together against the work, and the shortest against the smallest part; uneven, replicated, folded."""
    graph, machine = benchmark()["drawn"](graphs)
    plan = STRATEGIES.lookup("random")().plan(Problem(graph, machine, seed=plans))
    counted = {span.launch.name: span for span in spans(graph, machine, MOMENTUM)}
    compared = 0
    for launch in training_step(graph, plan, machine, mp.SGD(lr=0.1, momentum=0.9)).launches:
        span = counted.get(launch.name)
        if span is not None:  # what stands for an operator that exchanges something has other names
            times = [task_ns(launch, point, machine) for point in range(len(launch.points))]
            assert sum(times) >= span.work - 1e-3
            assert min(times) >= span.least - 1e-3
            compared += 1
    assert compared > 0


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_the_bound_of_a_plan_under_a_precision_is_that_of_its_peaks(precision: str) -> None:
    """On an H100 bfloat16 has 15 times the peak of float32, so a bound by that of float32 would be no bound."""
    graph, machine, semantics = mp.Graph("wide"), Machine.preset("h100x1"), (("precision", precision),)
    x, y = graph.input("x", (4096, 4096)), graph.input("y", (4096,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(graph.linear(x, 4096), 4096), y))
    plan = replace(STRATEGIES.lookup("data_parallel")().plan(Problem(graph, machine)), semantics=semantics)
    halved_s = Simulation(graph, machine, plan).makespan_ns / 1e9
    exact_s = lower_bound_s(graph, machine)
    assert lower_bound_s(graph, machine, semantics=semantics) <= halved_s < exact_s
