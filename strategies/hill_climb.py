"""Hill climbing: from the fastest named plan, one operator at a time, until no change of a single one helps.

operator   choices tried                              step time
linear     b=2 on 0 1: no faster; n=2 on 0 1: kept    9 ms, 7 ms
relu       all: no faster                             7 ms
linear     all: no faster                             7 ms      no operator has a choice that helps: the end
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, final

from maniple.strategies.soap.descent import Descent, descend
from maniple.strategies.soap.evaluation import UNFIT, Evaluation
from maniple.strategies.soap.seeding import found_plan, seeding
from maniple.strategies.space import Space
from maniple.strategies.strategy import AbstractStrategy, Problem, Progress

if TYPE_CHECKING:
    from maniple.operators.plan import Plan

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True)
class HillClimbState:
    """The state of a search.

    Args:
        problem: what is searched.
        space: what can be chosen.
        evaluation: a simulation that stands at the descent's choices.
        descent: how far it has come.
        accepted: how many changes were kept.
    """

    problem: Problem
    space: Space
    evaluation: Evaluation
    descent: Descent
    accepted: int = 0


@final
class HillClimb(AbstractStrategy[HillClimbState]):
    """Improves the fastest named plan operator by operator."""

    name: ClassVar[str] = "hill_climb"
    needs_budget: ClassVar[bool] = True

    def init(self, problem: Problem) -> HillClimbState:
        """The state at the fastest named plan."""
        space, evaluation, _, costs = seeding(problem)
        cost, _, choices = costs[0]
        evaluation.move_to(choices)
        return HillClimbState(problem, space, evaluation, Descent(choices, cost))

    def step(self, state: HillClimbState) -> HillClimbState:
        """The state after one more choice was tried."""
        descent = descend(state.descent, state.space, state.evaluation)
        return replace(state, descent=descent, accepted=state.accepted + (descent.cost < state.descent.cost))

    def terminate(self, state: HillClimbState) -> bool:
        """Whether no change of a single operator helps."""
        return state.descent.finished

    def progress(self, state: HillClimbState) -> Progress:
        """How far a state has come."""
        best = None if state.descent.cost >= UNFIT else state.descent.cost
        return Progress(state.descent.proposals, state.accepted, best)

    def result(self, state: HillClimbState) -> Plan:
        """The plan as it is now.

        Raises:
            RequestError: no plan that was tried fits in memory.
        """
        local = "locally optimal" if self.terminate(state) else "the budget ended before the search did"
        told = (("proposals", state.descent.proposals), ("search", local))
        return found_plan(self.name, state.problem, state.evaluation, state.descent.choices, state.descent.cost, told)
