"""Elimination against trying every assignment."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.strategies.optcnn.elimination import TABLE_ENTRIES, Assignment, Costs, Elimination, total

Graphs = tuple[list[Costs], dict[tuple[int, int], Costs]]


@st.composite
def graphs(draw: st.DrawFn) -> Graphs:
    """Up to 6 operators of up to 4 choices, any edges, small whole costs so that sums are exact."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    pairs = [(a, b) for a in range(len(sizes)) for b in range(a + 1, len(sizes))]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    operators = [rng.integers(0, 50, size).astype(np.float64) for size in sizes]
    return operators, {(a, b): rng.integers(0, 50, (sizes[a], sizes[b])).astype(np.float64) for a, b in chosen}


def least(operators: list[Costs], edges: dict[tuple[int, int], Costs]) -> float:
    """The oracle."""
    return min(total(chosen, operators, edges) for chosen in product(*(range(len(costs)) for costs in operators)))


def minimize(operators: list[Costs], edges: dict[tuple[int, int], Costs], entries: int = TABLE_ENTRIES) -> Assignment:
    """The assignment of least cost: one operator out after another."""
    elimination = Elimination.of(operators, edges, entries)
    while not elimination.finished:
        elimination = elimination.advance()
    return elimination.assignment()


@given(graphs())
def test_the_least_cost_is_found(graph: Graphs) -> None:
    found = minimize(*graph)
    assert found.exact
    assert found.cost == total(found.choices, *graph) == least(*graph)


@given(graphs())
def test_with_too_small_tables_it_says_so_and_is_locally_best(graph: Graphs) -> None:
    operators, edges = graph
    found = minimize(operators, edges, entries=4)
    assert found.cost == total(found.choices, operators, edges) >= least(operators, edges)
    if found.exact:
        assert found.cost == least(operators, edges)
    else:
        for operator, costs in enumerate(operators):
            for choice in range(len(costs)):
                other = [*found.choices[:operator], choice, *found.choices[operator + 1 :]]
                assert total(other, operators, edges) >= found.cost


def test_the_table_of_the_docstring() -> None:
    """a - b - c with a - c besides: b's best depends on both."""
    zero = np.zeros(2)
    ab, bc = np.array([[0.0, 5.0], [5.0, 1.0]]), np.array([[0.0, 9.0], [9.0, 1.0]])
    found = minimize(
        [np.array([4.0, 0.0]), zero, zero], {(0, 1): ab, (1, 2): bc, (0, 2): np.array([[0.0, 7.0], [7.0, 0.0]])}
    )
    assert found.choices == (1, 1, 1)
    assert found.cost == pytest.approx(2.0)


def contents(elimination: Elimination) -> object:
    """All that an elimination holds, to be compared."""
    tables = [[(table.operators, table.costs.tolist()) for table in known] for known in elimination.known]
    steps = [(step.operator, step.neighbours, step.best.tolist()) for step in elimination.steps]
    return tables, steps, dict(elimination.widths), elimination.exact


@given(graphs(), st.sampled_from([4, 10**6]))
def test_taking_one_out_changes_nothing_of_what_it_began_from(graph: Graphs, entries: int) -> None:
    passed = [Elimination.of(*graph, entries)]
    before = [contents(passed[0])]
    while not passed[-1].finished:
        passed.append(passed[-1].advance())
        before.append(contents(passed[-1]))
    assert len(passed) == len(graph[0]) + 1
    assert [contents(one) for one in passed] == before
    assert [contents(one.advance()) for one in passed] == [*before[1:], before[-1]]
