"""Hill climbing: from the fastest named plan, one operator at a time, until no change of a single one helps.

operator   choices tried                              step time
linear     b=2 on 0 1: no faster; n=2 on 0 1: kept    9 ms, 7 ms
relu       all: no faster                             7 ms
linear     all: no faster                             7 ms      no operator has a choice that helps: the end
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, final

from maniple.strategies.soap.descent import Descent
from maniple.strategies.soap.incumbent import Incumbent
from maniple.strategies.soap.rounds import AbstractRoundStrategy, RoundState
from maniple.strategies.soap.seeding import seeding

if TYPE_CHECKING:
    from maniple.strategies.interface.strategy import Problem

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HillClimbState(RoundState):
    """The state of a search: the descent between two rounds, and what all rounds have; see ``RoundState``."""

    descent: Descent


@final
class HillClimb(AbstractRoundStrategy[HillClimbState]):
    """Improves the fastest named plan operator by operator."""

    name: ClassVar[str] = "hill_climb"

    def init(self, problem: Problem) -> HillClimbState:
        """The state at the fastest named plan."""
        _, evaluation, _, costs = seeding(problem)
        cost, _, choices = costs[0]
        descent = Descent(choices, cost, evaluation.options.count)
        slower = tuple((cost, choices) for cost, _, choices in costs[1:])
        incumbent = Incumbent(choices, cost, len(costs), least=evaluation.least, slower=slower)
        return HillClimbState(
            problem=problem, evaluation=evaluation, incumbent=incumbent, items=descent.items(), descent=descent
        )

    def next_round(self, state: HillClimbState) -> HillClimbState:
        """The state after a round."""
        descent, items = state.descent.join(state.searching)
        return replace(state, incumbent=state.found, descent=descent, items=items)

    def terminate(self, state: HillClimbState) -> bool:
        """Whether no change of a single operator helps."""
        return state.descent.ends_with(state.items)
