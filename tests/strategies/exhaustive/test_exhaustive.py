"""Branch and bound against every plan, and each bound against every plan that it speaks of."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise, product
from math import prod
from random import Random

import numpy as np
import pytest

import maniple as mp
from maniple.models import model
from maniple.process.error import RequestError
from maniple.strategies.exhaustive import layer_fragment
from maniple.strategies.exhaustive.exhaustive import (
    FOREVER,
    RISE,
    UNKEPT,
    Exhaustive,
    ExhaustiveLayers,
    ExhaustiveState,
)
from maniple.strategies.exhaustive.published_layer import find_layers
from maniple.strategies.exhaustive.symmetry import symmetries
from maniple.strategies.exhaustive.term import COMBINATIONS
from maniple.strategies.interface.space import Space
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.soap.evaluation import NS, Evaluation
from maniple.strategies.soap.move import Choices

pytestmark = pytest.mark.simulator


def chain(width: int = 8) -> mp.Graph:
    graph = mp.Graph("chain")
    x, y = graph.input("x", (4, width)), graph.input("y", (4,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(graph.relu(graph.linear(x, width)), 4), y))
    return graph


def single() -> mp.Graph:
    """A layer and its loss."""
    graph = mp.Graph("single")
    x, y = graph.input("x", (4, 8)), graph.input("y", (4,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(x, 4), y))
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


def finished(strategy: Exhaustive, graph: mp.Graph, machine: mp.Machine) -> ExhaustiveState:
    state = strategy.init(Problem(graph, machine))
    while not strategy.terminate(state):
        state = strategy.step(state)
    return state


@pytest.mark.parametrize(
    ("strategy", "graph", "name"),
    [
        (Exhaustive(), chain(), "cpu:2x1"),
        (Exhaustive(), chain(512), "p100x2"),
        (Exhaustive(), joined(), "cpu:2x1"),
        (Exhaustive(), normed(), "p100x2"),
        (ExhaustiveLayers(), normed(), "p100x2"),
        # Where processors share a memory, the first is like no other: inputs arrive there, and it fetches the loss.
        (Exhaustive(), chain(), "cpu:2"),
        (Exhaustive(), single(), "cpu:3"),
    ],
)
def test_the_fastest_of_all_plans_is_found(strategy: Exhaustive, graph: mp.Graph, name: str) -> None:
    state = finished(strategy, graph, mp.Machine.preset(name))
    every = list(product(*map(range, state.sizes)))
    least = min(state.evaluation.move_to(state.layers.of(numbers)) for numbers in every)
    assert state.best_cost == least


def test_bounds_leave_most_plans_out() -> None:
    state = finished(Exhaustive(), chain(512), mp.Machine.preset("p100x2"))
    assert state.proposals < prod(state.sizes) // 2


@pytest.mark.parametrize(
    ("strategy", "graph", "name"),
    [
        (Exhaustive(), chain(512), "p100x3"),
        (Exhaustive(), joined(), "cpu:3"),
        (Exhaustive(), normed(), "cpu:2x1"),
        (ExhaustiveLayers(), text(), "cpu:3x1"),
    ],
)
def test_no_plan_is_faster_than_a_bound_on_it(strategy: Exhaustive, graph: mp.Graph, name: str) -> None:
    state, chance = strategy.init(Problem(graph, mp.Machine.preset(name))), Random(1)
    while state.frontier is None:
        state = strategy.step(state)
    for _ in range(40):
        numbers = [chance.randrange(size) for size in state.sizes]
        cost = state.evaluation.move_to(state.layers.of(tuple(numbers)))
        found = [state.frontier.bound(numbers[: depth + 1]) for depth in range(len(numbers))]
        # The more is decided, the more is known.
        assert 0 < found[0] <= found[-1]
        assert found == sorted(found)
        assert found[-1] * NS <= cost * (1 + 1e-12)


def test_the_bound_on_a_beginning_is_the_least_of_all_that_follow() -> None:
    """Elimination against every way to go on, bound by bound."""
    strategy = Exhaustive()
    state = strategy.init(Problem(joined(), mp.Machine.preset("cpu:2x1")))
    while state.frontier is None:
        state = strategy.step(state)
    frontier, sizes = state.frontier, state.sizes
    for first in range(sizes[0]):
        rest = [frontier.bound([first, *others]) for others in product(*map(range, sizes[1:]))]
        assert frontier.bound([first]) <= min(rest)


def test_the_layers_of_a_network() -> None:
    """What passes on follows its layer, and the steps of an unrolled layer are one."""
    graph = text()
    space = Space.of(graph, 4)
    layers = find_layers(graph, space)
    followed = {space.names[number]: space.names[layers.leaders[place]] for number, place in enumerate(layers.place)}
    assert followed == {
        "split": "embedding",
        "split_1": "embedding",
        "embedding": "embedding",
        "embedding_1": "embedding",
        "lstm.layers.0": "lstm.layers.0",
        "lstm.layers.0_1": "lstm.layers.0",
        "lstm.layers.1": "lstm.layers.1",
        "lstm.layers.1_1": "lstm.layers.1",
        "classifier": "classifier",
        "classifier_1": "classifier",
        "split_2": "cross_entropy_loss",
        "split_3": "cross_entropy_loss_1",
        "flatten": "classifier",
        "flatten_1": "cross_entropy_loss",
        "cross_entropy_loss": "cross_entropy_loss",
        "flatten_2": "classifier",
        "flatten_3": "cross_entropy_loss_1",
        "cross_entropy_loss_1": "cross_entropy_loss_1",
        "stack": "cross_entropy_loss",
        "stack_1": "cross_entropy_loss_1",
        "stack_2": "cross_entropy_loss",
        "mean": "cross_entropy_loss",
    }
    numbers = (3, 5, 2, 7, 1, 0)
    assert layers.numbers(layers.of(numbers)) == numbers


def test_a_state_that_is_stepped_again_steps_as_it_did() -> None:
    strategy = Exhaustive()
    state = strategy.init(Problem(chain(), mp.Machine.preset("cpu:2x1")))
    every = [state]
    while not strategy.terminate(state):
        state = strategy.step(state)
        every.append(state)
    for before, after in pairwise(every):
        again = strategy.step(before)
        assert (again.best, again.best_cost, again.proposals) == (after.best, after.best_cost, after.proposals)
        assert (again.walked, again.entries, again.known) == (after.walked, after.entries, after.known)
        assert (again.position, again.alike, again.passed) == (after.position, after.alike, after.passed)
        assert (again.proved, again.limit, again.ended) == (after.proved, after.limit, after.ended)


def test_a_step_simulates_one_plan_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """So Ctrl-C and the end of a budget wait for one simulation, not for all that symmetries make of some plans."""
    strategy = Exhaustive()
    state = strategy.init(Problem(chain(512), mp.Machine.preset("p100x2")))
    moved: list[Choices] = []
    move_to = Evaluation.move_to

    def counted(own: Evaluation, choices: Choices) -> float:
        moved.append(choices)
        return move_to(own, choices)

    monkeypatch.setattr(Evaluation, "move_to", counted)
    most, found = 0, 0
    while not strategy.terminate(state):
        moved.clear()
        state = strategy.step(state)
        most, found = max(most, len(moved)), found + (len(moved) > 0 and state.frontier is not None)
    assert most == 1
    assert found > 1


def one_layer() -> mp.Graph:
    graph = mp.Graph("one layer")
    x, y = graph.input("x", (4, 8)), graph.input("y", (4,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(x, 4), y))
    return graph


@pytest.mark.parametrize(("graph", "name"), [(one_layer(), "p100x2"), (joined(), "cpu:2x1"), (chain(), "p100x2")])
def test_a_search_is_the_same_where_no_fragments_are_kept(
    graph: mp.Graph, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = finished(Exhaustive(), graph, mp.Machine.preset(name))
    monkeypatch.setattr(layer_fragment, "ENTRIES", 1)
    unkept = finished(Exhaustive(), graph, mp.Machine.preset(name))
    assert (unkept.best, unkept.best_cost, unkept.proved) == (kept.best, kept.best_cost, kept.proved)
    assert (unkept.proposals, unkept.accepted) == (kept.proposals, kept.accepted)
    assert (kept.fragments.keeps, unkept.fragments.keeps) == (True, False)
    said = [dict(dict(Exhaustive().result(state).explanation)[""]).get("fragments") for state in (kept, unkept)]
    assert said == [None, UNKEPT]


def test_many_layers_that_draw_numbers_are_too_many_to_keep() -> None:
    """All that draw numbers are one group, of more choices than 64 bits count."""
    graph = mp.Graph("dropped")
    x, y = graph.input("x", (4, 4)), graph.input("y", (4,), dtype="int64")
    for _ in range(40):
        x = graph.dropout(x, 0.5)
    graph.loss(graph.cross_entropy(graph.linear(x, 4), y))
    strategy = Exhaustive()
    state = strategy.init(Problem(graph, mp.Machine.preset("p100x2")))
    assert prod(state.sizes[:40]) > 1 << 63
    assert not state.fragments.keeps
    assert strategy.step(state).proposals > state.proposals


def test_a_weight_of_many_users_counts_for_nothing_in_the_bounds() -> None:
    """Their choices together are more than 64 bits count, and in 64 bits look as if they were few."""
    graph = mp.Graph("recurrent")
    x, y = graph.input("x", (4, 4)), graph.input("y", (4,), dtype="int64")
    weight = graph.parameter("weight", (4, 4))
    for _ in range(25):
        x = graph.linear(x, 4, bias=False, weight=weight)
    graph.loss(graph.cross_entropy(x, y))
    state = Exhaustive().init(Problem(graph, mp.Machine.preset("p100x2")))
    users = np.asarray(state.sizes[:25])
    assert users.prod() <= COMBINATIONS < prod(users.tolist())
    assert state.terms.make(10**9)
    assert state.terms.users == []


def test_where_no_plan_fits_the_search_ends_and_says_so() -> None:
    """However much too large they all are."""
    machine = mp.Machine.preset("cpu:2x1")
    small = replace(machine, memories=tuple(replace(memory, capacity_bytes=10) for memory in machine.memories))
    state = finished(Exhaustive(), one_layer(), small)
    assert state.best_cost / NS > 1 << 63
    assert state.proved == FOREVER
    with pytest.raises(RequestError, match="no plan that was tried fits in memory"):
        Exhaustive().result(state)


COMPILED = """
import maniple as mp
from maniple.strategies.exhaustive.branch_kernels import advance, assembled_ns

graph = mp.Graph("two layers")
x, y = graph.input("x", (4, 8)), graph.input("y", (4,), dtype="int64")
graph.loss(graph.cross_entropy(graph.linear(x, 4), y))
found = []
for name in ("p100x2", "p100x8"):
    watch = lambda *_: found.append((len(advance.signatures), len(assembled_ns.signatures)))
    mp.search(graph, mp.Machine.preset(name), strategy="exhaustive", proposals=400, watch=watch)
assert set(found) == {(1, 1)}, sorted(set(found))
"""


@pytest.mark.timeout(600)
def test_nothing_is_compiled_within_a_budget() -> None:
    """Neither in the first step nor later, whether the machine has symmetries or none that are looked at."""
    subprocess.run([sys.executable, "-c", COMPILED], check=True)


def test_a_limit_rises_faster_where_few_more_plans_are_timed() -> None:
    """Each limit is above the one before, and the search ends when nothing below the fastest plan is left."""
    strategy = Exhaustive()
    state = strategy.init(Problem(chain(512), mp.Machine.preset("p100x2")))
    rises, limits = {state.rise}, []
    while not strategy.terminate(state):
        state = strategy.step(state)
        rises.add(state.rise)
        limits.append(state.limit)
    assert limits == sorted(limits)
    assert round(state.best_cost / NS) == state.proved
    assert min(rises) == RISE < max(rises)


def test_a_search_that_ends_early_says_so_and_one_that_does_not_too() -> None:
    graph, machine = chain(), mp.Machine.preset("cpu:2x1")
    short = dict(dict(mp.search(graph, machine, strategy="exhaustive", proposals=2).explanation)[""])
    assert (short["exact"], short["search"]) == (False, "the budget ended before the search did")
    plan = mp.search(graph, machine, strategy="exhaustive", proposals=10**6)
    told = dict(dict(plan.explanation)[""])
    assert (told["exact"], told["search"]) == (True, "the fastest plan of equal splits")


def test_symmetries_keep_hosts_and_links() -> None:
    # The first processor of a memory stays one.
    assert len(symmetries(mp.Machine.preset("cpu:4"))) == 6
    assert len(symmetries(mp.Machine.preset("cpu:3x1"))) == 6
    # Two hosts of two processors each: only the hosts.
    assert symmetries(mp.Machine.preset("cpu:2x2")) == ((0, 1, 2, 3), (2, 3, 0, 1))
    assert symmetries(mp.Machine.preset("p100x8")) == (tuple(range(8)),)
    for exchange in symmetries(mp.Machine.preset("k80x4")):
        assert {exchange[0], exchange[1]} in ({0, 1}, {2, 3})
