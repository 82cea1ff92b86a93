"""The whole search on graphs so small that every claim can be checked from outside, by simulating anew."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import maniple as mp
from maniple.operators.plan.plan import Plan
from maniple.process.error import RequestError
from maniple.runtime.machine.machine import Machine
from maniple.strategies.interface.space import Space
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.search.memory_fit import needed_bytes
from maniple.strategies.simulation.allocation import allocated_bytes
from maniple.strategies.simulation.simulation import Simulation
from maniple.strategies.soap import soap
from maniple.strategies.soap.evaluation import NS
from maniple.strategies.soap.seeding import draw
from maniple.strategies.soap.soap import Soap, SoapState

pytestmark = pytest.mark.simulator
OPTIMIZER = mp.SGD(lr=0.1, momentum=0.9)
TWO = Machine.preset("cpu:2x1")


def perceptron(width: int = 6) -> mp.Graph:
    """Two layers; the loss exchanges over its classes when they are split."""
    graph = mp.Graph("perceptron")
    x, y = graph.input("x", (4, width)), graph.input("y", (4,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(graph.relu(graph.linear(x, width)), 3), y))
    return graph


def slow(machine: Machine) -> Machine:
    """The machine with processors so slow that work, and not launches, takes the time."""
    return replace(machine, processors=tuple(replace(p, flops_per_s=1e6, launch_s=1e-7) for p in machine.processors))


def with_memory(machine: Machine, held: int) -> Machine:
    """The machine with memories of so many bytes."""
    return replace(machine, memories=tuple(replace(memory, capacity_bytes=held) for memory in machine.memories))


def anew(graph: mp.Graph, machine: Machine, plan: Plan) -> Simulation:
    """A simulation of the plan that knows nothing of the search."""
    return Simulation(graph, machine, plan)


def finished(graph: mp.Graph, machine: Machine) -> SoapState:
    """The state when nothing is left to try."""
    strategy = Soap(restarts=1)
    state = strategy.init(Problem(graph, machine))
    while not strategy.terminate(state):
        state = strategy.step(state)
    return state


def test_a_finished_search_is_locally_optimal() -> None:
    """Every choice of every operator, each simulated from nothing, is no faster."""
    graph, machine = perceptron(), slow(TWO)
    plan = Soap().result(finished(graph, machine))
    assert dict(dict(plan.explanation)[""])["search"] == "locally optimal"
    assert plan.predicted.step_s is not None
    found_ns = round(plan.predicted.step_s / NS)
    assert anew(graph, machine, plan).makespan_ns == found_ns
    space, simulation, tried = Space.of(graph, 2), anew(graph, machine, plan), 0
    for name, own in zip(space.names, space.operators, strict=True):
        for choice in own.choices():
            assert simulation.propose({name: own.plan(choice)}) >= found_ns
            other = simulation.plan
            simulation.reject()
            if tried % 7 == 0:
                assert anew(graph, machine, other).makespan_ns >= found_ns
            tried += 1
    assert tried > 30


def test_random_plans_are_seeds_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as asked for, each a seed of chains; a larger problem has none."""
    problem = Problem(perceptron(), slow(TWO))
    most = {}
    for restarts in (0, 3):
        strategy = Soap(share=0, restarts=restarts)
        state, names = strategy.init(problem), []
        while not strategy.terminate(state):
            before, state = state, strategy.step(state)
            if state.restarts > before.restarts:
                names.append((state.restarts, before.waiting))
        assert names == [(number, ()) for number in range(1, restarts + 1)]
        most[restarts] = strategy.progress(state).proposals
    assert most[0] < most[3]
    monkeypatch.setattr(soap, "SMALL", len(problem.graph.nodes) * len(TWO.processors) - 1)
    strategy = Soap(share=0)
    state = strategy.init(problem)
    while not strategy.terminate(state):
        state = strategy.step(state)
    assert (state.restarts, strategy.progress(state).proposals) == (0, most[0])


@given(seed=st.integers(0, 1 << 32))
def test_a_random_plan_is_one_of_the_space(seed: int) -> None:
    space = Space.of(perceptron(), 6)
    choices = draw(space, Random(seed))
    assert choices == draw(space, Random(seed))
    assert all(own.contains(choice) for own, choice in zip(space.operators, choices, strict=True))


def test_an_old_state_steps_as_it_did() -> None:
    """The simulation that states share follows whichever is stepped."""
    strategy, states = Soap(), []
    state = strategy.init(Problem(perceptron(), slow(TWO)))
    for _ in range(40):
        states.append(state)
        state = strategy.step(state)
    for number in (3, 30, 11):
        again, after = strategy.step(states[number]), states[number + 1]
        assert (again.searching, again.chains, again.descent, again.found) == (
            after.searching,
            after.chains,
            after.descent,
            after.found,
        )
        assert strategy.result(again).operators == strategy.result(after).operators


def test_a_finished_search_is_faster_than_its_seeds() -> None:
    graph, machine = perceptron(24), slow(TWO)
    plan = Soap().result(finished(graph, machine))
    assert plan.predicted.step_s is not None
    assert plan.predicted.bound_s is not None
    seeds = [mp.search(graph, machine, strategy=name) for name in ("data_parallel", "expert", "model_parallel")]
    assert plan.predicted.step_s < min(anew(graph, machine, seed).makespan_ns for seed in seeds) * NS
    assert plan.predicted.bound_s <= plan.predicted.step_s


def test_a_search_that_ends_early_says_so() -> None:
    plan = mp.search(perceptron(), TWO, strategy="soap", proposals=5)
    assert dict(dict(plan.explanation)[""]) == {"proposals": 5, "search": "the budget ended before the search did"}


def test_a_plan_that_does_not_fit_is_never_returned() -> None:
    """Between what the fastest plan and what the leanest needs there is a plan, or a message."""
    graph = perceptron(24)
    fastest = mp.search(graph, TWO, strategy="soap", proposals=200, seed=1)
    fastest_bytes = fastest.predicted.memory_bytes
    assert fastest_bytes is not None
    fits = 0
    for held in range(fastest_bytes, fastest_bytes // 2, -fastest_bytes // 8):
        machine = with_memory(TWO, held)
        try:
            plan = mp.search(graph, machine, strategy="soap", proposals=200, seed=1)
        except RequestError as error:
            assert "no plan that was tried fits in memory" in str(error)  # noqa: PT017  (both ends are right ones)
            continue
        fits += 1
        assert max(needed_bytes(anew(graph, machine, plan))) == plan.predicted.memory_bytes <= held
        assert max(allocated_bytes(graph, machine, plan, OPTIMIZER)) <= held
    assert fits >= 1


def test_memory_decides_between_plans() -> None:
    """Where the fastest plan does not fit, a slower one that fits is found, from seeds none of which fit."""
    graph = perceptron(24)
    named = [mp.search(graph, TWO, strategy=name) for name in ("data_parallel", "expert", "model_parallel")]
    least = min(max(needed_bytes(anew(graph, TWO, plan))) for plan in named)
    machine = with_memory(TWO, least - 64)
    plan = mp.search(graph, machine, strategy="soap", proposals=400)
    assert max(allocated_bytes(graph, machine, plan, OPTIMIZER)) <= least - 64


def test_when_nothing_fits_the_operator_in_the_way_is_named() -> None:
    graph = mp.Graph("wide")
    x, y = graph.input("x", (2, 50)), graph.input("y", (2,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(graph.linear(x, 500), 2), y))
    with pytest.raises(
        RequestError,
        match=r"the least needs \d+ bytes in memory [01], which holds 9000; operator linear stands in the way with \d+",
    ):
        mp.search(graph, with_memory(TWO, 9000), strategy="soap", proposals=30)


def test_the_plan_of_optcnn_is_a_seed() -> None:
    state = finished(perceptron(24), slow(TWO))
    assert state.tables is not None
    assert state.tables.plan is not None
    assert state.tables.plan.predicted.step_s is not None
    assert state.found.cost <= state.tables.plan.predicted.step_s


@pytest.mark.parametrize(("width", "machine"), [(24, slow(TWO)), (256, Machine.preset("p100x2"))], ids=["slow", "gpus"])
def test_soap_and_the_exhaustive_search_agree(width: int, machine: Machine) -> None:
    graph = perceptron(width)
    fastest = mp.search(graph, machine, strategy="exhaustive", proposals=10**6)
    assert dict(dict(fastest.explanation)[""])["exact"]
    assert Soap().result(finished(graph, machine)).predicted.step_s == fastest.predicted.step_s
