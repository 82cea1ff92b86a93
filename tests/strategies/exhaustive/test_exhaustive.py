"""Branch and bound against every plan, and each bound against every plan that it speaks of."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

import maniple as mp
from maniple.models import model
from maniple.strategies.exhaustive.exhaustive import Exhaustive, ExhaustiveState
from maniple.strategies.exhaustive.symmetry import symmetries
from maniple.strategies.soap.evaluation import NS
from maniple.strategies.strategy import Problem

pytestmark = pytest.mark.simulator


def chain(width: int = 8) -> mp.Graph:
    graph = mp.Graph("chain")
    x, y = graph.input("x", (4, width)), graph.input("y", (4,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(graph.relu(graph.linear(x, width)), 4), y))
    return graph


def joined() -> mp.Graph:
    """Two ways that join."""
    graph = mp.Graph("joined")
    x, y = graph.input("x", (4, 8)), graph.input("y", (4,), dtype="int64")
    hidden = graph.linear(x, 4)
    graph.loss(graph.cross_entropy(graph.add(hidden, graph.relu(hidden)), y))
    return graph


def normed() -> mp.Graph:
    """A composite wherever its features are split."""
    graph = mp.Graph("normed")
    x, y = graph.input("x", (4, 8)), graph.input("y", (4,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(graph.softmax(graph.linear(x, 8), 1), 4), y))
    return graph


def text() -> mp.Graph:
    """Pieces of one tensor, and a loss of several, which does not need its own forward pass to go back."""
    return model("rnnlm", 4, words=8, steps=2, width=4, chunk=1)


def finished(graph: mp.Graph, machine: mp.Machine) -> ExhaustiveState:
    strategy = Exhaustive()
    state = strategy.init(Problem(graph, machine))
    while not strategy.terminate(state):
        state = strategy.step(state)
    return state


@pytest.mark.parametrize(
    ("graph", "name"), [(chain(), "cpu:2x1"), (chain(512), "p100x2"), (joined(), "cpu:2x1"), (normed(), "p100x2")]
)
def test_the_fastest_of_all_plans_is_found(graph: mp.Graph, name: str) -> None:
    state = finished(graph, mp.Machine.preset(name))
    every = list(product(*state.choices))
    least = min(state.evaluation.move_to(choices) for choices in every)
    assert state.best_cost == least
    assert state.proposals < len(every)


@pytest.mark.parametrize(
    ("graph", "name"), [(chain(512), "p100x3"), (joined(), "cpu:3"), (normed(), "cpu:2x1"), (text(), "cpu:2x1")]
)
def test_no_plan_is_faster_than_a_bound_on_it(graph: mp.Graph, name: str) -> None:
    state, chance = Exhaustive().init(Problem(graph, mp.Machine.preset(name))), Random(1)
    for _ in range(25):
        numbers = [chance.randrange(len(own)) for own in state.choices]
        cost = state.evaluation.move_to(tuple(own[at] for own, at in zip(state.choices, numbers, strict=True)))
        found = [int(state.relaxation.bounds(numbers[:depth])[numbers[depth]]) for depth in range(len(numbers))]
        assert 0 < max(found) * NS <= cost * (1 + 1e-12)


def test_a_search_that_ends_early_says_so_and_one_that_does_not_too() -> None:
    graph, machine = chain(), mp.Machine.preset("cpu:2x1")
    short = dict(dict(mp.search(graph, machine, strategy="exhaustive", proposals=2).explanation)[""])
    assert (short["exact"], short["search"]) == (False, "the budget ended before the search did")
    plan = mp.search(graph, machine, strategy="exhaustive", proposals=10**6)
    told = dict(dict(plan.explanation)[""])
    assert (told["exact"], told["search"]) == (True, "the fastest plan of equal splits")


def test_symmetries_keep_hosts_and_links() -> None:
    assert len(symmetries(mp.Machine.preset("cpu:4"))) == 24
    assert len(symmetries(mp.Machine.preset("cpu:3x1"))) == 6
    # Two hosts of two processors each: those of a host, and the hosts.
    assert len(symmetries(mp.Machine.preset("cpu:2x2"))) == 8
    assert symmetries(mp.Machine.preset("p100x8")) == (tuple(range(8)),)
    for exchange in symmetries(mp.Machine.preset("k80x4")):
        assert {exchange[0], exchange[1]} in ({0, 1}, {2, 3})
