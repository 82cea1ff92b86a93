"""The moves keep detailed balance, and leave no choice out: exact transition matrices of small spaces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product
from math import exp, log
from random import Random

import pytest

from maniple.operators.graph.graph import Graph
from maniple.strategies.interface.space import Choice, Space
from maniple.strategies.soap.move import MOVES, Choices, Proposal, apply, migrate, resize, trade

Move = Callable[[Space, Choices, Random], Proposal | None]

DRAWS = 20_000


def small_space() -> Space:
    """Two equal layers and the loss between two processors: 3 operators."""
    graph = Graph("small")
    x, y = graph.input("x", (2, 2)), graph.input("y", (2,), dtype="int64")
    h = graph.linear(graph.linear(x, 2, bias=False), 2, bias=False)
    graph.loss(graph.cross_entropy(h, y))
    return Space.of(graph, 2)


def drawn(space: Space, chance: Random) -> Choices:
    return tuple(own.draw(chance) for own in space.operators)


@pytest.mark.parametrize("move", [move for move, _ in MOVES], ids=lambda move: str(move.__name__))
def test_a_move_states_the_ratio_of_its_own_frequencies(move: Move) -> None:
    """From x count the proposals of y, and from y those of x: their ratio is what the proposal said."""
    space, chance = small_space(), Random(7)
    here = drawn(space, chance)
    while not any(move(space, here, chance) for _ in range(100)):
        here = drawn(space, chance)
    check_ratios(move, space, here, chance)


def check_ratios(move: Move, space: Space, here: Choices, chance: Random) -> None:
    """Hold the ratios of a move's most frequent proposals against how often each is made, and undone."""
    forward: Counter[Choices] = Counter()
    ratios: dict[Choices, float] = {}
    for _ in range(DRAWS):
        proposal = move(space, here, chance)
        if proposal is None:
            continue
        there = apply(here, proposal)
        forward[there] += 1
        assert ratios.setdefault(there, proposal.log_ratio) == pytest.approx(proposal.log_ratio)
    assert forward
    for there, count in forward.most_common(3):
        if there == here:
            continue
        back = sum(
            proposal is not None and apply(there, proposal) == here
            for proposal in (move(space, there, chance) for _ in range(DRAWS))
        )
        assert back > 0
        # Five standard deviations of the logarithm of a ratio of two counts.
        assert log(back / count) == pytest.approx(ratios[there], abs=5 * (1 / back + 1 / count) ** 0.5)


def two_layers() -> tuple[Space, Choices]:
    """Two layers on six processors, where no distance is its own opposite but half the way around.

    operator    layer    sample in parts    from processor
    linear      0        3                  0
    linear_1    1        2                  1
    loss        1        2                  2
    """
    graph = Graph("two layers")
    x, y = graph.input("x", (6, 2)), graph.input("y", (6,), dtype="int64")
    h = graph.linear(graph.linear(x, 2, bias=False), 2, bias=False)
    graph.loss(graph.cross_entropy(h, y))
    space = Space.of(graph, 6)
    assert space.layers == (0, 1, 1)
    axes = [[factor.role for factor in own.factors].index("sample") for own in space.operators]
    cut = [[1] * len(own.factors) for own in space.operators]
    for degrees, axis, parts in zip(cut, axes, (3, 2, 2), strict=True):
        degrees[axis] = parts
    return space, tuple(Choice(tuple(degrees), start=start) for start, degrees in enumerate(cut))


@pytest.mark.parametrize("move", [migrate, trade, resize], ids=lambda move: str(move.__name__))
def test_what_is_done_to_a_layer_is_undone_as_often(move: Move) -> None:
    space, here = two_layers()
    check_ratios(move, space, here, Random(5))


def test_what_the_moves_of_layers_make_of_two() -> None:
    """Their rows in the module's table."""
    space, here = two_layers()
    chance = Random(5)
    found: dict[str, set[tuple[int, ...]]] = {"starts": set(), "traded": set(), "parts": set()}
    for name, move in (("starts", migrate), ("traded", trade), ("parts", resize)):
        for _ in range(500):
            proposal = move(space, here, chance)
            if proposal is not None:
                after = apply(here, proposal)
                found[name].add(tuple(c.tasks if move is resize else c.start for c in after))
    assert found["starts"] == {
        *((distance, 1, 2) for distance in range(1, 6)),
        *((0, (1 + distance) % 6, (2 + distance) % 6) for distance in range(1, 6)),
    }
    # The first layer where an operator of the second was, and that one where the first was.
    assert found["traded"] == {(1, 0, 1), (2, 5, 0)}
    # Three parts cannot be halved.
    assert found["parts"] == {(6, 2, 2), (3, 4, 4), (3, 1, 1)}


def test_the_chain_visits_choices_as_often_as_their_cost_says() -> None:
    """Metropolis-Hastings over one operator's space has the distribution exp(-cost), every choice included."""
    graph = Graph("one")
    graph.loss(graph.cross_entropy(graph.input("x", (2, 2)), graph.input("y", (2,), dtype="int64")))
    space, chance = Space.of(graph, 2), Random(3)
    states = [(choice,) for choice in space.operators[0].choices()]
    cost = {state: 0.3 * (number % 4) for number, state in enumerate(states)}
    here, visits, steps = states[0], Counter[Choices](), 60_000
    moves = [move for move, _ in MOVES]
    for _ in range(steps):
        proposal = chance.choice(moves)(space, here, chance)
        if proposal is not None:
            there = apply(here, proposal)
            if chance.random() < exp(min(0.0, cost[here] - cost[there] + proposal.log_ratio)):
                here = there
        visits[here] += 1
    total = sum(exp(-value) for value in cost.values())
    for state in states:
        assert visits[state] / steps == pytest.approx(exp(-cost[state]) / total, abs=0.02)


def test_every_choice_is_legal_and_drawn_with_its_probability() -> None:
    space, chance = small_space(), Random(0)
    own = space.operators[0]
    choices = own.choices()
    assert len(set(choices)) == len(choices)
    assert all(own.contains(choice) and own.choice(own.plan(choice)) == choice for choice in choices)
    assert sum(map(own.probability, choices)) == pytest.approx(1.0)
    drawn = Counter(own.draw(chance) for _ in range(20_000))
    assert set(drawn) == set(choices)
    for choice in choices:
        assert drawn[choice] / 20_000 == pytest.approx(own.probability(choice), abs=0.02)


def test_all_tasks_of_a_choice_have_processors_of_their_own() -> None:
    graph = Graph("wide")
    graph.loss(graph.cross_entropy(graph.linear(graph.input("x", (8, 6)), 4), graph.input("y", (8,), dtype="int64")))
    for count, own in product((1, 3, 5), range(2)):
        space = Space.of(graph, count).operators[own]
        for choice in space.choices():
            plan = space.plan(choice)
            assert len(set(plan.processors)) == choice.tasks
