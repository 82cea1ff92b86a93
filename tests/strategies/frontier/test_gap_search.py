"""The frontier of a model by weighted sums and gaps: exactly, or within its bound, against brute force."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maniple.strategies.frontier import gap_search
from maniple.strategies.frontier.additive_model import Model
from maniple.strategies.frontier.algebra import UNLIMITED, reduce
from maniple.strategies.frontier.gap_search import solve
from maniple.strategies.frontier.weighted_sum import Found, Gap, Rivals, WeightedSums, relinked, undominated

PROFILE = settings(derandomize=True, deadline=None, max_examples=150)
BRANCHES = settings(PROFILE, max_examples=50)
"""Where every gap is searched in branches of branches, which takes longer."""
Points = list[tuple[int, int]]


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Up to 6 operators of up to 4 choices and two homes; alike ones share their arrays."""
    chance = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count, choices = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    largest = draw(st.sampled_from([6, 1000, 10**9]))

    def term(*shape: int) -> tuple[np.ndarray, np.ndarray]:
        return chance.integers(0, largest, shape), chance.integers(0, largest, shape)

    kinds = [term(choices, 2) for _ in range(2)]
    own = tuple(kinds[kind] for kind in chance.integers(0, 2, count))
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    drawn = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=8)) if pairs else []
    edge_kinds = [term(choices, choices) for _ in range(2)]
    return Model(own, {pair: edge_kinds[kind] for pair, kind in zip(drawn, chance.integers(0, 2, 8), strict=False)})


def best(model: Model) -> Points:
    """The oracle."""
    every = []
    for chosen in product(*map(range, model.sizes)):
        between = [
            sum(int(term[axis][chosen[a], chosen[b]]) for (a, b), term in model.edges.items()) for axis in (0, 1)
        ]
        sums = np.array([between])
        for (memory, ticks), choice in zip(model.own, chosen, strict=True):
            sums = (sums[:, None] + np.stack((memory[choice], ticks[choice]), axis=1)[None]).reshape(-1, 2)
        every.append(sums)
    memory, ticks = np.concatenate(every).T
    kept = reduce(memory, ticks)
    return list(zip(memory[kept].tolist(), ticks[kept].tolist(), strict=True))


@contextmanager
def in_branches(entries: int) -> Iterator[None]:
    """Eliminate only what makes so few entries; all else is searched in branches of branches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gap_search, "EXACT_ENTRIES", 0)
        patch.setattr(gap_search, "MOST_ENTRIES", entries)
        yield


def found(model: Model, epsilon: float, limit: int = UNLIMITED) -> Points:
    solution = solve(model, epsilon, 1, limit)
    assert solution.inexact == ()
    for point in solution.points:
        assert (point.memory, point.ticks) == model.total(point.chosen, point.homes)
    return [(point.memory, point.ticks) for point in solution.points]


@pytest.mark.parametrize("whole", [True, False])
@PROFILE
@given(model=models())
def test_without_an_epsilon_it_is_the_frontier(whole: bool, model: Model) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gap_search, "EXACT_ENTRIES", 10**6 if whole else 0)
        assert found(model, 0.0) == best(model)


@BRANCHES
@given(models(), st.sampled_from([0, 30, 100]))
def test_in_branches_it_is_the_frontier(model: Model, entries: int) -> None:
    with in_branches(entries):
        assert found(model, 0.0) == best(model)


@PROFILE
@given(models(), st.sampled_from([0.01, 0.2]))
def test_a_crowded_frontier_is_thinned_by_what_is_allowed(model: Model, epsilon: float) -> None:
    """With the leanest and the fastest point; what has few points is exact, and says so."""
    every = best(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gap_search, "EXACT_ENTRIES", 10**6)
        patch.setattr(gap_search, "CROWDED", 3)
        solution, points = solve(model, epsilon, 1), found(model, epsilon)
    assert solution.epsilon == (epsilon if len(every) > 3 else 0.0)
    assert (points[0], points[-1]) == (every[0], every[-1])
    assert set(points) <= set(every)
    assert len(every) > 3 or points == every
    for memory, ticks in every:
        assert any(m <= (1.0 + epsilon) * memory and t <= ticks for m, t in points)


@PROFILE
@given(models(), st.integers(0, 2**32 - 1))
def test_what_changes_from_one_to_another_is_the_best_of_all_that_do(model: Model, seed: int) -> None:
    chance, every = np.random.default_rng(seed), list[Found]()
    drawn = []
    for _ in range(2):
        chosen, homes = (
            tuple(chance.integers(0, size).tolist() for size in sizes) for sizes in (model.sizes, [2] * len(model.own))
        )
        drawn.append(Found(*model.total(chosen, homes), chosen, homes))
    lean, fast = sorted(drawn, key=lambda one: one.memory)
    for before, after in ((lean, fast), (fast, lean)):
        for length in range(len(model.own) + 1):
            chosen, homes = (
                getattr(before, row)[:length] + getattr(after, row)[length:] for row in ("chosen", "homes")
            )
            every.append(Found(*model.total(chosen, homes), chosen, homes))
    between = [one for one in every if lean.memory < one.memory < fast.memory and fast.ticks < one.ticks < lean.ticks]
    assert relinked(model, lean, fast) == undominated(between)


@PROFILE
@given(models(), st.sampled_from([0.01, 0.1, 0.5]))
def test_every_assignment_has_a_point_within_the_bound(model: Model, epsilon: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gap_search, "EXACT_ENTRIES", 0)
        assert_within(epsilon, model)


@BRANCHES
@given(models(), st.sampled_from([0.01, 0.1, 0.5]), st.sampled_from([0, 30, 100]))
def test_in_branches_every_assignment_has_a_point_within_the_bound(model: Model, epsilon: float, entries: int) -> None:
    with in_branches(entries):
        assert_within(epsilon, model)


def assert_within(epsilon: float, model: Model) -> None:
    points = found(model, epsilon)
    wanted = best(model)
    assert (points[0][0], points[-1][1]) == (wanted[0][0], wanted[-1][1])
    for memory, ticks in wanted:
        assert any(m <= (1 + epsilon) * memory and t <= (1 + epsilon) * ticks for m, t in points)


@PROFILE
@given(models(), st.sampled_from([0.0, 0.01, 0.2]), st.integers(0, 2**32 - 1))
def test_what_is_lost_to_rivals_they_stand_for(model: Model, epsilon: float, seed: int) -> None:
    """Every assignment as a part of a whole that needs a floor at least; the ends are exact in any case."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gap_search, "EXACT_ENTRIES", 0)
        assert_rivals_stand(model, epsilon, seed)


@BRANCHES
@given(models(), st.sampled_from([0.0, 0.01, 0.2]), st.integers(0, 2**32 - 1), st.sampled_from([0, 30, 100]))
def test_in_branches_rivals_stand_for_what_is_lost(model: Model, epsilon: float, seed: int, entries: int) -> None:
    with in_branches(entries):
        assert_rivals_stand(model, epsilon, seed)


def assert_rivals_stand(model: Model, epsilon: float, seed: int) -> None:
    chance, wanted = np.random.default_rng(seed), best(model)
    low, high = wanted[0], wanted[-1]
    lower, upper = (low[0] * 4 // 5, high[1] * 4 // 5), (high[0] * 6 // 5 + 2, low[1] * 6 // 5 + 2)
    count = int(chance.integers(0, 6))
    spread = [
        (int(chance.integers(lower[0], upper[0])), int(chance.integers(lower[1], upper[1]))) for _ in range(count)
    ]
    drawn = np.asarray(spread, dtype=np.int64).reshape(-1, 2).T
    kept = reduce(*drawn)
    floor = int(chance.integers(0, high[0] + 1)), int(chance.integers(0, low[1] + 1))
    rivals = Rivals(drawn[0][kept], drawn[1][kept], floor)
    points = [(point.memory, point.ticks) for point in solve(model, epsilon, 1, rivals=rivals).points]
    assert (points[0][0], points[-1][1]) == (low[0], high[1])
    for memory, ticks in wanted:
        most = [(1 + epsilon) * max(needs, least) for needs, least in zip((memory, ticks), floor, strict=True)]
        assert any(m <= most[0] and t <= most[1] for m, t in [*points, *spread])


@PROFILE
@given(models(), st.floats(0.0, 1.0))
def test_the_fastest_within_a_memory(model: Model, share: float) -> None:
    wanted = best(model)
    limit = int(wanted[0][0] + share * (wanted[-1][0] - wanted[0][0]))
    assert found(model, 0.0, limit)[-1] == [point for point in wanted if point[0] <= limit][-1]
    assert wanted[0][0] == 0 or found(model, 0.0, wanted[0][0] - 1) == []


corners = st.lists(st.integers(1, 14), min_size=2, max_size=5, unique=True).map(sorted)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(corners, corners, st.sampled_from([0.0, 0.1, 0.34, 1.0]))
def test_what_is_dropped_for_a_point_leaves_one_that_stands_for_it(
    memories: list[int], falling: list[int], share: float
) -> None:
    """The table of the proof, for all p of a gap and all r in its place: above a bound, the ends stand for p."""
    count = min(len(memories), len(falling))
    known = [Found(m, t, (), ()) for m, t in zip(memories[:count], reversed(falling[:count]), strict=True)]
    lean, fast = known[0], known[-1]
    gap = Gap(lean, fast, (lean.ticks - fast.ticks, fast.memory - lean.memory), 0.0, tuple(known[1:-1]))

    def stands(memory: float, ticks: float, ratio: float) -> bool:
        # Whole numbers over decimal fractions: a rounding apart is equal.
        return any(k.memory <= ratio * memory + 1e-9 and k.ticks <= ratio * ticks + 1e-9 for k in known)

    def above(memory: float, ticks: float) -> bool:
        return any(a * memory + b * ticks > bound + 1e-9 for (a, b), bound in gap.bounds(share))

    for m, t in product(range(lean.memory, fast.memory + 1), range(fast.ticks, lean.ticks + 1)):
        if stands(m, t, 1 + share):
            continue
        assert not above(m, t)
        for other in product(range(1, int((1 + share) * m) + 1), range(1, t + 1)):
            beats_an_end = any(other[0] <= k.memory and other[1] <= k.ticks for k in (lean, fast))
            if above(*other) and not beats_an_end:
                assert stands(m, t, (1 + share) ** 2)


def test_a_point_in_a_gap_is_found() -> None:
    """(0, 10), (6, 6), (10, 0): no weighted sum reaches the middle one."""
    own = np.array([[0, 0], [6, 6], [10, 10]]), np.array([[10, 10], [6, 6], [0, 0]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gap_search, "EXACT_ENTRIES", 0)
        assert found(Model((own,), {}), 0.01) == [(0, 10), (6, 6), (10, 0)]


def test_a_gap_that_one_operator_makes_is_not_eliminated() -> None:
    """The example of the module: what no weighted sum reaches, weighted sums of two branches do."""
    one = np.array([[0], [10]]), np.array([[65], [0]])
    others = tuple((np.array([[0], [1]]), np.array([[9 - number], [0]])) for number in range(8))
    model = Model((*others, one), {})
    reached, gaps = WeightedSums(model, 10**6).sweep(0.0, 1)
    assert (3, 13) in [(gap.lean.memory, gap.fast.memory) for gap in gaps]
    with in_branches(0), pytest.MonkeyPatch.context() as patch:
        patch.setattr(gap_search, "_eliminate", pytest.fail)
        points = found(model, 0.0)
    assert points == best(model)
    assert len(points) == 18 > len(reached)


def test_an_operator_that_keeps_a_choice_is_named() -> None:
    """Four operators, all neighbours, and tables of one entry: what is found is no better than the frontier."""
    chance = np.random.default_rng(2)
    own = tuple((chance.integers(0, 99, (3, 2)), chance.integers(0, 99, (3, 2))) for _ in range(4))
    pairs = [(a, b) for a in range(4) for b in range(a + 1, 4)]
    model = Model(own, {pair: (chance.integers(0, 99, (3, 3)), chance.integers(0, 99, (3, 3))) for pair in pairs})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gap_search, "ENTRIES", 1)
        patch.setattr(gap_search, "BRANCHES", 1)
        solution = solve(model, 0.0, 1)
    assert solution.inexact
    wanted = best(model)
    for point in solution.points:
        assert any(m <= point.memory and t <= point.ticks for m, t in wanted)
