"""The decoders of `benchmarks/language_cuts.py` in small: samples that micro-batches have whole, and stages as said."""

from __future__ import annotations

from dataclasses import replace

import pytest
from language_cuts import closed_forms, closed_s, cut_by_cost, equal_layers, unit_of
from language_models import DEEPSEEK, LLAMA, Sizes, decoder

from maniple.operators.lowering.micro_batch import MicroBatches
from maniple.runtime.machine.machine import Machine
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.simulation.simulation import Simulation

pytestmark = pytest.mark.simulator
SMALL = {
    "llama": replace(LLAMA, words=4000, width=32, layers=4, heads=4, key_heads=2, hidden=64, dense=4),
    "deepseek": replace(
        DEEPSEEK, words=4000, width=32, layers=4, heads=4, key_heads=4, hidden=64, experts=4, chosen=2, expert_hidden=16
    ),
}


@pytest.mark.parametrize("name", sorted(SMALL))
def test_the_last_projection_weighs_in_a_cut_by_cost(name: str) -> None:
    """Everything but the labels' shape is cut into micro-batches; a stage with layers beside the projection is slow."""
    sizes: Sizes = SMALL[name]
    graph, machine = decoder(name, sizes, 4, 8), Machine.preset("h100x2")
    slow = tuple(replace(each, flops_per_s=1e9, launch_s=1e-7) for each in machine.processors)
    machine = replace(machine, processors=slow)
    parts = MicroBatches(graph, 4)
    assert [node.name for node in graph.nodes if not parts.is_cut(node)] == ["flatten_1"]
    problem, times = Problem(graph, machine), []
    for counted in (False, True):
        plan = equal_layers(problem, sizes.layers, 2, 4, counted=counted)
        plan.validate(graph, machine)
        units = [{unit_of(graph.node(name), sizes.layers) for name in stage.operators} for stage in plan.stages]
        assert units == [{0, 1, 2}, {3, 4, 5}]
        times.append(Simulation(graph, machine, plan).makespan_ns)
    plan = cut_by_cost(problem, 2, 4)
    plan.validate(graph, machine)
    assert Simulation(graph, machine, plan).makespan_ns < 0.9 * min(times)
    best, exact, even = closed_forms(problem, plan, 2, 4)
    assert (best, exact) == ("1.00", "yes")
    assert 1 <= float(even) / float(best) <= 1.5


def test_the_closed_form_is_the_slowest_but_once_and_all_of_one() -> None:
    assert closed_s([8.0, 4.0], 4) == 3 * 2.0 + 3.0
