"""Min-marginals against the least sum over every assignment that has a choice."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from maniple.strategies.elimination.min_marginal import least_sums
from maniple.strategies.elimination.min_plus import Costs, MinPlus
from maniple.strategies.elimination.variable_elimination import Table, begin, finish


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(1, 3), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8),
)
def test_they_are_the_least_of_every_assignment_with_a_choice(
    seed: int, sizes: list[int], pairs: list[tuple[int, int]]
) -> None:
    rng = np.random.default_rng(seed)
    scopes = [(number,) for number in range(len(sizes))]
    scopes += [(min(p), max(p)) for p in pairs if max(p) < len(sizes) and p[0] != p[1]]
    tables = [Table(scope, rng.integers(0, 40, [sizes[o] for o in scope]).astype(float)) for scope in scopes]
    wanted: list[Costs] = [np.full(size, np.inf) for size in sizes]
    for chosen in product(*map(range, sizes)):
        cost = sum(float(table.costs[tuple(chosen[o] for o in table.operators)]) for table in tables)
        for operator, choice in enumerate(chosen):
            wanted[operator][choice] = min(wanted[operator][choice], cost)
    (end,) = finish(begin(MinPlus(), sizes, tables, 10**6, {}), 1)
    for step, rest in ((step, least_sums(end).outside[step.operator]) for step in end.steps):
        assert step.rest is not None
        assert (step.rest.costs + rest).min() == min(least.min() for least in wanted)
    assert [found.tolist() for found in least_sums(end).marginals] == [least.tolist() for least in wanted]


def test_the_table_of_the_docstring() -> None:
    tables = [Table((0,), np.array([0.0, 4.0])), Table((1,), np.array([1.0, 0.0]))]
    tables.append(Table((0, 1), np.array([[0.0, 9.0], [2.0, 1.0]])))
    (end,) = finish(begin(MinPlus(), [2, 2], tables, 100), 1)
    assert [found.tolist() for found in least_sums(end).marginals] == [[1, 5], [1, 5]]
