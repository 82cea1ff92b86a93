"""The frontier of a graph by elimination: equal to brute force on random graphs, and its points are what they say."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maniple.strategies.elimination.variable_elimination import Table, begin, finish
from maniple.strategies.frontier import frontiers
from maniple.strategies.frontier.algebra import UNLIMITED, Column, Columns, reduce
from maniple.strategies.frontier.frontiers import Cells, Frontiers

PROFILE = settings(derandomize=True, deadline=None, max_examples=300)


class Given:
    """A random graph of costs: of operators, of edges, several between the same two, and of three that share."""

    def __init__(self, seed: int, sizes: list[int], scopes: list[tuple[int, ...]], largest: int) -> None:
        chance = np.random.default_rng(seed)
        self.sizes = sizes
        self.scopes = [(number,) for number in range(len(sizes))] + scopes
        shapes = [[sizes[operator] for operator in scope] for scope in self.scopes]
        self.memory, self.ticks = ([chance.integers(0, largest, shape) for shape in shapes] for _ in range(2))

    def every(self) -> tuple[Column, Column]:
        """Memory and ticks of every assignment, an axis for each operator."""
        sums = []
        for values in (self.memory, self.ticks):
            total = np.zeros(self.sizes, dtype=np.int64)
            for scope, costs in zip(self.scopes, values, strict=True):
                shape = [self.sizes[o] if o in scope else 1 for o in range(len(self.sizes))]
                total += costs.reshape(shape)
            sums.append(total)
        return sums[0], sums[1]

    def best(self, limit: int = UNLIMITED) -> Columns:
        """The oracle: the frontier of all assignments."""
        memory, ticks = (column.reshape(-1) for column in self.every())
        kept = reduce(memory, ticks)
        kept = kept[memory[kept] <= limit]
        return memory[kept], ticks[kept]

    def solve(self, entries: int, limit: int = UNLIMITED, epsilon: float = 0.0) -> tuple[Frontiers, Cells, bool]:
        """By the engine; only operators' own costs have marks."""
        semiring = Frontiers(limit=limit, epsilon=epsilon)
        tables, mark = [], 0
        for scope, memory, ticks in zip(self.scopes, self.memory, self.ticks, strict=True):
            own = len(scope) == 1
            tables.append(Table(scope, semiring.given(memory, ticks, mark if own else -1)))
            mark += self.sizes[scope[0]] if own else 0
        ends = finish(begin(semiring, self.sizes, tables, entries), 4**8)
        cell = semiring.union([semiring.product(end.closed) for end in ends])
        return semiring, cell, all(end.exact for end in ends)


@st.composite
def graphs(draw: st.DrawFn) -> Given:
    """Chains, diamonds, and whatever else edges between up to 8 operators of up to 4 choices make."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=8))
    count = len(sizes)
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    scopes: list[tuple[int, ...]] = []
    if draw(st.booleans()):
        scopes += [(a, a + 1) for a in range(count - 1)]
    if count > 3 and draw(st.booleans()):
        scopes += [(0, 1), (0, 2), (1, 3), (2, 3)]
    scopes += draw(st.lists(st.sampled_from(pairs), max_size=6)) if pairs else []
    if count > 2 and draw(st.booleans()):  # a weight that three operators share
        scopes.append((0, count // 2, count - 1))
    return Given(draw(st.integers(0, 2**32 - 1)), sizes, scopes, draw(st.sampled_from([4, 30, 10**6])))


def assert_same(found: Columns, wanted: Columns) -> None:
    assert [column.tolist() for column in found] == [column.tolist() for column in wanted]


@PROFILE
@given(graphs(), st.sampled_from([10**6, 10**6, 16, 4]))
def test_the_frontier_is_that_of_all_assignments(graph: Given, entries: int) -> None:
    """With small tables, too, by conditioning."""
    semiring, cell, exact = graph.solve(entries)
    assert exact
    assert_same(semiring.points(cell), graph.best())


@PROFILE
@given(graphs())
def test_a_point_is_the_sum_of_what_it_names(graph: Given) -> None:
    semiring, cell, _ = graph.solve(10**6)
    memory, ticks = graph.every()
    starts = np.cumsum([0, *graph.sizes])
    chosen = semiring.unrolled(cell, starts.tolist())
    assert len(chosen) > 0
    for row, needs, takes in zip(chosen.tolist(), *semiring.points(cell), strict=True):
        assert (memory[tuple(row)], ticks[tuple(row)]) == (needs, takes)


@PROFILE
@given(graphs(), st.floats(0.0, 1.0))
def test_a_limit_keeps_what_is_below_it(graph: Given, share: float) -> None:
    """The search for the fastest plan within a memory is the same one with a limit."""
    whole = graph.best()
    limit = int(whole[0][0] + share * (whole[0][-1] - whole[0][0]))
    semiring, cell, _ = graph.solve(10**6, limit)
    assert_same(semiring.points(cell), graph.best(limit))


@PROFILE
@given(graphs(), st.sampled_from([0.01, 0.2]))
def test_thinned_sums_keep_the_extremes_and_their_bound(graph: Given, epsilon: float) -> None:
    semiring, cell, _ = graph.solve(10**6, epsilon=epsilon)
    memory, ticks = semiring.points(cell)
    whole = graph.best()
    assert (memory[0], ticks[-1]) == (whole[0][0], whole[1][-1])
    sums = 2 * (len(graph.scopes) + len(graph.sizes) + 2)
    for needs, takes in zip(*whole, strict=True):
        assert any(m <= (1 + epsilon) ** sums * needs and t <= takes for m, t in zip(memory, ticks, strict=True))


@settings(derandomize=True, deadline=None, max_examples=100)
@given(graphs(), st.floats(0.01, 100.0))
def test_it_holds_the_least_of_every_weighted_sum(graph: Given, weight: float) -> None:
    semiring, cell, _ = graph.solve(10**6)
    memory, ticks = semiring.points(cell)
    every = graph.every()
    assert (memory + weight * ticks).min() == pytest.approx((every[0] + weight * every[1]).min())


def test_a_point_that_no_weighted_sum_reaches() -> None:
    """(0, 10), (6, 6), (10, 0): the middle one lies above the line between the others, and is found."""
    semiring = Frontiers()
    own = semiring.given(np.array([0, 6, 10]), np.array([10, 6, 0]), 0)
    (end,) = finish(begin(semiring, [3], [Table((0,), own)], 100), 1)
    found = semiring.points(semiring.product(end.closed))
    assert_same(found, (np.array([0, 6, 10]), np.array([10, 6, 0])))
    for weight in np.geomspace(0.01, 100, 50):
        sums = found[0] + weight * found[1]
        assert sums.argmin() != 1


def test_threads_make_the_same_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontiers, "ALONE", 0)
    chance = np.random.default_rng(5)
    sizes = [9] * 6
    scopes = [(a, b) for a, b in product(range(6), repeat=2) if a < b and (b - a == 1 or chance.integers(4) == 0)]
    graph = Given(8, sizes, scopes, 10**6)
    alone = graph.solve(10**6)
    semiring = Frontiers(cores=3)
    tables, mark = [], 0
    for scope, memory, ticks in zip(graph.scopes, graph.memory, graph.ticks, strict=True):
        tables.append(Table(scope, semiring.given(memory, ticks, mark if len(scope) == 1 else -1)))
        mark += 9 if len(scope) == 1 else 0
    (end,) = finish(begin(semiring, sizes, tables, 10**6), 1)
    assert_same(semiring.points(semiring.product(end.closed)), alone[0].points(alone[1]))
