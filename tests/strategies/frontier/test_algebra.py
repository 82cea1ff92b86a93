"""The algebra of frontiers: against brute force, and the laws of a semiring."""

from __future__ import annotations

from itertools import product as pairs_of

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maniple.strategies.frontier import algebra
from maniple.strategies.frontier.algebra import UNLIMITED, Columns, maxima, one, product, reduce, thin_out, union, unite

PROFILE = settings(derandomize=True, deadline=None, max_examples=200)

Points = list[tuple[int, int]]
# Small numbers, so that points are often equal or beat each other by one.
points = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=9)


def columns(some: Points) -> Columns:
    memory, ticks = (np.array([point[axis] for point in some], dtype=np.int64) for axis in range(2))
    kept = reduce(memory, ticks)
    return memory[kept], ticks[kept]


def as_set(frontier: Columns) -> Points:
    return list(zip(frontier[0].tolist(), frontier[1].tolist(), strict=True))


def beaten(point: tuple[int, int], by: tuple[int, int]) -> bool:
    return by != point and by[0] <= point[0] and by[1] <= point[1]


def best(some: Points) -> Points:
    """The oracle: every point that none of the others beats."""
    return sorted(point for point in set(some) if not any(beaten(point, other) for other in some))


def sums(left: Points, right: Points) -> Points:
    return [(a + c, b + d) for (a, b), (c, d) in pairs_of(left, right)]


def test_the_tables_of_the_docstring() -> None:
    f, g = columns([(1, 9), (4, 3)]), columns([(2, 4), (5, 1)])
    assert as_set(union(f, g)) == [(1, 9), (2, 4), (4, 3), (5, 1)]
    assert as_set(product(f, g)) == [(3, 13), (6, 7), (9, 4)]


@PROFILE
@given(points)
def test_reduced_is_what_nothing_beats_and_is_sorted(some: Points) -> None:
    assert as_set(columns(some)) == best(some)
    assert as_set(columns(as_set(columns(some)))) == best(some)


@PROFILE
@given(points, points)
def test_union_and_product_are_those_of_all_points(left: Points, right: Points) -> None:
    f, g = columns(left), columns(right)
    assert as_set(union(f, g)) == best(left + right)
    assert as_set(product(f, g)) == best(sums(left, right))


@PROFILE
@given(points, points)
def test_maxima_are_those_of_all_pairs(left: Points, right: Points) -> None:
    f, g = columns(left), columns(right)
    mine, others = maxima(f, g)
    pairs = zip(mine.tolist(), others.tolist(), strict=True)
    found = [(max(f[0][i], g[0][j]), max(f[1][i], g[1][j])) for i, j in pairs]
    assert found == best([(max(a, c), max(b, d)) for (a, b), (c, d) in pairs_of(left, right)])


@PROFILE
@given(points, points, points)
def test_the_laws_of_a_semiring(a: Points, b: Points, c: Points) -> None:
    f, g, h = columns(a), columns(b), columns(c)
    assert as_set(product(f, union(g, h))) == as_set(union(product(f, g), product(f, h)))
    for combine in (union, product):
        assert as_set(combine(f, g)) == as_set(combine(g, f))
        assert as_set(combine(combine(f, g), h)) == as_set(combine(f, combine(g, h)))
    assert as_set(union(f, f)) == as_set(union(f)) == as_set(union(f, columns([]))) == as_set(f)
    assert as_set(product(f, one())) == as_set(product(f)) == as_set(f)
    assert as_set(product(f, columns([]))) == []


@PROFILE
@given(st.lists(st.tuples(points, points), max_size=4), st.integers(0, 26))
def test_a_union_of_products_knows_its_parts_and_its_limit(parts: list[tuple[Points, Points]], limit: int) -> None:
    """Each point is the sum of the two that it names, of one pair; of equal sums it names the first."""
    frontiers = [columns(side) for pair in parts for side in pair]
    memory = np.concatenate([np.empty(0, np.int64), *(frontier[0] for frontier in frontiers)])
    ticks = np.concatenate([np.empty(0, np.int64), *(frontier[1] for frontier in frontiers)])
    lengths = [len(frontier[0]) for frontier in frontiers]
    starts = np.cumsum([0, *lengths])
    pairs = [(starts[k], lengths[k], starts[k + 1], lengths[k + 1]) for k in range(0, len(lengths), 2)]
    table = np.array(pairs, dtype=np.int64).reshape(len(parts), 4)
    found = unite(memory, ticks, table, limit)
    every = [point for left, right in parts for point in sums(left, right)]
    assert as_set(found[:2]) == [point for point in best(every) if point[0] <= limit]
    order = {}
    for first, count, second, length in pairs:
        for a, b in pairs_of(range(first, first + count), range(second, second + length)):
            order.setdefault((memory[a] + memory[b], ticks[a] + ticks[b]), (a, b))
    assert [(a, b) for a, b in zip(found[2], found[3], strict=True)] == [order[point] for point in as_set(found[:2])]


@PROFILE
@given(points, points, st.sampled_from([0.0, 0.1, 0.34, 1.0]))
def test_thinning_keeps_the_extremes_and_its_bound_also_through_a_product(a: Points, b: Points, epsilon: float) -> None:
    f, g = columns(a), columns(b)
    thin = [
        (frontier[0][kept], frontier[1][kept]) for frontier in (f, g) for kept in (thin_out(frontier[0], epsilon, 0),)
    ]
    for whole, part in zip((f, g), thin, strict=True):
        assert as_set(part)[:1] == as_set(whole)[:1]
        assert as_set(part)[-1:] == as_set(whole)[-1:]
    for whole, part in [*zip((f, g), thin, strict=True), (product(f, g), product(*thin))]:
        for memory, ticks in as_set(whole):
            assert any(m <= (1 + epsilon) * memory and t <= ticks for m, t in as_set(part))
        assert epsilon > 0 or as_set(part) == as_set(whole)


@PROFILE
@given(points, points, st.sampled_from([0.1, 0.34, 1.0]), st.floats(0.0, 1.0))
def test_thinning_by_what_the_whole_needs_keeps_its_bound(a: Points, b: Points, epsilon: float, share: float) -> None:
    """Both parts of a product are thinned, one upon the other: (1 + epsilon)^2 times the memory at most."""
    f, g = columns(a), columns(b)
    whole = product(f, g)
    floor = int(share * whole[0].min(initial=10**6)) if len(whole[0]) else 0
    thin = [(side[0][kept], side[1][kept]) for side in (f, g) for kept in (thin_out(side[0], epsilon, floor),)]
    found = as_set(product(*thin))
    for memory, ticks in as_set(whole):
        assert any(m <= (1 + epsilon) ** 2 * memory + 1e-6 and t <= ticks for m, t in found)


@PROFILE
@given(
    st.lists(st.integers(1, 40), max_size=8, unique=True), st.sampled_from([0.1, 0.34, 1.0]), st.sampled_from([0, 25])
)
def test_no_fewer_points_would_do(memory: list[int], epsilon: float, floor: int) -> None:
    """Brute force over all subsets with the first and the last point."""
    ascending = np.array(sorted(memory), dtype=np.int64)
    count = len(ascending)

    def stands(subset: set[int]) -> bool:
        for place in range(count):
            following = min((k for k in subset if k >= place), default=None)
            if following is None:
                return False
            more = epsilon * max(int(ascending[place]), floor)
            if ascending[following] > ascending[place] + more:
                return False
        return True

    subsets = [{k for k in range(count) if bits >> k & 1} for bits in range(1 << count)]
    least = min(len(subset) for subset in subsets if stands(subset) and (count == 0 or {0, count - 1} <= subset))
    assert len(thin_out(ascending, epsilon, floor)) == least


def test_a_large_product_is_that_of_all_sums() -> None:
    """Two thousand points a side: four million sums, merged by rows that skip what is beaten."""
    chance = np.random.default_rng(7)
    sides = []
    for _ in range(2):
        memory = np.cumsum(chance.integers(1, 1000, 2000))
        ticks = np.cumsum(chance.integers(1, 1000, 2000))[::-1]
        sides.append((memory.astype(np.int64), np.ascontiguousarray(ticks).astype(np.int64)))
    found = product(*sides)
    memory, ticks = (np.add.outer(sides[0][axis], sides[1][axis]).ravel() for axis in range(2))
    kept = reduce(memory, ticks)
    assert np.array_equal(found[0], memory[kept])
    assert np.array_equal(found[1], ticks[kept])


def test_nothing_is_above_the_limit_and_no_limit_is_none() -> None:
    assert UNLIMITED > 2**62
    f = columns([(1, 9), (4, 3)])
    memory, ticks = np.concatenate((f[0], [0])), np.concatenate((f[1], [0]))
    table = np.array([[0, 2, 2, 1]], dtype=np.int64)
    assert as_set(unite(memory, ticks, table, 3)[:2]) == [(1, 9)]
    assert as_set(unite(memory, ticks, table, 0)[:2]) == []


@pytest.mark.parametrize("name", ["reduced", "united", "thinned", "union", "product"])
def test_no_points_are_no_points(name: str) -> None:
    empty = np.empty(0, dtype=np.int64)
    given_nothing = {
        "reduced": lambda: reduce(empty, empty),
        "united": lambda: unite(empty, empty, np.empty((0, 4), dtype=np.int64), UNLIMITED)[0],
        "thinned": lambda: thin_out(empty, 0.1, 0),
        "union": lambda: algebra.union()[0],
        "product": lambda: product((empty, empty))[0],
    }
    assert len(given_nothing[name]()) == 0
