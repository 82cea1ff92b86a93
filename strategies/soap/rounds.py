"""Rounds: searches whose proposals are made in legs that do not need each other until their round ends.

A leg is a value: where it stands, and how far it has come. Whoever holds an evaluation of the same problem can take it
further, in this process or another; what it finds depends on nothing but the leg. When all legs of a round have ended,
the state of the search follows from them and says which legs come next. So a plan depends on the seed and the number of
proposals, and not on how many processes there are, or how fast.

    round   legs       who                      what follows
    1       a b c d    a c: one, d b: another   from the fastest plan of the four
    2       e f g h    all in one               likewise

Proposals are counted leg by leg in the order of the round. A search that ends within a round counts, and uses, its legs
up to and with the first that has not ended: those that steps one after another would have come to.

Every plan that is evaluated counts as a proposal, a seed too: what a search has found changes in no step that does not
count. So it does not matter which of the states with one number of proposals a search ends in, and one that ended after
some seconds is found again by its number.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, TypeVar, final

from maniple.strategies.interface.strategy import AbstractStrategy
from maniple.strategies.soap.seeding import SEEDS, first_evaluation, found_plan
from maniple.strategies.soap.work_item import SearchLeg

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maniple.operators.plan.plan import Plan
    from maniple.strategies.interface.strategy import Problem, Progress
    from maniple.strategies.soap.evaluation import Evaluation
    from maniple.strategies.soap.incumbent import Incumbent
    from maniple.strategies.soap.work_item import WorkItem

__all__: list[str] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundState:
    """The state of a search in rounds.

    Args:
        problem: what is searched.
        evaluation: a simulation, kept beside the state: it goes to the choices of whatever leg is stepped.
        incumbent: the fastest choices found in the rounds that have ended.
        legs: of the present round, in the order in which their proposals count.
        bound_s: seconds below which no plan can go, once they are known.
    """

    problem: Problem
    evaluation: Evaluation
    incumbent: Incumbent
    legs: tuple[WorkItem, ...] = ()
    bound_s: float | None = None

    @property
    def searching(self) -> tuple[SearchLeg, ...]:
        """The legs that make proposals."""
        return tuple(leg for leg in self.legs if isinstance(leg, SearchLeg))

    @property
    def found(self) -> Incumbent:
        """The fastest choices found, in the present round too."""
        return self.incumbent.after(self.searching)


State = TypeVar("State", bound=RoundState)


class AbstractRoundStrategy(AbstractStrategy[State]):
    """A strategy whose work comes in rounds of legs."""

    needs_budget: ClassVar[bool] = True

    @abstractmethod
    def next_round(self, state: State) -> State:
        """The state after a round all of whose legs have ended."""

    @final
    def evaluation(self, problem: Problem) -> Evaluation:
        """What any process needs to take legs of a problem further."""
        return first_evaluation(problem)

    @final
    def step(self, state: State) -> State:
        """The state after one more step of the first leg that has not ended, or after the round."""
        for number, leg in enumerate(state.legs):
            if not leg.finished:
                return self.with_legs(state, {number: leg.step(state.evaluation)})
        return self.next_round(state)

    @final
    def with_legs(self, state: State, legs: Mapping[int, WorkItem]) -> State:
        """The state in which some legs, by number, have come further."""
        return replace(state, legs=tuple(legs.get(number, leg) for number, leg in enumerate(state.legs)))

    @final
    def settled(self, state: State) -> State:
        """The state without the legs after the first that has proposals left."""
        ends = [number for number, leg in enumerate(state.legs) if leg.most and not leg.finished]
        return replace(state, legs=state.legs[: ends[0] + 1]) if ends else state

    @final
    def progress(self, state: State) -> Progress:
        """How far a state has come."""
        return replace(state.found.progress, bound_s=state.bound_s)

    @final
    def result(self, state: State) -> Plan:
        """The fastest plan found, with what is expected of it.

        Raises:
            RequestError: no plan that was tried fits in memory.
        """
        best = state.found
        state.evaluation.least = best.least
        ended = "locally optimal" if self.terminate(state) else "the budget ended before the search did"
        told = (("proposals", best.proposals), ("search", ended))
        return found_plan(self.name, state.problem, state.evaluation, best.candidates, told, state.bound_s)

    def alternatives(self, state: State) -> tuple[Plan, ...]:
        """The named plans that searches begin with."""
        return tuple(seed().plan(state.problem) for seed in SEEDS)
