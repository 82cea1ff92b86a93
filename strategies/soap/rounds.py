"""Rounds: searches over choices whose items any process can take further (``strategies.interface.parallel_search``).

Each item has an evaluation, of the same problem, for a workbench. Every plan that is evaluated counts as a proposal, a
seed too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, final

from maniple.strategies.interface.parallel_search import AbstractParallelStrategy
from maniple.strategies.soap.seeding import INSIDE, SEEDS, first_evaluation, found_plan
from maniple.strategies.soap.work_item import WIDTH, SearchItem, unpack

if TYPE_CHECKING:
    from maniple.operators.plan.plan import Plan, Term
    from maniple.strategies.interface.parallel_search import WorkItem
    from maniple.strategies.interface.strategy import Problem, Progress
    from maniple.strategies.soap.evaluation import Evaluation
    from maniple.strategies.soap.incumbent import Incumbent

__all__: list[str] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundState:
    """The state of a search in rounds.

    Args:
        problem: what is searched.
        evaluation: a simulation, kept beside the state: it goes to the choices of whatever item is stepped.
        incumbent: the fastest choices found in the rounds that have ended.
        items: of the present round, in the order in which their proposals count.
        bound_s: seconds below which no plan can go, once they are known.
    """

    problem: Problem
    evaluation: Evaluation
    incumbent: Incumbent
    items: tuple[WorkItem, ...] = ()
    bound_s: float | None = None

    @property
    def searching(self) -> tuple[SearchItem, ...]:
        """The items that make proposals."""
        return tuple(item for item in self.items if isinstance(item, SearchItem))

    @property
    def found(self) -> Incumbent:
        """The fastest choices found, in the present round too."""
        return self.incumbent.after(self.searching)


State = TypeVar("State", bound=RoundState)


class AbstractRoundStrategy(AbstractParallelStrategy[State]):
    """A strategy whose work comes in rounds of items."""

    width: ClassVar[int] = WIDTH
    inside_stages: ClassVar[bool] = True

    @final
    def items(self, state: State) -> tuple[WorkItem, ...]:
        """The items of the present round."""
        return state.items

    @final
    def with_items(self, state: State, items: tuple[WorkItem, ...]) -> State:
        """The state whose present round has come as far as these items."""
        return replace(state, items=items)

    @final
    def before(self, state: State) -> int:
        """How many proposals were made before the present round."""
        return state.incumbent.proposals

    @final
    def bench(self, problem: Problem) -> Evaluation:
        """An evaluation, at the first seed."""
        return first_evaluation(problem)

    @final
    def bench_of(self, state: State) -> Evaluation:
        """The state's own evaluation."""
        return state.evaluation

    @final
    def unpack(self, plain: list[Any]) -> WorkItem:
        """The item that its ``pack`` gave.

        Raises:
            RequestError: it is none.
        """
        return unpack(plain)

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
        told: tuple[tuple[str, Term], ...] = (("proposals", best.proposals), ("search", ended))
        if (inside := state.problem.inside) is not None:
            told = (*told, (INSIDE, f"of a plan by {inside.strategy}"))
        return found_plan(self.name, state.problem, state.evaluation, best.candidates, told, state.bound_s)

    def alternatives(self, state: State) -> tuple[Plan, ...]:
        """The named plans that searches begin with, or the one inside whose stages it is."""
        inside = state.problem.inside
        return tuple(seed().plan(state.problem) for seed in SEEDS) if inside is None else (inside,)
