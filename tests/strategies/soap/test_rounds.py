"""Rounds: whoever makes the items of a round, and in whatever order, the search is the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maniple as mp
from maniple.process.error import RequestError
from maniple.runtime.machine.machine import Machine
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.soap.chains import Tempering
from maniple.strategies.soap.cost_tables import Tables
from maniple.strategies.soap.hill_climb import HillClimb
from maniple.strategies.soap.rounds import AbstractRoundStrategy, RoundState
from maniple.strategies.soap.seeding import SEEDS
from maniple.strategies.soap.soap import Soap
from maniple.strategies.soap.work_item import Walk

pytestmark = pytest.mark.simulator
SMALL = Tempering((0.0, 0.003, 0.01), length=4, restart=2, patience=8)


def problem(held: int | None = None) -> Problem:
    graph = mp.Graph("perceptron")
    x, y = graph.input("x", (4, 24)), graph.input("y", (4,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(graph.relu(graph.linear(x, 24)), 3), y))
    machine = Machine.preset("cpu:2x1")
    slow = tuple(replace(p, flops_per_s=1e6, launch_s=1e-7) for p in machine.processors)
    memories = tuple(replace(memory, capacity_bytes=held or memory.capacity_bytes) for memory in machine.memories)
    return Problem(graph, replace(machine, processors=slow, memories=memories), seed=3)


def outcome(strategy: AbstractRoundStrategy[RoundState], state: RoundState) -> str:
    """The plan that a search ends with, or why it has none."""
    try:
        return strategy.result(state).text()
    except RequestError as error:
        return str(error)


def after(strategy: AbstractRoundStrategy[RoundState], state: RoundState, proposals: int) -> RoundState:
    """The state after so many proposals, made one after another."""
    while strategy.progress(state).proposals < proposals and not strategy.terminate(state):
        state = strategy.step(state)
    return state


@settings(max_examples=20, deadline=None)
@given(data=st.data(), climbing=st.booleans(), held=st.sampled_from([None, 9000, 7000, 1000]))
def test_any_order_of_the_items_steps_gives_the_same_and_any_end_is_one_of_the_serial_search(
    data: st.DataObject, climbing: bool, held: int | None
) -> None:
    strategy: AbstractRoundStrategy[RoundState] = HillClimb() if climbing else Soap(SMALL)  # type: ignore[assignment]
    mixed = strategy.init(problem(held))
    for _ in range(data.draw(st.one_of(st.integers(0, 30), st.integers(0, 400)))):
        if strategy.terminate(mixed):
            break
        going = [number for number, item in enumerate(mixed.items) if not item.finished]
        if going:
            number = data.draw(st.sampled_from(going))
            mixed = strategy.with_item(mixed, number, mixed.items[number].step(mixed.evaluation))
        else:
            mixed = strategy.next_round(mixed)
    mixed = strategy.settle(mixed)
    serial = after(strategy, strategy.init(problem(held)), mixed.found.proposals)
    assert serial.found == mixed.found
    assert outcome(strategy, serial) == outcome(strategy, mixed)


@pytest.mark.parametrize(
    "strategy", [Soap(SMALL), Soap(SMALL, share=0), HillClimb()], ids=["soap", "no tables", "climb"]
)
def test_what_is_found_changes_in_no_step_that_does_not_count(strategy: AbstractRoundStrategy[RoundState]) -> None:
    """So `--proposals` finds what a search in seconds found, wherever it ended: after each step, to the very end."""
    state = strategy.init(problem())
    assert strategy.progress(state).proposals >= 1
    while not strategy.terminate(state):
        following = strategy.step(state)
        made = following.found.proposals - state.found.proposals
        assert made in {0, 1}
        if made == 0:
            assert following.found == state.found
            assert following.bound_s == state.bound_s
            assert not strategy.terminate(following)
        state = following


def test_walks_begin_beside_the_tables_of_optcnn() -> None:
    strategy = Soap(SMALL)
    state = strategy.init(problem())
    while not state.items:
        state = strategy.step(state)
    assert [type(item) for item in state.items] == [Walk, Walk, Walk, Tables]
    assert strategy.progress(state).proposals == len(SEEDS)


def test_items_after_the_first_that_goes_on_do_not_count() -> None:
    strategy = Soap(SMALL, share=0)
    state = strategy.init(problem())
    while len(state.items) < 3:
        state = strategy.step(state)
    for number, steps in enumerate((4, 2, 3)):
        for _ in range(steps):
            state = strategy.with_item(state, number, state.items[number].step(state.evaluation))
    assert strategy.progress(state).proposals == len(SEEDS) + 9
    assert strategy.progress(strategy.settle(state)).proposals == len(SEEDS) + 6
