"""Courses repeat what the engine does, for whatever entries, and equal steps once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maniple.strategies.elimination.course import Course
from maniple.strategies.elimination.min_plus import Choices, Costs, MinPlus
from maniple.strategies.elimination.variable_elimination import Table, begin, finish

Known = list[tuple[tuple[int, ...], int]]


class Counted:
    """Least sums, and how many steps were worked out."""

    def __init__(self) -> None:
        self.steps = 0

    def eliminate(
        self, operator: int, neighbours: tuple[int, ...], tables: Sequence[Table[Costs]]
    ) -> tuple[Choices, Costs]:
        self.steps += 1
        return MinPlus().eliminate(operator, neighbours, tables)

    def favourite(self, operator: int, tables: Sequence[Table[Costs]]) -> int:
        raise NotImplementedError

    def fix(self, costs: Costs, axis: int, choice: int) -> Costs:
        raise NotImplementedError


def layers(count: int) -> Known:
    """Layers a - b - d, a - c - d, the d of one the a of the next: of three kinds of tables."""
    known: Known = [((number,), 0) for number in range(3 * count + 1)]
    for a in range(0, 3 * count, 3):
        known += [((a, a + 1), 1), ((a, a + 2), 2), ((a + 1, a + 3), 2), ((a + 2, a + 3), 1)]
    return known


@settings(derandomize=True, deadline=None, max_examples=150)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 3),
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True), max_size=8),
    st.booleans(),
)
def test_what_is_repeated_is_what_the_engine_does(
    seed: int, choices: int, scopes: list[list[int]], squares: bool
) -> None:
    chance = np.random.default_rng(seed)
    sizes, every = [choices] * 6, [[number] for number in range(6)] + scopes
    # Two kinds of tables over as many operators, so that some are equal.
    known = [(tuple(sorted(scope)), 2 * len(scope) - 2 + int(chance.integers(2))) for scope in every]
    course: Course[Costs] | None = Course.of(sizes, known, 10**6, squares=squares)
    assert course is not None
    for _ in range(2):
        given = [chance.integers(0, 40, [choices] * (number // 2 + 1)).astype(float) for number in range(6)]
        tables = [Table(scope, given[number]) for scope, number in known]
        (wanted,) = finish(begin(MinPlus(), sizes, tables, 10**6, {}, squares=squares), 1)
        found = course.repeat(MinPlus(), given[: course.given])
        assert [costs.tolist() for costs in found.closed] == [costs.tolist() for costs in wanted.closed]
        for mine, step in zip(found.steps, wanted.steps, strict=True):
            assert (mine.operator, mine.neighbours) == (step.operator, step.neighbours)
            assert np.array_equal(mine.best, step.best)
            assert mine.rest is not None
            assert step.rest is not None
            assert np.array_equal(mine.rest.costs, step.rest.costs)
            assert [table.operators for table in mine.tables] == [table.operators for table in step.tables]


@pytest.mark.parametrize("squares", [False, True])
def test_the_inside_of_equal_layers_is_worked_out_once(squares: bool) -> None:
    chance = np.random.default_rng(3)
    given = [chance.integers(0, 99, shape).astype(float) for shape in ((4,), (4, 4), (4, 4))]
    course: Course[Costs] | None = Course.of([4] * 61, layers(20), 10**6, squares=squares)
    assert course is not None
    counted = Counted()
    end = course.repeat(counted, given)
    assert len(end.steps) == 61
    assert counted.steps < (20 if squares else 35)


def test_where_a_choice_is_kept_there_is_none() -> None:
    assert Course.of([3, 3], [((0, 1), 0)], 8, squares=False) is None
    assert Course.of([3, 3], [((0, 1), 0)], 9, squares=False) is not None
