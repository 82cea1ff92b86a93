"""Simulated views: rows as the runtime lowers them, whichever groups a proposal brings about or back."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest
import torch
from lowered_step import OPTIMIZER, assert_as_lowered, planned
from viewed_network import ViewedNetwork

import maniple as mp
from maniple.operators.graph.graph import Graph
from maniple.operators.lowering.expansion import elided_views
from maniple.runtime.machine.machine import Machine
from maniple.strategies.bound.lower_bound import lower_bound_s
from maniple.strategies.simulation.simulation import Simulation

pytestmark = pytest.mark.simulator


@cache
def graph() -> Graph:
    torch.manual_seed(0)
    return mp.from_torch(ViewedNetwork(), (torch.randn(4, 6, 8), torch.randn(4, 6, 8)))


@pytest.mark.parametrize("seed", range(3))
def test_every_proposal_gives_what_lowering_the_plan_gives(seed: int) -> None:
    chance, machine = Random(seed), Machine.preset(("cpu:2x2", "cpu:3x1", "p100x4")[seed])
    simulation = Simulation(graph(), machine, planned(graph(), machine, "data_parallel", 0))
    seen = set()
    for number in range(5):
        before, plan = simulation.makespan_ns, simulation.plan
        other = planned(graph(), machine, "random", 100 * seed + number)
        simulation.propose(dict(chance.sample(other.operators, chance.choice((4, 16)))))
        seen.add(frozenset(elided_views(graph(), simulation.plan, machine, OPTIMIZER)))
        assert_as_lowered(simulation)
        if chance.random() < 0.5:
            simulation.accept()
        else:
            simulation.reject()
            assert (simulation.makespan_ns, simulation.plan) == (before, plan)
            assert_as_lowered(simulation)
    assert len(seen) > 1


def test_under_data_parallelism_no_view_has_a_row() -> None:
    machine = Machine.preset("cpu:2x1")
    simulation = Simulation(graph(), machine, planned(graph(), machine, "data_parallel", 0))
    names = {launch.name.rpartition(".")[0] for launch in simulation.parts()[0].values()}
    elided = elided_views(graph(), simulation.plan, machine, OPTIMIZER)
    assert len(elided) > 8
    assert not names.intersection(elided)


@pytest.mark.parametrize("preset", ["h100x2", "cpu:1"])
def test_a_step_without_these_rows_is_not_below_the_bound(preset: str) -> None:
    """On one processor the bound counts every row that there is: it would be above, if it counted those of views."""
    machine = Machine.preset(preset)
    bound = lower_bound_s(graph(), machine)
    for strategy in ("data_parallel", "expert"):
        simulation = Simulation(graph(), machine, planned(graph(), machine, strategy, 0))
        assert simulation.makespan_ns * 1e-9 >= bound
