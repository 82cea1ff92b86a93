"""The chain and the descent on a cost that can be tabulated."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from math import exp, inf
from random import Random

from tabulated import Tabulated

from maniple.operators.graph.graph import Graph
from maniple.strategies.interface.space import Space
from maniple.strategies.soap.markov_chain import Chain, advance
from maniple.strategies.soap.move import Choices, propose


def two_operators(samples: int = 2, features: int = 3) -> tuple[Space, list[Choices]]:
    """A layer without weights and the loss, between two processors."""
    graph = Graph("small")
    x, y = graph.input("x", (samples, features)), graph.input("y", (samples,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.relu(x), y))
    space = Space.of(graph, 2)
    return space, list(product(*(own.choices() for own in space.operators)))


def test_plans_are_visited_as_often_as_their_time_says() -> None:
    """The whole state space, by the chi-square of Pearson: 16 plans of three times, one of them without room.

    Draws propose something in 46 to 55 of 100 cases, according to the plan. A chain that draws again where nothing is
    proposed has a chi-square near 100 here.
    """
    space, states = two_operators(1, 1)
    table = {state: 1.0 + 0.01 * (number % 3) for number, state in enumerate(states)}
    table[states[1]] = inf
    weight = {state: exp(-time / 0.02) for state, time in table.items()}
    chain, evaluator = Chain.at(states[0], table[states[0]], seed=2), Tabulated(table, states[0])
    visits, samples = Counter[Choices](), 10_000
    for _ in range(samples):
        for _ in range(8):  # so that one sample says little of the next
            chain = advance(chain, space, evaluator, temperature=0.02, scale=1.0)
            assert evaluator.choices == chain.choices
        visits[chain.choices] += 1
    assert visits[states[1]] == 0
    assert chain.best_cost == min(table.values())
    expected = {state: samples * share / sum(weight.values()) for state, share in weight.items() if share}
    chi_square = sum((visits[state] - count) ** 2 / count for state, count in expected.items())
    assert len(expected) == 15
    assert chi_square < 42.6  # 14 degrees of freedom: one chain in 10,000 that is right


def test_a_draw_that_proposes_nothing_counts_and_is_not_evaluated() -> None:
    space, states = two_operators()
    table = dict.fromkeys(states, 1.0)
    chain, evaluator = Chain.at(states[0], 1.0, seed=1), Tabulated(table, states[0])
    evaluated = 0
    for number in range(200):
        proposal = propose(space, chain.choices, Random((1 << 64) + number))
        proposed = proposal is not None and any(chain.choices[place] != choice for place, choice in proposal.changes)
        before, evaluator.evaluations = chain, 0
        chain = advance(chain, space, evaluator, temperature=0.02, scale=1.0)
        assert chain.proposals == number + 1
        assert evaluator.evaluations == proposed
        assert proposed or chain == replace(before, proposals=number + 1)
        evaluated += proposed
    assert 50 < evaluated < 150


def test_the_same_seed_gives_the_same_chain() -> None:
    space, states = two_operators()
    table = {state: 1.0 + 0.001 * number for number, state in enumerate(states)}
    ends = []
    for seed in (1, 1, 2):
        chain, evaluator = Chain.at(states[5], table[states[5]], seed), Tabulated(table, states[5])
        for _ in range(50):
            chain = advance(chain, space, evaluator, 0.01, 1.0)
        ends.append(chain)
    assert ends[0] == ends[1] != ends[2]
