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
from typing import TYPE_CHECKING, final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    tables = [_Table((number,), costs) for number, costs in enumerate(operators)]
    tables += [_Table(pair, edges[pair]) for pair in sorted(edges)]
    steps: list[_Step] = []
    left = set(range(len(operators)))
    exact = True
    while left:
        operator = min(left, key=lambda number: (_width(number, tables, operators), number))
        if _width(operator, tables, operators) > entries:
            exact = False
            fixed = int(np.argmin(_alone(operator, tables)))
            tables = [_fix(table, operator, fixed) for table in tables]
            steps.append(_Step(operator, (), np.asarray(fixed)))
        else:
            mine = [table for table in tables if operator in table.operators]
            step, rest = _eliminate(operator, mine)
            tables = [table for table in tables if operator not in table.operators] + ([rest] if rest else [])
            steps.append(step)
        left.remove(operator)
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


def _width(operator: int, tables: Sequence[_Table], operators: Sequence[Costs]) -> int:
    """The entries of the table that is made when an operator is taken out, its own choices counted."""
    involved = {other for table in tables if operator in table.operators for other in table.operators}
    entries = 1
    for other in sorted(involved | {operator}):
        entries *= len(operators[other])
    return entries


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
        if operator in table.operators:
            axis = table.operators.index(operator)
            others = tuple(other for other in range(table.costs.ndim) if other != axis)
            costs = costs + np.min(table.costs, axis=others)
    return costs


def _fix(table: _Table, operator: int, choice: int) -> _Table:
    if operator not in table.operators:
        return table
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
