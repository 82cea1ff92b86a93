"""Memory in searches: what lives at once counts; what fits is found, what does not is never returned."""

from __future__ import annotations

from dataclasses import replace

import pytest

import maniple as mp
from maniple.models import model
from maniple.operators.training.descent import SGD
from maniple.process.error import RequestError
from maniple.runtime.machine.machine import Machine
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.named.data_parallel import DataParallel
from maniple.strategies.search.memory_fit import allocated_beyond, beyond, excess, largest, needed_bytes
from maniple.strategies.simulation.allocation import allocated_bytes
from maniple.strategies.simulation.simulation import Simulation
from maniple.strategies.soap.evaluation import UNFIT, Evaluation
from maniple.strategies.soap.seeding import PASSED, SEEDS, choices_of, found_plan, seeding
from maniple.strategies.soap.soap import Soap

pytestmark = pytest.mark.simulator
OPTIMIZER = SGD(lr=0.1, momentum=0.9)


def with_memory(machine: Machine, held: int) -> Machine:
    """The machine with memories of so many bytes."""
    return replace(machine, memories=tuple(replace(memory, capacity_bytes=held) for memory in machine.memories))


def chain(layers: int = 6) -> mp.Graph:
    """Layers whose values live one after another in the backward pass."""
    graph = mp.Graph("chain")
    x, y = graph.input("x", (64, 32)), graph.input("y", (64,), dtype="int64")
    for _ in range(layers):
        x = graph.relu(graph.linear(x, 32))
    graph.loss(graph.cross_entropy(graph.linear(x, 4), y))
    return graph


@pytest.mark.parametrize("name", ["cpu:2x1", "p100x2"])
def test_a_memory_between_what_is_counted_and_what_is_needed_is_enough(name: str) -> None:
    """The data-parallel plan would be refused by the sum of its instances, and runs."""
    graph, machine = chain(), Machine.preset(name)
    simulation = Simulation(graph, machine, DataParallel().plan(Problem(graph, machine)))
    counted, needed = int(simulation.memory_bytes.max()), max(needed_bytes(simulation))
    held = (counted + needed) // 2
    assert max(allocated_bytes(graph, machine, simulation.plan, OPTIMIZER)) <= held < counted
    small = with_memory(machine, held)
    fits = Simulation(graph, small, DataParallel().plan(Problem(graph, small)))
    assert excess(fits)[0] == max(beyond(fits)) == needed - held < 0
    for strategy in ("soap", "hill_climb"):
        plan = mp.search(graph, small, strategy=strategy, proposals=60)
        assert plan.predicted.step_s is not None
        assert plan.predicted.step_s <= fits.makespan_ns / 1e9
        assert max(allocated_bytes(graph, small, plan, OPTIMIZER)) <= held


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9])
def test_what_is_returned_is_what_the_runtime_has_room_for(share: float) -> None:
    graph, machine = model("digits_cnn", batch=32), Machine.preset("cpu:2x2")
    need = max(allocated_bytes(graph, machine, DataParallel().plan(Problem(graph, machine)), OPTIMIZER))
    small = with_memory(machine, int(share * need))
    try:
        plan = mp.search(graph, small, strategy="soap", proposals=120)
    except RequestError as error:
        assert "no plan that was tried fits in memory" in str(error)  # noqa: PT017  (both ends are right ones)
    else:
        assert max(allocated_bytes(graph, small, plan, OPTIMIZER)) <= share * need


def test_a_message_names_the_least_that_a_plan_needs_and_an_operator_that_lives_then() -> None:
    graph, machine = chain(), with_memory(Machine.preset("cpu:2x1"), 20_000)
    strategy = Soap()
    state = strategy.init(Problem(graph, machine))
    for _ in range(100):
        state = strategy.step(state)
    with pytest.raises(RequestError) as refused:
        strategy.result(state)
    assert state.evaluation.least is not None
    _, memory, choices = state.evaluation.least
    state.evaluation.move_to(choices)
    anew = Simulation(graph, machine, state.evaluation.plan())
    operator, size = largest(anew, memory)
    assert f"the least needs {max(needed_bytes(anew))} bytes in memory {memory}, which holds 20000" in str(
        refused.value
    )
    assert f"operator {operator} stands in the way with {size} bytes there" in str(refused.value)
    enough = with_memory(machine, max(needed_bytes(anew)))
    assert excess(Simulation(graph, enough, replace(anew.plan, machine=enough.fingerprint())))[0] == 0


def test_a_plan_without_room_is_refused_though_the_estimate_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, machine = chain(2), Machine.preset("cpu:2x1")
    plan = DataParallel().plan(Problem(graph, machine))
    held = int(Simulation(graph, machine, plan).memory_bytes.max())
    problem = Problem(graph, with_memory(machine, held))
    _, tried, _, costs = seeding(problem)
    cost, here = next((cost, choices) for cost, name, choices in costs if name == DataParallel.name)
    tried.move_to(here)
    assert cost < UNFIT
    assert found_plan("soap", problem, tried, [(cost, here)], ()).predicted.step_s == cost
    monkeypatch.setattr(Simulation, "allocated_bytes", lambda _: (held, held + 7))
    with pytest.raises(RequestError, match=f"the least needs {held + 7} bytes in memory 1, which holds {held}"):
        found_plan("soap", problem, tried, [(cost, here)], ())


def test_the_fastest_plan_with_room_is_returned_where_faster_ones_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it says how many were passed over; seeds that were never the fastest are among those that are left."""
    graph, machine = chain(2), Machine.preset("cpu:2x1")
    strategy = Soap(share=0)
    held = 2 * max(
        int(Simulation(graph, machine, own.plan(Problem(graph, machine))).memory_bytes.max())
        for own in (named() for named in SEEDS)
    )
    state = strategy.init(Problem(graph, with_memory(machine, held)))
    while strategy.progress(state).proposals < 40:
        state = strategy.step(state)
    candidates = state.found.candidates
    assert {cost for cost, _, _ in seeding(state.problem).costs} <= {cost for cost, _ in candidates}
    slowest = candidates[-1][1]
    monkeypatch.setattr(Evaluation, "is_allocated", lambda self: self.choices == slowest)
    here = state.evaluation.choices
    plan = strategy.result(state)
    assert plan.predicted.step_s == candidates[-1][0]
    assert choices_of(state.evaluation.space, plan) == slowest
    assert dict(dict(plan.explanation)[""])[PASSED] == len(candidates) - 1 > 0
    assert state.evaluation.choices == here


def test_the_operator_in_the_way_is_one_that_lives_when_most_does() -> None:
    graph, machine = mp.Graph("late"), Machine.preset("cpu:1")
    x, y = graph.input("x", (64, 8)), graph.input("y", (64,), dtype="int64")
    wide = graph.linear(x, 500)
    graph.loss(graph.cross_entropy(graph.linear(wide, 2), y))
    simulation = Simulation(graph, machine, DataParallel().plan(Problem(graph, machine)))
    operator, size = largest(simulation, 0)
    assert operator == "linear"
    assert 2 * 64 * 500 * 4 <= size <= needed_bytes(simulation)[0]
    assert allocated_beyond(simulation)[0] < 0
