"""The engine against trying every assignment: tables of any number of operators, conditioning, equal steps."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maniple.strategies.elimination.min_plus import Costs, MinPlus
from maniple.strategies.elimination.variable_elimination import Met, Table, VariableElimination, begin, finish

PROFILE = settings(derandomize=True, deadline=None, max_examples=150)
Problem = tuple[list[int], list[Table[Costs]]]


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Up to 6 operators of up to 3 choices; any tables over one to three of them, several over the same, too."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
    scopes = draw(st.lists(st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=3, unique=True), max_size=9))
    scopes = [[number] for number in range(len(sizes))] + scopes
    tables = [Table(tuple(sorted(s)), rng.integers(0, 40, [sizes[o] for o in sorted(s)]).astype(float)) for s in scopes]
    return sizes, tables


def least(sizes: list[int], tables: list[Table[Costs]]) -> float:
    """The oracle."""
    every = product(*map(range, sizes))
    return min(sum(float(t.costs[tuple(chosen[o] for o in t.operators)]) for t in tables) for chosen in every)


def closed(elimination: VariableElimination[Costs]) -> float:
    return sum(float(costs) for costs in elimination.closed)


@PROFILE
@given(problems())
def test_what_is_closed_is_the_least_sum(problem: Problem) -> None:
    sizes, tables = problem
    (end,) = finish(begin(MinPlus(), sizes, tables, 10**6), 1)
    assert end.exact
    assert closed(end) == least(sizes, tables)


@PROFILE
@given(problems(), st.integers(1, 9))
def test_conditioning_is_exact_and_what_is_not_is_named(problem: Problem, entries: int) -> None:
    sizes, tables = problem
    ends = finish(begin(MinPlus(), sizes, tables, entries), 3**6)
    assert all(end.exact for end in ends)
    assert min(map(closed, ends)) == least(sizes, tables)
    (alone,) = finish(begin(MinPlus(), sizes, tables, entries), 1)
    assert closed(alone) >= least(sizes, tables)
    if alone.exact:
        assert closed(alone) == least(sizes, tables)
    else:
        kept = {step.operator for step in alone.steps if step.rest is None}
        assert kept.issuperset(alone.inexact)
        assert all(sizes[operator] > 1 for operator in alone.inexact)


def test_the_inside_of_equal_layers_is_taken_out_once() -> None:
    """Layers a - b - d, a - c - d, the d of one the a of the next: with what was met, later layers need no product."""
    rng = np.random.default_rng(3)
    one, other, own = rng.integers(0, 99, (4, 4)).astype(float), rng.integers(0, 99, (4, 4)).astype(float), np.zeros(4)
    layers = 20
    sizes = [4] * (3 * layers + 1)
    tables = [Table((number,), own) for number in range(len(sizes))]
    for a in range(0, 3 * layers, 3):
        tables += [Table((a, a + 1), one), Table((a, a + 2), other)]
        tables += [Table((a + 1, a + 3), other), Table((a + 2, a + 3), one)]
    met: Met = {}
    (end,) = finish(begin(MinPlus(), sizes, tables, 10**6, met), 1)
    between = [step for step in end.steps if len(step.neighbours) == 2]
    assert len(between) >= 2 * (layers - 1)
    assert len({id(step.best) for step in between}) <= 4
    (plain,) = finish(begin(MinPlus(), sizes, tables, 10**6), 1)
    assert closed(end) == closed(plain)
    assert len(met) < len(plain.steps)


@pytest.mark.parametrize(("choices", "length"), [(2, 1), (2, 64), (2, 300), (3, 100), (8, 40), (40, 30)])
def test_a_chain_of_equal_tables_is_squared_as_long_as_that_takes_less(choices: int, length: int) -> None:
    """Products that are made: K x K x K for a doubling while more than K operators are left, and K x K for each of them
    then; squaring to the end, and folding all, take more."""
    rng = np.random.default_rng(length)
    own, edge = rng.integers(0, 99, choices).astype(float), rng.integers(0, 99, (choices, choices)).astype(float)
    sizes = [choices] * (length + 1)
    tables = [Table((number,), own) for number in range(length + 1)]
    tables += [Table((number, number + 1), edge) for number in range(length)]
    met: Met = {}
    (end,) = finish(begin(MinPlus(), sizes, tables, 10**6, met, squares=True), 1)
    (plain,) = finish(begin(MinPlus(), sizes, tables, 10**6), 1)
    assert closed(end) == closed(plain)
    assert end.exact
    power = edge
    for _ in range(length - 1):  # the oracle: one table after another
        power = np.min((power + own)[:, :, None] + edge[None], axis=1)
    assert closed(end) == (own[:, None] + power + own).min()
    doublings = sum(len(rest.shape) == 2 for _, rest, _ in met.values())  # type: ignore[misc, attr-defined]
    products = sum(choices * rest.size for _, rest, _ in met.values())  # type: ignore[misc, attr-defined]
    folded = choices**2 * length
    assert products <= folded + choices
    # Each doubling has one product of its own, and one more where what is left has an odd number of layers.
    assert doublings <= 2 * max(0, int(np.ceil(np.log2(max(1, length / choices)))) + 1)
    if length > 16 * choices:
        assert doublings > 0
        assert products < folded / 2
    if length <= choices:
        assert doublings == 0


@PROFILE
@given(problems())
def test_squared_or_not_the_least_sum_is_the_same(problem: Problem) -> None:
    sizes, tables = problem
    shared: dict[str, Table[Costs]] = {}
    # Equal tables are made one object, as alike operators have it.
    tables = [Table(t.operators, shared.setdefault(repr(t.costs.tolist()), t).costs) for t in tables]
    (end,) = finish(begin(MinPlus(), sizes, tables, 10**6, {}, squares=True), 1)
    assert closed(end) == least(sizes, tables)


def test_operators_of_one_choice_need_no_axes() -> None:
    """Forty, all neighbours: more than an array has axes."""
    count = 40
    tables = [Table((number,), np.ones(1)) for number in range(count)]
    tables += [Table((a, b), np.ones((1, 1))) for a in range(count) for b in range(a + 1, count)]
    (end,) = finish(begin(MinPlus(), [1] * count, tables, 10**6), 1)
    assert end.exact
    assert closed(end) == count + count * (count - 1) / 2
