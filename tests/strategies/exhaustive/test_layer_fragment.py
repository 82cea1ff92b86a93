"""Plans put together from the fragments of others, against their simulation."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

import maniple as mp
from maniple.models import model
from maniple.operators.library.randomness.dropout import Dropout
from maniple.process.error import RequestError
from maniple.strategies.exhaustive.exhaustive import Exhaustive, ExhaustiveLayers
from maniple.strategies.exhaustive.layer_fragment import UNKNOWN, Fragments
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.simulation.simulation import Simulation

pytestmark = pytest.mark.simulator

FOREVER = 1 << 60
ALL = 1 << 60


def normed() -> mp.Graph:
    """Buffers that a step assigns, random numbers, and a composite wherever its features are split."""
    graph = mp.Graph("normed")
    x, y = graph.input("x", (4, 2, 4, 4)), graph.input("y", (4,), dtype="int64")
    image = graph.dropout(graph.batch_norm(graph.conv2d(x, 4, 3, padding=1)), 0.5)
    graph.loss(graph.cross_entropy(graph.linear(graph.softmax(graph.flatten(image), 1), 4), y))
    return graph


def joined() -> mp.Graph:
    """A tensor of three users, and weights of two."""
    graph = mp.Graph("joined")
    x, y = graph.input("x", (4, 8)), graph.input("y", (4,), dtype="int64")
    hidden = graph.linear(x, 4)
    graph.loss(graph.cross_entropy(graph.add(graph.relu(hidden), hidden), y))
    return graph


def text() -> mp.Graph:
    """Weights of several operators, and losses of several labels."""
    return model("rnnlm", 4, words=8, steps=2, width=4, chunk=1)


@pytest.mark.parametrize(
    ("strategy", "graph", "name"),
    [
        (Exhaustive(), normed(), "p100x2"),
        (Exhaustive(), joined(), "cpu:3x1"),
        (Exhaustive(), text(), "p100x2"),
        (ExhaustiveLayers(), text(), "cpu:2x2"),
    ],
    ids=["normed", "joined", "text", "layers"],
)
def test_a_plan_of_known_fragments_takes_what_its_simulation_says(
    strategy: Exhaustive, graph: mp.Graph, name: str
) -> None:
    state, chance = strategy.init(Problem(graph, mp.Machine.preset(name))), Random(1)
    # Of few choices, so that the same ones meet again.
    few = [chance.sample(range(size), min(2, size)) for size in state.sizes]
    compared = 0
    for _ in range(150):
        numbers = tuple(chance.choice(mine) for mine in few)
        found = state.fragments.step_ns(numbers, FOREVER, ALL)
        state.evaluation.move_to(state.layers.of(numbers))
        if found != UNKNOWN:
            compared += 1
            assert found == state.simulation.makespan_ns
        state.fragments.keep(numbers, state.simulation)
        assert state.fragments.step_ns(numbers, FOREVER, ALL) == state.simulation.makespan_ns
    assert compared >= 50


def test_a_plan_is_known_when_each_of_its_fragments_was_simulated() -> None:
    """The table of the module."""
    graph = mp.Graph("three")
    x, y = graph.input("x", (4, 8)), graph.input("y", (4,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(graph.linear(x, 4), 4), y))
    strategy = Exhaustive()
    state = strategy.init(Problem(graph, mp.Machine.preset("cpu:2x1")))
    for numbers in ((0, 0, 0), (1, 0, 1)):
        state.evaluation.move_to(state.layers.of(numbers))
        state.fragments.keep(numbers, state.simulation)
    known = {n for n in product(*map(range, state.sizes)) if state.fragments.step_ns(n, FOREVER, ALL) != UNKNOWN}
    assert known == {(0, 0, 0), (1, 0, 1), (1, 0, 0), (0, 0, 1)}


def test_what_passes_a_limit_is_told_to() -> None:
    """By the load of a lane: at least the limit, and never more than the plan takes."""
    strategy = Exhaustive()
    state = strategy.init(Problem(joined(), mp.Machine.preset("cpu:2x1")))
    first = (0,) * len(state.sizes)
    state.evaluation.move_to(state.layers.of(first))
    state.fragments.keep(first, state.simulation)
    step_ns = state.simulation.makespan_ns
    for limit in (1, step_ns // 2, step_ns):
        assert limit <= state.fragments.step_ns(first, limit, ALL) <= step_ns


def test_what_was_kept_later_is_not_known_before() -> None:
    """The numbers of fragments rise, and as many as a plan's greatest number and one are known once it was kept."""
    state = Exhaustive().init(Problem(joined(), mp.Machine.preset("cpu:2x1")))
    first, other = (0,) * len(state.sizes), (1,) * len(state.sizes)
    counts = []
    for numbers in (first, other, first):
        state.evaluation.move_to(state.layers.of(numbers))
        counts.append(state.fragments.keep(numbers, state.simulation))
    assert counts[0] == counts[2] < counts[1]
    assert state.fragments.step_ns(first, FOREVER, counts[0]) == state.simulation.makespan_ns
    assert state.fragments.step_ns(first, FOREVER, counts[0] - 1) == UNKNOWN
    assert state.fragments.step_ns(other, FOREVER, counts[1] - 1) == UNKNOWN


def test_a_plan_that_is_kept_is_not_taken_apart_again(monkeypatch: pytest.MonkeyPatch) -> None:
    state = Exhaustive().init(Problem(joined(), mp.Machine.preset("cpu:2x1")))
    first = (0,) * len(state.sizes)
    state.evaluation.move_to(state.layers.of(first))
    count = state.fragments.keep(first, state.simulation)
    monkeypatch.delattr(Simulation, "parts")
    assert state.fragments.keep(first, state.simulation) == count


def test_what_belongs_to_no_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it plans would be timed as shorter than they are, and wrong ones proved the fastest."""
    state = Exhaustive().init(Problem(normed(), mp.Machine.preset("p100x2")))
    first = (0,) * len(state.sizes)
    state.evaluation.move_to(state.layers.of(first))
    monkeypatch.setattr(Dropout, "random", False)
    fragments = Fragments(state.cost.plan_free, state.layers, state.simulation.cache.network.lanes)
    with pytest.raises(RequestError, match=r"clock.input depends on the layers \(\)"):
        fragments.keep(first, state.simulation)
