"""The chain: Metropolis-Hastings over the choices of all operators.

A plan of predicted step time c is visited with probability proportional to exp(-c / (temperature * scale)) (Jia et al.,
Beyond Data and Model Parallelism, section 6, where beta = 1 / (temperature * scale)); the scale is the step time that
the search began with, so a temperature of 0.01 takes a plan that is 1 % slower with probability 1/e.

A draw that proposes nothing leaves the chain where it is, and counts: were it repeated until something is proposed, a
plan would be visited the more often, the more of its draws propose something.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from random import Random
from typing import TYPE_CHECKING, Protocol, final

from maniple.strategies.soap.move import apply, propose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.strategies.interface.space import Choice, Space
    from maniple.strategies.soap.move import Choices

__all__: list[str] = []


class Evaluator(Protocol):
    """What predicts the step time of a plan that changes a little at a time."""

    def evaluate(self, changes: Sequence[tuple[int, Choice]], limit: float = inf) -> float:
        """Seconds of a step after some operators' choices change; infinite where the plan does not fit in memory.

        The changes are kept until ``accept`` or ``reject``. A step that takes longer than ``limit`` will be rejected,
        so any number above the limit may stand for its time.
        """
        ...

    def accept(self) -> None:
        """Keep the changes."""
        ...

    def reject(self) -> None:
        """Take the changes back."""
        ...


@final
@dataclass(frozen=True, slots=True)
class Chain:
    """A chain's state: everything that its next step depends on.

    Args:
        choices: of every operator; the evaluator is at the same plan.
        cost: the predicted step time of ``choices``.
        best: the best choices that the chain has seen.
        best_cost: their step time.
        seed: where the chance of each proposal comes from, together with its number.
        proposals: how many draws were made, those that proposed nothing included.
        accepted: how many of them were accepted.
    """

    choices: Choices
    cost: float
    best: Choices
    best_cost: float
    seed: int
    proposals: int = 0
    accepted: int = 0

    @staticmethod
    def at(choices: Choices, cost: float, seed: int) -> Chain:
        """The chain that begins at some choices."""
        return Chain(choices, cost, choices, cost, seed)


def advance(chain: Chain, space: Space, evaluator: Evaluator, temperature: float, scale: float) -> Chain:
    """The chain after one more draw: a proposal is evaluated and accepted or rejected; no proposal is a rejection.

    Args:
        chain: the state.
        space: what can be chosen.
        evaluator: predicts step times; it is at the chain's choices before and after.
        temperature: see the module.
        scale: seconds, see the module.
    """
    chance = Random((chain.seed << 64) + chain.proposals)
    proposal = propose(space, chain.choices, chance)
    chain = replace(chain, proposals=chain.proposals + 1)
    if proposal is None or all(chain.choices[operator] == choice for operator, choice in proposal.changes):
        return chain
    # A uniform number is below exp(x) where an exponential one is above -x: the slowest plan that is accepted is known
    # before any time is.
    limit = chain.cost + temperature * scale * (proposal.log_ratio + chance.expovariate(1.0))
    cost = evaluator.evaluate(proposal.changes, limit)
    if cost == inf or cost > limit:
        evaluator.reject()
        return chain
    evaluator.accept()
    chain = replace(chain, choices=apply(chain.choices, proposal), cost=cost, accepted=chain.accepted + 1)
    if cost < chain.best_cost:
        return replace(chain, best=chain.choices, best_cost=cost)
    return chain
