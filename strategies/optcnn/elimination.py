"""Elimination: the least sum of per-operator and per-edge costs, by taking operators out of the graph one by one.

Node elimination (Z. Jia et al., Exploring Hidden Dimensions in Parallelizing Convolutional Neural Networks, ICML 2018,
section 5.2) replaces an operator between two others by an edge that holds, for each pair of their choices, the best
choice of the one taken out; edge elimination adds parallel edges. Both are cases of variable elimination over least
sums, which is used here whole: see `strategies/elimination`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

import numpy as np

from maniple.strategies.elimination.min_plus import Costs as Costs
from maniple.strategies.elimination.min_plus import MinPlus
from maniple.strategies.elimination.variable_elimination import Table, VariableElimination, begin

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__: list[str] = []

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


@final
@dataclass(frozen=True, slots=True, eq=False)
class Elimination(VariableElimination[Costs]):
    """The elimination of a graph's operators for the least sum.

    Args:
        operators: for every operator the cost of each of its choices.
        edges: for pairs (first, second) of operators, first < second, the cost of each pair of their choices.
    """

    operators: tuple[Costs, ...]
    edges: Mapping[tuple[int, int], Costs]

    @classmethod
    def of(
        cls, operators: Sequence[Costs], edges: Mapping[tuple[int, int], Costs], entries: int = TABLE_ENTRIES
    ) -> Self:
        """The elimination in which every operator is left.

        Args:
            operators: see the class.
            edges: see the class.
            entries: the largest table to make. An operator whose elimination needs a larger one keeps, instead, the
                choice that is best when its neighbours choose for themselves; the answer is then improved one operator
                at a time and not exact.
        """
        tables = [Table((number,), costs) for number, costs in enumerate(operators)]
        tables += [Table(pair, edges[pair]) for pair in sorted(edges)]
        all_left = begin(MinPlus(), tuple(map(len, operators)), tables, entries)
        return cls(
            all_left.semiring,
            all_left.sizes,
            entries,
            all_left.known,
            all_left.widths,
            (),
            (),
            (),
            None,
            all_left.depths,
            None,
            {},
            operators=tuple(operators),
            edges=edges,
        )

    def assignment(self) -> Assignment:
        """The assignment of least cost, once no operator is left."""
        chosen = unrolled(self)
        if not self.exact:
            _improve(chosen, self.operators, self.edges)
        return Assignment(tuple(chosen), total(chosen, self.operators, self.edges), self.exact)


def unrolled(elimination: VariableElimination[Costs]) -> list[int]:
    """The choices of all operators, from the last one that was taken out to the first."""
    chosen = [0] * len(elimination.sizes)
    for step in reversed(elimination.steps):
        best = np.asarray(step.best)
        chosen[step.operator] = int(best[tuple(chosen[other] for other in step.neighbours)])
    return chosen


def total(chosen: Sequence[int], operators: Sequence[Costs], edges: Mapping[tuple[int, int], Costs]) -> float:
    """The cost of an assignment: its operators' and edges', in order."""
    cost = sum(float(costs[choice]) for costs, choice in zip(operators, chosen, strict=True))
    return cost + sum(float(edges[pair][chosen[pair[0]], chosen[pair[1]]]) for pair in sorted(edges))


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
