"""Proposals: after any sequence of them a simulation is, bit for bit, one that is made of its plan."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowered_step import planned

from maniple.models import model
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.order import first_come
from maniple.strategies.interface.space import Space
from maniple.strategies.simulation.simulation import Simulation
from maniple.strategies.timing.tables import DURATION, END

pytestmark = pytest.mark.simulator

STEPS = st.lists(
    st.tuples(st.integers(0, 1 << 30), st.integers(1, 2), st.sampled_from((None, 0.5, 0.95, 1.0)), st.booleans()),
    min_size=3,
    max_size=6,
)
"""Of each proposal what draws it, how many operators change, its limit by the makespan before, if it is kept."""


def assert_as_made_of_its_plan(simulation: Simulation) -> None:
    """Rows, what they hold, who waits, when they run and in which order, as in a full simulation of a fresh step."""
    ledger, columns = simulation.ledger, simulation.columns()
    fresh = Simulation(simulation.graph, simulation.machine, simulation.plan, cache=simulation.cache).columns()
    assert columns[3] == fresh[3]
    for mine, other in zip((columns[0], *columns[1], *columns[2]), (fresh[0], *fresh[1], *fresh[2]), strict=True):
        assert np.array_equal(mine, other)
    begin, sequence, makespan = first_come(*columns)
    assert makespan == ledger.makespan
    alive = ledger.alive
    assert np.array_equal(ledger.rows[alive, END] - ledger.rows[alive, DURATION], begin)
    assert np.array_equal(alive[sequence], ledger.sequence)


@pytest.mark.parametrize("preset", ["cpu:2x2", "p100x4"])
@given(steps=STEPS)
@settings(max_examples=6)
def test_a_sequence_of_proposals_is_as_a_simulation_of_its_plan(
    preset: str, steps: list[tuple[int, int, float | None, bool]]
) -> None:
    """Kept and rejected, given up at a limit or not, in any order."""
    machine, graph = Machine.preset(preset), model("digits_cnn", batch=8)
    simulation = Simulation(graph, machine, planned(graph, machine, "data_parallel", 0))
    space = Space.of(graph, len(machine.processors))
    for seed, count, share, keeps in steps:
        chance, before = Random(seed), simulation.makespan_ns
        chosen = chance.sample(range(len(space.names)), count)
        changes = {space.names[each]: space.operators[each].plan(space.operators[each].draw(chance)) for each in chosen}
        limit = 1 << 60 if share is None else int(share * before)
        if simulation.propose(changes, limit_ns=limit) <= limit:
            assert_as_made_of_its_plan(simulation)
            if keeps:
                simulation.accept()
                continue
        simulation.reject()
        assert simulation.makespan_ns == before
    assert_as_made_of_its_plan(simulation)
