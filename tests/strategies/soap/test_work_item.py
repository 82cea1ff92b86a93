"""Work items on a cost that can be tabulated: sweeps, merges, the descent, and their plain form."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import cast

import pytest
from tabulated import Tabulated

from maniple.operators.graph.graph import Graph
from maniple.process.error import RequestError
from maniple.strategies.interface.space import Space
from maniple.strategies.soap.descent import Descent
from maniple.strategies.soap.evaluation import Evaluation
from maniple.strategies.soap.markov_chain import Chain
from maniple.strategies.soap.move import Choices
from maniple.strategies.soap.options import Options
from maniple.strategies.soap.work_item import Merge, SearchItem, Sweep, Walk, merge, unpack


class Table(Tabulated):
    """An evaluation over a table."""

    def __init__(self, space: Space, table: dict[Choices, float], choices: Choices) -> None:
        super().__init__(table, choices)
        self.space, self.options = space, Options(space)
        self.least: tuple[int, int, Choices] | None = None

    def stand_at(self, choices: Choices) -> None:
        assert self.next is None
        self.choices = choices


def tabulated(seed: int) -> tuple[list[Choices], Evaluation, dict[Choices, float]]:
    """All choices of a layer without weights and a loss between two processors, and random costs."""
    graph = Graph("small")
    x, y = graph.input("x", (2, 3)), graph.input("y", (2,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.relu(x), y))
    space = Space.of(graph, 2)
    states = list(product(*(own.choices() for own in space.operators)))
    chance = Random(seed)
    table = {state: 1.0 + chance.random() for state in states}
    return states, cast("Evaluation", Table(space, table, states[0])), table


def ended(item: SearchItem, evaluation: Evaluation) -> SearchItem:
    while not item.finished:
        item = item.step(evaluation)
    return item


def test_the_options_are_all_choices_in_their_order() -> None:
    _, evaluation, _ = tabulated(0)
    every = [(place, choice) for place, own in enumerate(evaluation.space.operators) for choice in own.choices()]
    assert [evaluation.options.at(number) for number in range(evaluation.options.count)] == every


@pytest.mark.parametrize("seed", range(8))
def test_a_descent_ends_where_no_operator_alone_can_do_better(seed: int) -> None:
    states, evaluation, table = tabulated(seed)
    descent = Descent(states[7], table[states[7]], evaluation.options.count)
    items: tuple[SearchItem, ...] = descent.items()
    while not descent.finished:
        descent, items = descent.join([ended(item, evaluation) for item in items])
    assert items == ()
    assert descent.cost == table[descent.choices] < table[states[7]]
    for number in range(evaluation.options.count):
        operator, choice = evaluation.options.at(number)
        other = (*descent.choices[:operator], choice, *descent.choices[operator + 1 :])
        assert table[other] >= descent.cost


def test_a_merge_keeps_what_makes_the_fastest_faster() -> None:
    """Three items changed one operator each, or both: the fastest's change stays, another is added if that helps."""
    states, evaluation, table = tabulated(3)
    base = states[0]
    one, other = evaluation.space.operators[0].choices()[3], evaluation.space.operators[1].choices()[2]
    first, second, both = (one, base[1]), (base[0], other), (one, other)
    for cost, kept in ((0.5, both), (0.9, first)):
        table.update({base: 1.0, first: 0.7, second: 0.8, both: cost})
        items = [Sweep(second, 0.8, 0, 1), Sweep(first, 0.7, 0, 1), Sweep(base, 1.0, 0, 1)]
        joined = merge(items, base, 1.0)
        assert joined == Merge(first, 0.7, (((1, other),),))
        found = ended(joined, evaluation)
        assert (found.best, found.proposals) == (kept, 1)
        assert found.best_cost == table[kept]
    assert merge([Sweep(base, 1.0, 0, 1)], base, 1.0) is None


def test_an_item_goes_on_from_its_plain_form() -> None:
    states, evaluation, table = tabulated(5)
    least = 7, 1, states[4]
    walk: SearchItem = Walk(Chain.at(states[9], table[states[9]], 2**62 - 1), 0.3, 20, least)
    sweep: SearchItem = Sweep(states[9], table[states[9]], 3, 30, least=least)
    for item in (walk, sweep):
        half = item
        for _ in range(7):
            half = half.step(evaluation)
        plain = half.pack()
        assert plain is not None
        again = unpack(plain)
        assert again == half
        assert ended(again, evaluation) == ended(item, evaluation)


@pytest.mark.parametrize("plain", [[], ["walk", 1], ["sweep", [[1]], 0.5, 1, 2, 3, 4, None], ["jump"]])
def test_what_is_no_item_is_refused(plain: list[object]) -> None:
    with pytest.raises(RequestError, match="item: expected"):
        unpack(plain)
