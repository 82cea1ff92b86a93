"""Min-marginals: of every choice of every operator the least sum of an assignment that has it.

An elimination gives the least sum of all; going through its steps backwards gives, for each table that was left, what
all else costs at least (the downward pass of a junction tree; S. Lauritzen and D. Spiegelhalter, Local computations
with probabilities on graphical structures, Journal of the Royal Statistical Society B 50, 1988, over least sums).

    a - b    a: 0 4    b: 1 0    a, b:  0 9     least of a: 1 5     least of b: 1 5
                                       2 1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from maniple.process.compilation.compiled import kernel
from maniple.strategies.elimination.min_plus import Costs, add_up, is_between, sides

if TYPE_CHECKING:
    from maniple.strategies.elimination.variable_elimination import Step, VariableElimination

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True, eq=False)
class Least:
    """What an elimination has proved.

    Args:
        marginals: of each choice of each operator the least sum of all tables that an assignment with it has.
        outside: of each operator that was taken out the least sum of all that is not in the table that was left of it,
            for each combination of its neighbours' choices.
    """

    marginals: tuple[Costs, ...]
    outside: tuple[Costs, ...]


def least_sums(elimination: VariableElimination[Costs], above: float = np.inf) -> Least:
    """The least sums on both sides of every step.

    Args:
        elimination: a finished one, in which no operator was given a choice.
        above: what is more need not be known: such sums may be given as more than they are.
    """
    constant = sum(float(costs) for costs in elimination.closed)
    # By the identity of a table that was left: what all else costs at least.
    known: dict[int, Costs] = {}
    marginals: list[Costs] = [np.zeros(0)] * len(elimination.sizes)
    outside = list(marginals)
    for step in reversed(elimination.steps):
        if step.rest is None:
            raise ValueError(f"operator {step.operator} was given a choice; its min-marginals are not known")
        rest = known.pop(id(step.rest), None)
        if rest is None:  # of a table over no operator
            rest = np.asarray(constant - float(step.rest.costs))
        outside[step.operator] = rest
        marginals[step.operator] = _backwards(step, rest, known, above)
    return Least(tuple(marginals), tuple(outside))


def _backwards(step: Step[Any], rest: Costs, outside: dict[int, Costs], above: float) -> Costs:
    """The min-marginals of one operator, and what all else costs for the tables that earlier steps have left."""
    near = step.neighbours
    if is_between(near, step.tables):
        before, after = sides(step.operator, near, step.tables)
        whole = rest + (0.0 if step.rest is None else step.rest.costs)
        known = np.ascontiguousarray(np.where(whole <= above, rest, np.inf))
        firsts, seconds = least_around(before, after, known)
        for table in step.tables:
            if table.depth:
                others = [other for other in table.operators if other != step.operator]
                own_side = firsts if others == [near[0]] else seconds if others else firsts.min(axis=0)
                own = table.costs if table.operators[-1] == step.operator or not others else table.costs.T
                outside[id(table)] = (own_side - own) if own is table.costs else (own_side - own).T
        own_least: Costs = firsts.min(axis=0)
        return own_least
    scope = (*near, step.operator)
    whole = add_up(scope, step.tables) + rest[..., None]
    for table in step.tables:
        if table.depth:
            gone = tuple(axis for axis, other in enumerate(scope) if other not in table.operators)
            kept = [other for other in scope if other in table.operators]
            least = whole.min(axis=gone).transpose([kept.index(other) for other in table.operators])
            outside[id(table)] = least - table.costs
    found: Costs = whole.min(axis=tuple(range(len(near))))
    return found


@kernel
def least_around(before: Costs, after: Costs, rest: Costs) -> tuple[Costs, Costs]:
    """The least of before[first, own] + after[second, own] + rest[first, second], for (first, own) and (second, own).

    Args:
        before: [first, own].
        after: [second, own].
        rest: [first, second]; infinite where nothing is to be known.
    """
    firsts, seconds = np.full(before.shape, np.inf), np.full(after.shape, np.inf)
    for first in range(before.shape[0]):
        for second in range(after.shape[0]):
            shared = rest[first, second]
            if shared == np.inf:
                continue
            for own in range(before.shape[1]):
                cost = before[first, own] + after[second, own] + shared
                firsts[first, own] = min(firsts[first, own], cost)
                seconds[second, own] = min(seconds[second, own], cost)
    return firsts, seconds
