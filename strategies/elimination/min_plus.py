"""The semiring of least sums: tables of costs, whose sum is the least one and whose product adds them up."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np
import numpy.typing as npt

from maniple.process.compilation.compiled import inner, kernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.strategies.elimination.variable_elimination import Table

__all__: list[str] = []

Costs = npt.NDArray[np.float64]
Choices = npt.NDArray[np.int64]
TRIED = 8
"""So many choices between two say what these are to be had for, before all others are looked at."""


@final
class MinPlus:
    """Tables of costs; of an operator's choices the best one is kept, the first of equals."""

    def eliminate(
        self, operator: int, neighbours: tuple[int, ...], tables: Sequence[Table[Costs]]
    ) -> tuple[Choices, Costs]:
        """An operator's best choice for each combination of its neighbours' choices, and the cost of it."""
        if is_between(neighbours, tables):
            before, after = sides(operator, neighbours, tables)
            return least_between(before, np.ascontiguousarray(after.T))
        costs = add_up((*neighbours, operator), tables)
        return np.asarray(np.argmin(costs, axis=-1)), np.min(costs, axis=-1)

    def favourite(self, operator: int, tables: Sequence[Table[Costs]]) -> int:
        """The choice that costs least when all others choose what suits it best, table by table."""
        costs: Costs = np.zeros(())
        for table in tables:
            axis = table.operators.index(operator)
            others = tuple(other for other in range(table.costs.ndim) if other != axis)
            costs = costs + np.min(table.costs, axis=others)
        return int(np.argmin(costs))

    def fix(self, costs: Costs, axis: int, choice: int) -> Costs:
        """A table without one of its axes."""
        fixed: Costs = np.take(costs, choice, axis=axis)
        return fixed


def is_between(neighbours: Sequence[int], tables: Sequence[Table[Costs]]) -> bool:
    """Whether an operator has two neighbours, and each table knows one of them at most."""
    return len(neighbours) == 2 and all(len(table.operators) <= 2 for table in tables)


def sides(operator: int, neighbours: Sequence[int], tables: Sequence[Table[Costs]]) -> tuple[Costs, Costs]:
    """The costs of an operator between two others: [first, operator], and [second, operator] with its own."""
    first, second = neighbours
    before = add_up((first, operator), [table for table in tables if first in table.operators])
    after = add_up((second, operator), [table for table in tables if first not in table.operators])
    return np.ascontiguousarray(before), np.ascontiguousarray(after)


def add_up(operators: tuple[int, ...], tables: Sequence[Table[Costs]]) -> Costs:
    """The sum of some tables, with an axis for each of some operators."""
    costs: Costs = np.zeros((1,) * len(operators))
    for number, table in enumerate(tables):
        places = [operators.index(other) for other in table.operators]
        shape = [1] * len(operators)
        for place, extent in zip(places, table.costs.shape, strict=True):
            shape[place] = extent
        # Of two or three axes, which the array's own sort takes longer to begin with.
        order = sorted(range(len(places)), key=places.__getitem__)
        part = table.costs.transpose(order).reshape(shape)
        costs = costs + part if number else part
    return costs


@kernel
def least_between(before: Costs, after: Costs) -> tuple[Choices, Costs]:
    """For each first and last choice the best one between them, the first of equals, and the cost of it.

    A choice between is not looked at for a first one whose every last one is known to be had for less: by what it costs
    from the first and what it costs least to any last. For operators on many processors few are left.

    Args:
        before: [first, between].
        after: [between, last].
    """
    firsts, count, lasts = before.shape[0], before.shape[1], after.shape[1]
    best, least = np.empty((firsts, lasts), dtype=np.int64), np.empty((firsts, lasts))
    fewest, row, place = np.empty(count), np.empty(lasts), np.empty(lasts)
    for middle in range(count):
        fewest[middle] = after[middle].min()
    for first in range(firsts):
        bound = _bound(before[first], after, fewest, row)
        row[:], place[:] = np.inf, 0.0
        for middle in range(count):
            own, number = before[first, middle], float(middle)
            if own + fewest[middle] > bound:
                continue
            # Both are written in any case, and as numbers of one size: so compilers take several at a time.
            for last in range(lasts):
                cost = own + after[middle, last]
                better = cost < row[last]
                row[last] = cost if better else row[last]
                place[last] = number if better else place[last]
        for last in range(lasts):
            least[first, last], best[first, last] = row[last], int(place[last])
    return best, least


@inner
def _bound(before: Costs, after: Costs, fewest: Costs, row: Costs) -> float:
    """What every last choice is to be had for at most, by the best few between, each taken for who is worst off."""
    row[:] = np.inf
    worst, place, least = np.inf, -1, np.inf
    for middle in range(len(before)):
        if before[middle] + fewest[middle] < least:
            place, least = middle, before[middle] + fewest[middle]
    for _ in range(TRIED):
        if place < 0:
            break
        highest, at = -np.inf, 0
        for last in range(len(row)):
            row[last] = min(row[last], before[place] + after[place, last])
            if row[last] > highest:
                highest, at = row[last], last
        worst, place, least = highest, -1, highest
        for middle in range(len(before)):
            if before[middle] + after[middle, at] < least:
                place, least = middle, before[middle] + after[middle, at]
    return worst
