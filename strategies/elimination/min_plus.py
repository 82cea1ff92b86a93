"""The semiring of least sums: tables of costs, whose sum is the least one and whose product adds them up."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np
import numpy.typing as npt

from maniple.process.compilation.compiled import kernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.strategies.elimination.variable_elimination import Table

__all__: list[str] = []

Costs = npt.NDArray[np.float64]
Choices = npt.NDArray[np.int64]


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
    for table in tables:
        places = [operators.index(other) for other in table.operators]
        order = np.argsort(places)
        shape = [1] * len(operators)
        for place, extent in zip(places, table.costs.shape, strict=True):
            shape[place] = extent
        costs = costs + table.costs.transpose(order).reshape(shape)
    return costs


@kernel
def least_between(before: Costs, after: Costs) -> tuple[Choices, Costs]:
    """For each first and last choice the best one between them, the first of equals, and the cost of it.

    Args:
        before: [first, between].
        after: [between, last].
    """
    shape = before.shape[0], after.shape[1]
    best, least = np.zeros(shape, dtype=np.int64), np.empty(shape)
    for first in range(before.shape[0]):
        for last in range(after.shape[1]):
            least[first, last] = before[first, 0] + after[0, last]
        for middle in range(1, before.shape[1]):
            for last in range(after.shape[1]):
                cost = before[first, middle] + after[middle, last]
                if cost < least[first, last]:
                    least[first, last], best[first, last] = cost, middle
    return best, least
