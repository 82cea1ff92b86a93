"""A contracted model says of every assignment that is left what the whole one says."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from maniple.strategies.frontier.additive_model import Model
from maniple.strategies.frontier.algebra import reduce
from maniple.strategies.frontier.contraction import contracted
from maniple.strategies.frontier.weighted_sum import Found

HOMES = 2


def drawn(chance: np.random.Generator, count: int, choices: int) -> Model:
    """Operators of two kinds, and edges of one."""
    kinds = [tuple(chance.integers(0, 9, (2, choices, HOMES))) for _ in range(2)]
    edge = tuple(chance.integers(0, 9, (2, choices, choices)))
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count) if chance.integers(2)]
    return Model(
        tuple((kinds[k][0], kinds[k][1]) for k in chance.integers(0, 2, count)),
        dict.fromkeys(pairs, (edge[0], edge[1])),
    )


def frontier(model: Model, kept: list[np.ndarray], base: tuple[int, int] = (0, 0)) -> list[tuple[int, int]]:
    """The oracle."""
    every = [
        model.total(chosen, homes)
        for chosen in product(*(choices.tolist() for choices in kept))
        for homes in product(range(HOMES), repeat=len(kept))
    ]
    memory, ticks = np.array(every, dtype=np.int64).T + np.array(base)[:, None]
    best = reduce(memory, ticks)
    return list(zip(memory[best].tolist(), ticks[best].tolist(), strict=True))


@settings(derandomize=True, deadline=None, max_examples=80)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 3))
def test_it_has_the_frontier_of_what_is_left(seed: int, count: int, choices: int) -> None:
    chance = np.random.default_rng(seed)
    model = drawn(chance, count, choices)
    kept = [np.sort(chance.permutation(choices)[: chance.integers(1, choices + 1)]) for _ in range(count)]
    small = contracted(model, tuple(kept))
    left = [np.arange(size) for size in small.model.sizes]
    assert frontier(small.model, left, small.base) == frontier(model, kept)
    places, homes = [int(chance.integers(len(own))) for own in left], chance.integers(0, HOMES, len(left)).tolist()
    (found,) = small.found(np.array([places], dtype=np.int64), np.array([homes], dtype=np.int64))
    own = small.model.total(places, homes)
    assert (found.memory, found.ticks) == (own[0] + small.base[0], own[1] + small.base[1])
    assert (found.memory, found.ticks) == model.total(found.chosen, found.homes)
    assert all(choice in choices for choice, choices in zip(found.chosen, kept, strict=True))


@settings(derandomize=True, deadline=None, max_examples=80)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 3), st.integers(0, HOMES - 1))
def test_with_its_base_it_is_a_model_of_what_is_left(seed: int, count: int, choices: int, home: int) -> None:
    """One operator has one choice, at one home; assignments of the model are such of the whole one."""
    chance = np.random.default_rng(seed)
    model, number = drawn(chance, count, choices), int(chance.integers(count))
    kept = [np.sort(chance.permutation(choices)[: chance.integers(1, choices + 1)]) for _ in range(count)]
    kept[number] = kept[number][:1]
    small = contracted(model, tuple(kept), {number: home})
    based = small.with_base()
    drawn_homes = [int(chance.integers(memory.shape[1])) for memory, _ in based.own]
    chosen = [int(chance.integers(size)) for size in based.sizes]
    point = Found(*based.total(chosen, drawn_homes), tuple(chosen), tuple(drawn_homes))
    (found,) = small.lifted([point])
    assert (found.memory, found.ticks) == (point.memory, point.ticks) == model.total(found.chosen, found.homes)
    assert (found.chosen[number], found.homes[number]) == (kept[number][0], home)
    assert all(choice in choices for choice, choices in zip(found.chosen, kept, strict=True))
    assert small.lifted([]) == []


def test_what_has_one_choice_is_not_left() -> None:
    """a - b - c, of which b has one choice and one best home: no edge, and b's own figures beside."""
    own = np.array([[1, 2], [3, 3]]), np.array([[5, 6], [7, 7]])
    edge = np.array([[10, 20], [30, 40]]), np.array([[1, 2], [3, 4]])
    model = Model((own, own, own), {(0, 1): edge, (1, 2): edge})
    small = contracted(model, (np.arange(2), np.array([0]), np.arange(2)))
    assert small.numbers == (0, 2)
    assert not small.model.edges
    assert small.base == (1, 5)
    assert small.model.own[0][0].tolist() == [[11, 12], [33, 33]]
    assert small.model.own[1][0].tolist() == [[11, 12], [23, 23]]


def test_alike_operators_stay_alike() -> None:
    model = drawn(np.random.default_rng(0), 4, 3)
    kept = tuple(np.arange(2) for _ in range(4))
    small = contracted(Model((model.own[0],) * 4, dict.fromkeys([(0, 1), (1, 2), (2, 3)], model.own[0])), kept)
    assert len({id(term) for term in small.model.own}) == 1
    assert len({id(term) for term in small.model.edges.values()}) == 1
