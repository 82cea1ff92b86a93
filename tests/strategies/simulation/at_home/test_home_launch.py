"""Launches at homes: rows as the runtime lowers them, as homes come to be alike and apart again."""

from __future__ import annotations

from random import Random

import pytest
from lowered_step import OPTIMIZER, assert_as_lowered, lowered, planned

from maniple.models import model
from maniple.operators.rules.configuration import WeightPlan
from maniple.operators.training.adam import AdamW
from maniple.runtime.machine.machine import Machine
from maniple.strategies.simulation.simulation import Simulation

pytestmark = pytest.mark.simulator


def test_homes_that_come_to_be_alike_share_a_launch_and_part_again() -> None:
    """A weight of 10 x 64 and its bias, on two processors of one memory each.

    weight    bias      launches
    p0 p1     p0 p1     one
    p0 p1     p0        two
    p0        p0        one
    """
    machine = Machine.preset("cpu:2x1")
    graph = model("digits_cnn", batch=8)
    simulation = Simulation(graph, machine, planned(graph, machine, "data_parallel", 0))
    weight, bias = next(
        (w, b) for w, b in zip(graph.parameters, graph.parameters[1:], strict=False) if len(b.shape) == 1
    )
    cut, whole = ((2, *[1] * (len(weight.shape) - 1)), (0, 1)), ((1,) * len(weight.shape), (0,))
    for home, other, names in (
        (cut, ((2,), (0, 1)), [f"{weight.name}+{bias.name}.update"]),
        (cut, ((1,), (0,)), [f"{weight.name}.update", f"{bias.name}.update"]),
        (whole, ((1,), (0,)), [f"{weight.name}+{bias.name}.update"]),
    ):
        before = simulation.makespan_ns
        simulation.propose({}, {weight.name: WeightPlan(*home), bias.name: WeightPlan(*other)})
        simulation.reject()
        assert simulation.makespan_ns == before
        simulation.propose({}, {weight.name: WeightPlan(*home), bias.name: WeightPlan(*other)})
        simulation.accept()
        assert_as_lowered(simulation)
        own = [launch.name for _, launch in sorted(simulation.parts()[0].items()) if launch.name.endswith(".update")]
        assert [name for name in own if weight.name in name or bias.name in name] == names


@pytest.mark.parametrize("seed", range(3))
def test_random_homes_give_what_lowering_the_plan_gives(seed: int) -> None:
    chance, machine = Random(seed), Machine.preset("cpu:2x2")
    graph = model("digits_cnn", batch=8)
    simulation = Simulation(graph, machine, planned(graph, machine, "data_parallel", 0))
    for _ in range(4):
        homes = {}
        for tensor in chance.sample(graph.parameters, 3):
            parts = chance.choice((1, 2))
            degrees = (parts, *[1] * (len(tensor.shape) - 1))
            homes[tensor.name] = WeightPlan(degrees, tuple(chance.sample(range(4), parts)))
        simulation.propose({}, homes)
        assert_as_lowered(simulation)
        chance.choice((simulation.accept, simulation.reject))()
        assert_as_lowered(simulation)


def test_a_norm_of_all_gradients_keeps_its_launches_and_the_updates_behind_it_are_fused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    optimizer = AdamW(lr=0.01, clip_norm=1.0)
    monkeypatch.setattr("lowered_step.OPTIMIZER", optimizer)
    machine = Machine.preset("p100x4")
    graph = model("digits_cnn", batch=8)
    plan = planned(graph, machine, "data_parallel", 0)
    simulation = Simulation(graph, machine, plan, optimizer=optimizer)
    schedule, makespan = lowered(graph, machine, plan)
    assert simulation.makespan_ns == makespan
    names = [launch.name for launch in schedule.launches]
    assert sum(name.endswith(".norm") for name in names) == len(graph.parameters)
    assert sum(name.endswith(".update") for name in names) < len(graph.parameters)
    assert optimizer != OPTIMIZER
