r"""Elimination: the least sum of per-operator and per-edge costs, by taking operators out of the graph one by one.

Node elimination (Z. Jia et al., Exploring Hidden Dimensions in Parallelizing Convolutional Neural Networks, ICML 2018,
section 5.2) replaces an operator between two others by an edge that holds, for each pair of their choices, the best
choice of the one taken out; edge elimination adds parallel edges. Both are the cases of one and two neighbours of
variable elimination, which is used here whole: an operator with more neighbours leaves a table over all of theirs.

    a - b - c        take b out       a - c      best[a, c] = min over b of  cost(b) + edge(a, b) + edge(b, c)
     \     /                          (edges a - c added up)
      -----
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, final

import numpy as np
import numpy.typing as npt

from maniple.strategies.simulation.kernel import kernel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__: list[str] = []

Costs = npt.NDArray[np.float64]
Choices = npt.NDArray[np.int64]

TABLE_ENTRIES = 20_000_000
"""The largest table that is made; beyond it the answer is no longer exact."""


@final
@dataclass(frozen=True, slots=True)
class Assignment:
    """A choice for every operator.

    Args:
        choices: the number of the choice, by operator.
        cost: the sum of all costs.
        exact: whether no assignment costs less.
    """

    choices: tuple[int, ...]
    cost: float
    exact: bool


@dataclass(frozen=True, slots=True)
class _Table:
    """Costs over the choices of some operators, one axis for each, ascending."""

    operators: tuple[int, ...]
    costs: Costs


@dataclass(frozen=True, slots=True)
class _Step:
    """An operator that was taken out: its best choice for each combination of its neighbours' choices."""

    operator: int
    neighbours: tuple[int, ...]
    best: Choices


@final
class Elimination:
    """The operators that are left, and the tables that know them, while one after another is taken out.

    Args:
        operators: for every operator the cost of each of its choices.
        edges: for pairs (first, second) of operators, first < second, the cost of each pair of their choices.
        entries: the largest table to make. An operator whose elimination needs a larger one keeps, instead, the choice
            that is best when its neighbours choose for themselves; the answer is then improved one operator at a time
            and not exact.
    """

    def __init__(
        self, operators: Sequence[Costs], edges: Mapping[tuple[int, int], Costs], entries: int = TABLE_ENTRIES
    ) -> None:
        self._operators, self._edges, self._entries = operators, edges, entries
        self._exact = True
        self._steps: list[_Step] = []
        # Of each operator the tables that know it, by number.
        self._of: list[dict[int, _Table]] = [{} for _ in operators]
        self._made = 0
        for number, costs in enumerate(operators):
            self._put(_Table((number,), costs))
        for pair in sorted(edges):
            self._put(_Table(pair, edges[pair]))
        # Of each operator that is left the entries of the table that is made when it is taken out.
        self._widths = {number: self._width(number) for number in range(len(operators))}

    def advance(self) -> bool:
        """Take one operator out.

        Returns:
            Whether none is left.
        """
        if self._widths:
            operator = min(self._widths, key=lambda number: (self._widths[number], number))
            if self._widths[operator] > self._entries:
                self._exact = False
                self._fix(operator)
            else:
                self._eliminate(operator)
        return not self._widths

    def assignment(self) -> Assignment:
        """The assignment of least cost, once no operator is left."""
        chosen = [0] * len(self._operators)
        for step in reversed(self._steps):
            chosen[step.operator] = int(step.best[tuple(chosen[other] for other in step.neighbours)])
        if not self._exact:
            _improve(chosen, self._operators, self._edges)
        return Assignment(tuple(chosen), total(chosen, self._operators, self._edges), self._exact)

    def _eliminate(self, operator: int) -> None:
        """Take an operator out, exactly."""
        step, rest = _eliminated(operator, self._taken(operator))
        if step.neighbours:
            self._put(_Table(step.neighbours, rest))
        self._note(step, step.neighbours)

    def _fix(self, operator: int) -> None:
        """Take an operator out by the choice that is best when all others choose what suits it best."""
        mine = self._taken(operator)
        choice = int(np.argmin(_alone(operator, mine)))
        rests = [_fixed(table, operator, choice) for table in mine]
        for rest in rests:
            if rest.operators:
                self._put(rest)
        near = sorted({other for rest in rests for other in rest.operators})
        self._note(_Step(operator, (), np.asarray(choice)), near)

    def _put(self, table: _Table) -> None:
        for operator in table.operators:
            self._of[operator][self._made] = table
        self._made += 1

    def _taken(self, operator: int) -> list[_Table]:
        """The tables that know an operator; they are no longer there."""
        found = sorted(self._of[operator].items())
        for number, table in found:
            for other in table.operators:
                del self._of[other][number]
        return [table for _, table in found]

    def _note(self, step: _Step, neighbours: Iterable[int]) -> None:
        self._steps.append(step)
        del self._widths[step.operator]
        for other in neighbours:
            self._widths[other] = self._width(other)

    def _width(self, operator: int) -> int:
        known = {other for table in self._of[operator].values() for other in table.operators}
        return prod(len(self._operators[other]) for other in known)


def minimize(
    operators: Sequence[Costs], edges: Mapping[tuple[int, int], Costs], entries: int = TABLE_ENTRIES
) -> Assignment:
    """The assignment of least cost; the arguments are those of `Elimination`."""
    elimination = Elimination(operators, edges, entries)
    while not elimination.advance():
        pass
    return elimination.assignment()


def total(chosen: Sequence[int], operators: Sequence[Costs], edges: Mapping[tuple[int, int], Costs]) -> float:
    """The cost of an assignment: its operators' and edges', in order."""
    cost = sum(float(costs[choice]) for costs, choice in zip(operators, chosen, strict=True))
    return cost + sum(float(edges[pair][chosen[pair[0]], chosen[pair[1]]]) for pair in sorted(edges))


def _eliminated(operator: int, tables: Sequence[_Table]) -> tuple[_Step, Costs]:
    """An operator's best choice for each combination of its neighbours' choices, and the cost of it."""
    neighbours = tuple(sorted({other for table in tables for other in table.operators} - {operator}))
    if len(neighbours) == 2 and all(len(table.operators) <= 2 for table in tables):
        sides = [[table for table in tables if other in table.operators] for other in neighbours]
        alone = [table for table in tables if len(table.operators) == 1]
        before, after = (_sum((other, operator), side) for other, side in zip(neighbours, sides, strict=True))
        after = (after + _sum((operator,), alone)).T
        best, least = _between(np.ascontiguousarray(before), np.ascontiguousarray(after))
        return _Step(operator, neighbours, best), least
    costs = _sum((*neighbours, operator), tables)
    return _Step(operator, neighbours, np.asarray(np.argmin(costs, axis=-1))), np.min(costs, axis=-1)


def _sum(operators: tuple[int, ...], tables: Sequence[_Table]) -> Costs:
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
def _between(before: Costs, after: Costs) -> tuple[Choices, Costs]:
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


def _alone(operator: int, tables: Sequence[_Table]) -> Costs:
    """What each choice of an operator costs when all others choose what suits it best, table by table."""
    costs: Costs = np.zeros(())
    for table in tables:
        axis = table.operators.index(operator)
        others = tuple(other for other in range(table.costs.ndim) if other != axis)
        costs = costs + np.min(table.costs, axis=others)
    return costs


def _fixed(table: _Table, operator: int, choice: int) -> _Table:
    axis = table.operators.index(operator)
    return _Table(
        tuple(other for other in table.operators if other != operator), np.take(table.costs, choice, axis=axis)
    )


def _improve(chosen: list[int], operators: Sequence[Costs], edges: Mapping[tuple[int, int], Costs]) -> None:
    """Give one operator after another its best choice, until none changes."""
    near: list[list[tuple[int, Costs]]] = [[] for _ in operators]
    for (first, second), costs in sorted(edges.items(), key=lambda item: item[0]):
        near[first].append((second, costs.T))
        near[second].append((first, costs))
    changed = True
    while changed:
        changed = False
        for operator, costs in enumerate(operators):
            totals = costs + sum((table[chosen[other]] for other, table in near[operator]), np.zeros(len(costs)))
            best = int(np.argmin(totals))
            if totals[best] < totals[chosen[operator]]:
                chosen[operator] = best
                changed = True
