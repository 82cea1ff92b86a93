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
from maniple.operators.plan.weight_home import default_homes
from maniple.operators.rules.configuration import OperatorPlan
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
    for number in range(5):
        before, plan = simulation.makespan_ns, simulation.plan
        other = planned(graph(), machine, "random", 100 * seed + number)
        simulation.propose(dict(chance.sample(other.operators, chance.choice((4, 16)))))
        assert_as_lowered(simulation)
        if chance.random() < 0.5:
            simulation.accept()
        else:
            simulation.reject()
            assert (simulation.makespan_ns, simulation.plan) == (before, plan)
            assert_as_lowered(simulation)


def test_a_split_of_which_parts_are_no_boxes_brings_the_rows_back() -> None:
    """Parts of the features of values lie apart in what the layer gives, and parts of heads do not."""
    machine = Machine.preset("cpu:2x1")
    simulation = Simulation(graph(), machine, planned(graph(), machine, "data_parallel", 0))
    name = next(node.name for node in graph().nodes if node.operator.name == "scaled_dot_product_attention")
    factors = [factor for factor, _ in simulation.plan.operator(name).degrees]
    launches = []
    for factor in ("b", "e", "h"):
        degrees = tuple((other, 2 if other == factor else 1) for other in factors)
        simulation.propose({name: OperatorPlan(degrees, (0, 1))})
        assert_as_lowered(simulation)
        launches.append(len(simulation.parts()[0]))
        simulation.accept()
    assert launches[0] == launches[2] < launches[1]


def test_the_rows_of_micro_batches_come_back_in_the_same_way() -> None:
    """In two stages; what is refused and proposed again gives the same again."""
    machine, names = Machine.preset("cpu:4x1"), [node.name for node in graph().nodes]
    attention = next(node for node in graph().nodes if node.operator.name == "scaled_dot_product_attention")
    border = names.index(attention.name) + 3
    operators = tuple(
        (node.name, OperatorPlan(tuple((f.name, 1) for f in graph().bound(node).factors), (2 * (number >= border),)))
        for number, node in enumerate(graph().nodes)
    )
    plan = mp.Plan(graph().fingerprint(), "by hand", operators, default_homes(graph(), operators, machine))
    plan = plan.with_pipeline([names[:border], names[border:]], order="gpipe", micro_batches=2)
    simulation = Simulation(graph(), machine, plan, optimizer=OPTIMIZER)
    assert_as_lowered(simulation)
    factors, launches = [factor.name for factor in graph().bound(attention).factors], []
    wide = {name: OperatorPlan(own.degrees, (*own.processors, 1), 2) for name, own in operators[:border]}
    simulation.propose(wide)  # a stage's processors are those of all its operators
    simulation.accept()
    for factor, kept in (("h", True), ("e", False), ("e", False), ("e", True), ("h", True)):
        degrees = tuple((other, 2 if other == factor else 1) for other in factors)
        simulation.propose({attention.name: OperatorPlan(degrees, (0, 1))})
        assert_as_lowered(simulation)
        launches.append(sum(1 for launch in simulation.parts()[0].values() if launch is not None))
        if kept:
            simulation.accept()
        else:
            simulation.reject()
            assert_as_lowered(simulation)
    first, *others, last = launches
    assert first == last
    assert others[0] > first
    assert len(set(others)) == 1


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
