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

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__: list[str] = []

Costs = npt.NDArray[np.float64]

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
    best: npt.NDArray[np.int64]


class _Tables:
    """The tables that are left while operators are taken out.

    Args:
        operators: as ``minimize`` has them.
        edges: likewise.
    """

    def __init__(self, operators: Sequence[Costs], edges: Mapping[tuple[int, int], Costs]) -> None:
        self._sizes = [len(costs) for costs in operators]
        # Of each operator the tables that know it, by number.
        self._of: list[dict[int, _Table]] = [{} for _ in operators]
        self._made = 0
        for number, costs in enumerate(operators):
            self._put(_Table((number,), costs))
        for pair in sorted(edges):
            self._put(_Table(pair, edges[pair]))
        self.widths = {number: self._width(number) for number in range(len(operators))}
        """Of each operator that is left the entries of the table that is made when it is taken out, its choices
        counted."""

    def eliminated(self, operator: int) -> _Step:
        """Take an operator out, exactly."""
        step, rest = _eliminate(operator, self._taken(operator))
        if rest is not None:
            self._put(rest)
        self._note(operator, step.neighbours)
        return step

    def fixed(self, operator: int) -> _Step:
        """Take an operator out by the choice that is best when all others choose what suits it best."""
        mine = self._taken(operator)
        choice = int(np.argmin(_alone(operator, mine)))
        rests = [_fix(table, operator, choice) for table in mine]
        for rest in rests:
            if rest.operators:
                self._put(rest)
        self._note(operator, sorted({other for rest in rests for other in rest.operators}))
        return _Step(operator, (), np.asarray(choice))

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

    def _note(self, operator: int, neighbours: Iterable[int]) -> None:
        del self.widths[operator]
        for other in neighbours:
            self.widths[other] = self._width(other)

    def _width(self, operator: int) -> int:
        return prod(self._sizes[other] for other in {o for t in self._of[operator].values() for o in t.operators})


def minimize(
    operators: Sequence[Costs], edges: Mapping[tuple[int, int], Costs], entries: int = TABLE_ENTRIES
) -> Assignment:
    """The assignment of least cost.

    Args:
        operators: for every operator the cost of each of its choices.
        edges: for pairs (first, second) of operators, first < second, the cost of each pair of their choices.
        entries: the largest table to make. An operator whose elimination needs a larger one keeps, instead, the choice
            that is best when its neighbours choose for themselves; the answer is then improved one operator at a time
            and not exact.
    """
    tables = _Tables(operators, edges)
    steps: list[_Step] = []
    exact = True
    while tables.widths:
        operator = min(tables.widths, key=lambda number: (tables.widths[number], number))
        if tables.widths[operator] > entries:
            exact = False
            steps.append(tables.fixed(operator))
        else:
            steps.append(tables.eliminated(operator))
    chosen = [0] * len(operators)
    for step in reversed(steps):
        chosen[step.operator] = int(step.best[tuple(chosen[other] for other in step.neighbours)])
    if not exact:
        _improve(chosen, operators, edges)
    return Assignment(tuple(chosen), total(chosen, operators, edges), exact)


def total(chosen: Sequence[int], operators: Sequence[Costs], edges: Mapping[tuple[int, int], Costs]) -> float:
    """The cost of an assignment: its operators' and edges', in order."""
    cost = sum(float(costs[choice]) for costs, choice in zip(operators, chosen, strict=True))
    return cost + sum(float(edges[pair][chosen[pair[0]], chosen[pair[1]]]) for pair in sorted(edges))


def _eliminate(operator: int, tables: Sequence[_Table]) -> tuple[_Step, _Table | None]:
    """Add up the tables that know an operator, and keep its best choice for each choice of the others."""
    involved = tuple(sorted({other for table in tables for other in table.operators}))
    costs: Costs = np.zeros((1,) * len(involved))
    for table in tables:
        shape = [1] * len(involved)
        for other, extent in zip(table.operators, table.costs.shape, strict=True):
            shape[involved.index(other)] = extent
        costs = costs + table.costs.reshape(shape)
    axis = involved.index(operator)
    neighbours = tuple(other for other in involved if other != operator)
    step = _Step(operator, neighbours, np.asarray(np.argmin(costs, axis=axis)))
    return step, _Table(neighbours, np.min(costs, axis=axis)) if neighbours else None


def _alone(operator: int, tables: Sequence[_Table]) -> Costs:
    """What each choice of an operator costs when all others choose what suits it best, table by table."""
    costs: Costs = np.zeros(())
    for table in tables:
        axis = table.operators.index(operator)
        others = tuple(other for other in range(table.costs.ndim) if other != axis)
        costs = costs + np.min(table.costs, axis=others)
    return costs


def _fix(table: _Table, operator: int, choice: int) -> _Table:
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
