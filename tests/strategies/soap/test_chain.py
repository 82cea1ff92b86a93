"""The chain and the descent on a cost that can be tabulated."""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import exp, inf
from random import Random

import pytest
from tabulated import Tabulated

from maniple.operators.graph import Graph
from maniple.strategies.soap.chain import Chain, advance
from maniple.strategies.soap.move import Choices
from maniple.strategies.space import Space


def two_operators() -> tuple[Space, list[Choices]]:
    """A layer without weights and the loss, between two processors."""
    graph = Graph("small")
    x, y = graph.input("x", (2, 3)), graph.input("y", (2,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.relu(x), y))
    space = Space.of(graph, 2)
    return space, list(product(*(own.choices() for own in space.operators)))


def test_plans_are_visited_as_often_as_their_time_says() -> None:
    space, states = two_operators()
    chance = Random(5)
    table = {state: 1.0 + 0.02 * chance.randrange(4) for state in states}
    table[states[3]] = inf
    chain, evaluator = Chain.at(states[0], table[states[0]], seed=1), Tabulated(table, states[0])
    visits: Counter[float] = Counter()
    for _ in range(40_000):
        chain = advance(chain, space, evaluator, temperature=0.02, scale=1.0)
        assert evaluator.choices == chain.choices
        visits[table[chain.choices]] += 1
    assert visits[inf] == 0
    assert chain.best_cost == min(table.values())
    # Only proposals that change something are counted, so single states may wait a little longer than others: the
    # shares of the four levels of cost are compared, not of single states.
    weight = Counter[float]()
    for value in table.values():
        weight[value] += exp(-value / 0.02) if value < inf else 0.0
    for value, share in weight.items():
        assert visits[value] / 40_000 == pytest.approx(share / sum(weight.values()), abs=0.05)


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
