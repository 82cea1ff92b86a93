"""Simulations of pipelines against the lowering that the runtime uses: the same rows, one by one, after any change."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from lowered_step import OPTIMIZER, timed
from pipelined_networks import Drawn, drawn, placed

import maniple as mp
from maniple.models import model
from maniple.operators.pipeline_order.named_order import ORDERS
from maniple.operators.plan.plan import OperatorPlan, Plan
from maniple.operators.plan.weight_home import default_homes
from maniple.process.error import RequestError
from maniple.runtime.machine.machine import Machine
from maniple.strategies.simulation import expanded_program
from maniple.strategies.simulation.simulation import Simulation
from maniple.strategies.timing.tables import DURATION, END

pytestmark = pytest.mark.simulator
MACHINES = ("cpu:4x1", "cpu:1x4", "cpu:2x2", "p100x4")


def assert_as_lowered(simulation: Simulation) -> None:
    """Every row by its place in the program takes what it takes in the schedule, and begins when it begins there."""
    schedule, durations, begin = timed(simulation.graph, simulation.machine, simulation.plan)
    ledger = simulation.ledger
    rows = ledger.rows[ledger.alive]
    np.testing.assert_array_equal(rows[:, DURATION], durations)
    np.testing.assert_array_equal(rows[:, END] - rows[:, DURATION], begin)
    assert simulation.bytes == schedule.total_bytes
    assert dict(enumerate(simulation.memory_bytes.tolist())) == schedule.memory_bytes()


def simulated(found: Drawn, machine: Machine) -> Simulation:
    return Simulation(found.graph, machine, found.plan, optimizer=OPTIMIZER)


def changed(found: Drawn, plan: Plan, chance: Random, count: int) -> dict[str, OperatorPlan]:
    """Other splits of some operators, over the processors of their stages."""
    chosen = {}
    for node in chance.sample(found.graph.nodes, min(count, len(found.graph.nodes))):
        stage = next(stage for stage in plan.stages if node.name in stage.operators)
        group = sorted({p for name in stage.operators for p in plan.operator(name).processors})
        config = placed(found.graph, node, group, chance)
        chosen[node.name] = replace(config, recompute=plan.operator(node.name).recompute)
    return chosen


@pytest.mark.parametrize("seed", range(24))
def test_drawn_pipelines_are_simulated_as_they_are_lowered(seed: int) -> None:
    """Skips, tied weights, two losses, stages beside each other, uneven parts, recomputation, every kind of split."""
    chance = Random(seed)
    found = drawn(chance)
    assert_as_lowered(simulated(found, Machine.preset(chance.choice(MACHINES))))


@pytest.mark.parametrize("seed", range(100, 110))
def test_every_proposal_gives_what_lowering_the_plan_gives(seed: int) -> None:
    chance = Random(seed)
    found, machine = drawn(chance), Machine.preset(chance.choice(MACHINES))
    simulation = simulated(found, machine)
    proposed = 0
    for _ in range(5):
        before, plan = simulation.makespan_ns, simulation.plan
        try:
            simulation.propose(changed(found, plan, chance, 2))
        except RequestError:  # a stage has other processors than its lane, or lanes would wait for each other
            assert (simulation.makespan_ns, simulation.plan) == (before, plan)
            continue
        proposed += 1
        assert_as_lowered(simulation)
        if chance.random() < 0.5:
            simulation.accept()
        else:
            simulation.reject()
            assert (simulation.makespan_ns, simulation.plan) == (before, plan)
            assert_as_lowered(simulation)
    assert_as_lowered(simulation)


def chain(stages: int, batch: int = 12) -> mp.Graph:
    g = mp.Graph("chain")
    x, labels = g.input("x", (batch, 16)), g.input("labels", (batch,), "int64")
    for _ in range(stages):
        x = g.relu(g.linear(x, 16))
    g.loss(g.cross_entropy(x, labels))
    return g


def pipelined(graph: mp.Graph, groups: list[int], order: str, micro_batches: int) -> Plan:
    """Two layers for each stage, each stage on the processor that is given for it, the loss with the last."""
    names = [node.name for node in graph.nodes]
    stages = [names[2 * number : 2 * number + 2] for number in range(len(groups))]
    stages[-1] += names[2 * len(groups) :]
    on = {name: group for stage, group in zip(stages, groups, strict=True) for name in stage}
    operators = tuple(
        (node.name, OperatorPlan(tuple((f.name, 1) for f in graph.bound(node).factors), (on[node.name],)))
        for node in graph.nodes
    )
    homes = default_homes(graph, operators, Machine.preset("cpu:4x1"))
    plan = Plan(graph.fingerprint(), "drawn", operators, homes)
    return plan.with_pipeline(stages, order=order, micro_batches=micro_batches)


@pytest.mark.parametrize("name", sorted(ORDERS))
def test_every_order_is_simulated_as_it_is_lowered(name: str) -> None:
    groups = {"v_half": [0, 1, 1, 0], "v_zb": [0, 1, 1, 0]}.get(name, [0, 1, 2, 3])
    if name in {"interleaved_1f1b", "looped_bfs"}:
        groups = [0, 1, 0, 1]
    graph = chain(4)
    simulation = Simulation(graph, Machine.preset("cpu:4x1"), pipelined(graph, groups, name, 5), optimizer=OPTIMIZER)
    assert_as_lowered(simulation)


def test_a_processor_takes_its_tasks_in_turn() -> None:
    """1F1B on two stages: each processor runs what the order says, and not what is ready first."""
    graph = chain(2)
    simulation = Simulation(graph, Machine.preset("cpu:2x1"), pipelined(graph, [0, 1], "1f1b", 4), optimizer=OPTIMIZER)
    rows, ledger = simulation.name_rows(), simulation.ledger
    began = {row.number: int(ledger.rows[row.number, END] - ledger.rows[row.number, DURATION]) for row in rows}
    found = {0: [], 1: []}
    for row in sorted(rows, key=lambda row: (began[row.number], row.number)):
        for part in range(4):
            for which, mark in (("linear", 0), ("linear_1", 1)):
                for kind, letter in (("forward", "F"), ("weight_gradient", "B")):
                    if row.name.startswith(f"{which}.{kind}#{part}"):
                        found[mark].append(f"{letter}{part}")
    assert found == {
        0: ["F0", "F1", "B0", "F2", "B1", "F3", "B2", "B3"],
        1: ["F0", "B0", "F1", "B1", "F2", "B2", "F3", "B3"],
    }


def test_a_change_of_lanes_that_cannot_be_is_refused_and_changes_nothing() -> None:
    graph = chain(2)
    simulation = Simulation(graph, Machine.preset("cpu:4x1"), pipelined(graph, [0, 1], "1f1b", 4), optimizer=OPTIMIZER)
    before, plan = simulation.makespan_ns, simulation.plan
    config = plan.operator("linear")
    with pytest.raises(RequestError, match=r"stages\[0\] and stages\[1\] both run on processors 1"):
        simulation.propose({"linear": replace(config, processors=(1,))})
    assert (simulation.makespan_ns, simulation.plan) == (before, plan)
    simulation.propose(
        {"linear": replace(config, processors=(2,)), "relu": replace(plan.operator("relu"), processors=(2,))}
    )
    assert_as_lowered(simulation)
    simulation.reject()
    assert_as_lowered(simulation)


def test_a_step_of_too_many_actions_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = chain(2)
    monkeypatch.setattr(expanded_program, "MOST_PLACES", 4 * 20)
    with pytest.raises(RequestError, match=r"a step of at most 20 actions, got \d+: operators times micro-batches"):
        Simulation(graph, Machine.preset("cpu:2x1"), pipelined(graph, [0, 1], "1f1b", 4))


def test_recomputation_without_a_pipeline_is_simulated_as_it_is_lowered() -> None:
    graph, machine = model("digits_cnn", batch=8), Machine.preset("cpu:2x1")
    plan = mp.search(graph, machine, strategy="data_parallel")
    again = tuple((name, replace(config, recompute="relu" in name)) for name, config in plan.operators)
    assert_as_lowered(Simulation(graph, machine, replace(plan, operators=again), optimizer=OPTIMIZER))
