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

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, final

import numpy as np
import numpy.typing as npt

from maniple.process.compilation.compiled import kernel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """Costs over the choices of some operators, one axis for each, ascending; two are one only if they are the same."""

    operators: tuple[int, ...]
    costs: Costs


@dataclass(frozen=True, slots=True)
class _Step:
    """An operator that was taken out: its best choice for each combination of its neighbours' choices."""

    operator: int
    neighbours: tuple[int, ...]
    best: Choices


@final
@dataclass(frozen=True, slots=True, eq=False)
class Elimination:
    """The operators that are left, and the tables that know them: a value, from which taking one out makes another.

    Args:
        operators: for every operator the cost of each of its choices.
        edges: for pairs (first, second) of operators, first < second, the cost of each pair of their choices.
        entries: the largest table to make. An operator whose elimination needs a larger one keeps, instead, the choice
            that is best when its neighbours choose for themselves; the answer is then improved one operator at a time
            and not exact.
        known: of each operator the tables that know it, as they were made; none of one that is out.
        widths: of each operator that is left the entries of the table that is made when it is taken out.
        steps: what was taken out.
        exact: whether no choice was kept for want of entries.
    """

    operators: tuple[Costs, ...]
    edges: Mapping[tuple[int, int], Costs]
    entries: int
    known: tuple[tuple[_Table, ...], ...]
    widths: Mapping[int, int]
    steps: tuple[_Step, ...] = ()
    exact: bool = True

    @classmethod
    def of(
        cls, operators: Sequence[Costs], edges: Mapping[tuple[int, int], Costs], entries: int = TABLE_ENTRIES
    ) -> Elimination:
        """The elimination in which every operator is left."""
        known: list[list[_Table]] = [[_Table((number,), costs)] for number, costs in enumerate(operators)]
        for pair in sorted(edges):
            table = _Table(pair, edges[pair])
            for operator in pair:
                known[operator].append(table)
        widths = {number: _width(tables, operators) for number, tables in enumerate(known)}
        return cls(tuple(operators), edges, entries, tuple(map(tuple, known)), widths)

    @property
    def finished(self) -> bool:
        """Whether no operator is left."""
        return not self.widths

    def advance(self) -> Elimination:
        """The elimination with one operator less, the one whose table is smallest; itself where none is left."""
        if self.finished:
            return self
        operator = min(self.widths, key=lambda number: (self.widths[number], number))
        mine = self.known[operator]
        if self.widths[operator] <= self.entries:
            step, rest = _eliminate(operator, mine)
            return self._without(step, [_Table(step.neighbours, rest)] if step.neighbours else [])
        choice = int(np.argmin(_alone(operator, mine)))
        rests = [_fix(table, operator, choice) for table in mine if len(table.operators) > 1]
        return replace(self._without(_Step(operator, (), np.asarray(choice)), rests), exact=False)

    def assignment(self) -> Assignment:
        """The assignment of least cost, once no operator is left."""
        chosen = [0] * len(self.operators)
        for step in reversed(self.steps):
            chosen[step.operator] = int(step.best[tuple(chosen[other] for other in step.neighbours)])
        if not self.exact:
            _improve(chosen, self.operators, self.edges)
        return Assignment(tuple(chosen), total(chosen, self.operators, self.edges), self.exact)

    def _without(self, step: _Step, rests: Sequence[_Table]) -> Elimination:
        """The elimination after a step, with what is left of the tables that knew its operator."""
        gone = self.known[step.operator]
        near = sorted({other for table in gone for other in table.operators} - {step.operator})
        known = list(self.known)
        known[step.operator] = ()
        for other in near:
            kept = tuple(table for table in known[other] if table not in gone)
            known[other] = (*kept, *(table for table in rests if other in table.operators))
        widths = {**self.widths, **{other: _width(known[other], self.operators) for other in near}}
        del widths[step.operator]
        return replace(self, known=tuple(known), widths=widths, steps=(*self.steps, step))


def _width(tables: Sequence[_Table], operators: Sequence[Costs]) -> int:
    """The entries of the table over all operators that some tables know."""
    return prod(len(operators[other]) for other in {other for table in tables for other in table.operators})


def total(chosen: Sequence[int], operators: Sequence[Costs], edges: Mapping[tuple[int, int], Costs]) -> float:
    """The cost of an assignment: its operators' and edges', in order."""
    cost = sum(float(costs[choice]) for costs, choice in zip(operators, chosen, strict=True))
    return cost + sum(float(edges[pair][chosen[pair[0]], chosen[pair[1]]]) for pair in sorted(edges))


def _eliminate(operator: int, tables: Sequence[_Table]) -> tuple[_Step, Costs]:
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
