"""Rounds: whoever makes the legs of a round, and in whatever order, the search is the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maniple as mp
from maniple.runtime.machine import Machine
from maniple.strategies.hill_climb import HillClimb
from maniple.strategies.soap.chains import Tempering
from maniple.strategies.soap.rounds import AbstractRoundStrategy, RoundState
from maniple.strategies.soap.soap import Soap
from maniple.strategies.strategy import Problem

pytestmark = pytest.mark.simulator
SMALL = Tempering((0.0, 0.003, 0.01), length=4, restart=2, patience=8)


def problem() -> Problem:
    graph = mp.Graph("perceptron")
    x, y = graph.input("x", (4, 24)), graph.input("y", (4,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(graph.relu(graph.linear(x, 24)), 3), y))
    machine = Machine.preset("cpu:2x1")
    slow = tuple(replace(p, flops_per_s=1e6, launch_s=1e-7) for p in machine.processors)
    return Problem(graph, replace(machine, processors=slow), seed=3)


def after(strategy: AbstractRoundStrategy[RoundState], state: RoundState, proposals: int) -> RoundState:
    """The state after so many proposals, made one after another."""
    while strategy.progress(state).proposals < proposals and not strategy.terminate(state):
        state = strategy.step(state)
    return state


@settings(max_examples=20, deadline=None)
@given(data=st.data(), climbing=st.booleans())
def test_any_order_of_the_legs_steps_gives_the_same_and_any_end_is_one_of_the_serial_search(
    data: st.DataObject, climbing: bool
) -> None:
    strategy: AbstractRoundStrategy[RoundState] = HillClimb() if climbing else Soap(SMALL)  # type: ignore[assignment]
    mixed = strategy.init(problem())
    for _ in range(data.draw(st.integers(20, 400))):
        if strategy.terminate(mixed):
            break
        going = [number for number, leg in enumerate(mixed.legs) if not leg.finished]
        if going:
            number = data.draw(st.sampled_from(going))
            mixed = strategy.with_legs(mixed, {number: mixed.legs[number].step(mixed.evaluation)})
        else:
            mixed = strategy.next_round(mixed)
    mixed = strategy.settled(mixed)
    serial = after(strategy, strategy.init(problem()), mixed.found.proposals)
    assert (serial.found.choices, serial.found.cost) == (mixed.found.choices, mixed.found.cost)
    assert serial.found.proposals == mixed.found.proposals


def test_legs_after_the_first_that_goes_on_do_not_count() -> None:
    strategy = Soap(SMALL, share=0)
    state = strategy.init(problem())
    while len(state.legs) < 3:
        state = strategy.step(state)
    for number, steps in enumerate((4, 2, 3)):
        for _ in range(steps):
            state = strategy.with_legs(state, {number: state.legs[number].step(state.evaluation)})
    assert strategy.progress(state).proposals == 9
    assert strategy.progress(strategy.settled(state)).proposals == 6
