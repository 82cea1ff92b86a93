"""All strategies in one search: the cheap ones first, the rest of the budget on the promising ones.

    phase     a step                                                  ends
    cheap     simulates one named plan, or makes a part of OptCNN's   when each has its plan
    trial     a proposal of one of the searches                       when each has made TRIAL proposals, or ended
    rest      a proposal of the search with the fastest plan          when it has ended, and those after it in turn

The explanation of the plan is the table of all: the step time of the fastest plan of each. After a runoff it tells of
those that took part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, final

from maniple.operators.plan.plan import Plan, Predicted
from maniple.process.error import RequestError
from maniple.strategies.interface.strategy import AbstractStrategy, Problem, Progress
from maniple.strategies.named.data_parallel import DataParallel
from maniple.strategies.named.expert import Expert
from maniple.strategies.named.model_parallel import ModelParallel
from maniple.strategies.named.spatial import Spatial
from maniple.strategies.optcnn.optcnn import OptCNN
from maniple.strategies.search.memory_fit import excess
from maniple.strategies.simulation.simulation import Simulation
from maniple.strategies.soap.hill_climb import HillClimb
from maniple.strategies.soap.reinforce import Reinforce
from maniple.strategies.soap.soap import Soap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.operators.plan.plan import Term

__all__: list[str] = []

CHEAP: tuple[type[AbstractStrategy[Any]], ...] = (DataParallel, Expert, ModelParallel, Spatial, OptCNN)
SEARCHES: tuple[type[AbstractStrategy[Any]], ...] = (Soap, HillClimb, Reinforce)
TRIAL = 200
"""So many proposals every search has before the fastest goes on alone."""


@final
@dataclass(frozen=True, slots=True)
class Entrant:
    """A strategy that takes part.

    Args:
        strategy: the strategy.
        state: its state; None before it has begun.
        best_s: the step time of its fastest plan; None while it has none that fits.
        proposals: how many it has made.
        ended: whether it has nothing left to try.
        plan: what a cheap one made, with what a simulation says of it; None for a search, whose plan may yet change.
    """

    strategy: AbstractStrategy[Any]
    state: Any = None
    best_s: float | None = None
    proposals: int = 0
    ended: bool = False
    plan: Plan | None = None


@final
@dataclass(frozen=True, slots=True)
class AutoState:
    """The state of a search.

    Args:
        problem: what is searched.
        entrants: the strategies, the cheap ones first.
    """

    problem: Problem
    entrants: tuple[Entrant, ...]


@final
class Auto(AbstractStrategy[AutoState]):
    """Tries the strategies and goes on with the best."""

    name: ClassVar[str] = "auto"
    needs_budget: ClassVar[bool] = True

    def load_compiled(self) -> None:
        """Compile what the strategies call, or load it."""
        for strategy in (*CHEAP, *SEARCHES):
            strategy().load_compiled()

    def init(self, problem: Problem) -> AutoState:
        """The state in which the first named plan is simulated, and no other has begun."""
        state = AutoState(problem, tuple(Entrant(strategy()) for strategy in (*CHEAP, *SEARCHES)))
        return self.step(state)

    def step(self, state: AutoState) -> AutoState:
        """The state after one more step of the strategy whose turn it is."""
        number = _turn(state)
        entrants = list(state.entrants)
        entrants[number] = _advance(entrants[number], state.problem)
        return replace(state, entrants=tuple(entrants))

    def terminate(self, state: AutoState) -> bool:
        """Whether every strategy has ended."""
        return all(entrant.ended for entrant in state.entrants)

    def progress(self, state: AutoState) -> Progress:
        """How far a state has come."""
        found = [entrant.best_s for entrant in state.entrants if entrant.best_s is not None]
        return Progress(sum(entrant.proposals for entrant in state.entrants), 0, min(found, default=None))

    def result(self, state: AutoState) -> Plan:
        """The fastest plan of all.

        Raises:
            RequestError: no plan that was tried fits in memory.
        """
        found: dict[int, Plan] = {}
        # A search's plan may be slower than the fastest that it met, which the runtime had no room for.
        for best_s, number in _order(state.entrants):
            if best_s >= min(map(_step_s, found.values()), default=inf):
                break
            if (plan := _plan(state.entrants[number])) is not None:
                found[number] = plan
        if not found:
            raise _nothing_fits(state)
        number = min(found, key=lambda number: (_step_s(found[number]), number))
        winner, plan = state.entrants[number], found[number]
        table: tuple[tuple[str, Term], ...] = tuple(
            (f"step_s of {entrant.strategy.name}", entrant.best_s) for entrant in state.entrants if entrant.state
        )
        told = (
            ("proposals", self.progress(state).proposals),
            (
                "search",
                "every strategy has ended" if self.terminate(state) else "the budget ended before the search did",
            ),
            ("found by", winner.strategy.name),
        )
        return replace(
            plan,
            strategy=self.name,
            seed=state.problem.seed,
            explanation=(("", (*told, *table)),),
            predicted=Predicted(plan.predicted.step_s, bound_s=plan.predicted.bound_s),
        )

    def alternatives(self, state: AutoState) -> tuple[Plan, ...]:
        """The plan of each strategy that has one."""
        plans = (_plan(state.entrants[number]) for _, number in _order(state.entrants))
        return tuple(plan for plan in plans if plan is not None)


def _order(entrants: Sequence[Entrant]) -> list[tuple[float, int]]:
    """The step time of the fastest plan that each has met, and its number, the fastest first."""
    return sorted((one.best_s, number) for number, one in enumerate(entrants) if one.best_s is not None)


def _plan(entrant: Entrant) -> Plan | None:
    """What an entrant would give; None where the runtime has no room after all: searches go by an estimate."""
    try:
        return entrant.plan or entrant.strategy.result(entrant.state)
    except RequestError:
        return None


def _step_s(plan: Plan) -> float:
    """The seconds that a plan is expected to take: all that take part are simulated."""
    return inf if plan.predicted.step_s is None else plan.predicted.step_s


def _turn(state: AutoState) -> int:
    """The number of the strategy that goes on."""
    going = [(number, entrant) for number, entrant in enumerate(state.entrants) if not entrant.ended]
    for number, entrant in going:
        if number < len(CHEAP) or entrant.proposals < TRIAL:
            return number
    return min(going, key=lambda item: (item[1].best_s is None, item[1].best_s or 0.0, item[0]))[0]


def _advance(entrant: Entrant, problem: Problem) -> Entrant:
    """The entrant after one more step."""
    strategy = entrant.strategy
    state = strategy.init(problem) if entrant.state is None else entrant.state
    state = strategy.step(state)
    ended, progress = strategy.terminate(state), strategy.progress(state)
    best_s, proposals = progress.best_s, progress.proposals
    if strategy.needs_budget or not ended:
        return Entrant(strategy, state, best_s, proposals, ended)
    plan = strategy.result(state)
    simulation = Simulation(problem.graph, problem.machine, plan, problem.costs, problem.optimizer)
    best_s, fits = simulation.makespan_ns / 1e9, excess(simulation)[0] <= 0
    plan = replace(plan, predicted=Predicted(best_s, None, simulation.bytes))
    return Entrant(strategy, state, best_s if fits else None, 1, ended=True, plan=plan)


def _nothing_fits(state: AutoState) -> RequestError:
    """What the search that has come furthest says of memory."""
    for entrant in reversed(state.entrants):
        if entrant.state is not None and entrant.strategy.needs_budget:
            try:
                entrant.strategy.result(entrant.state)
            except RequestError as error:
                return error
    return RequestError("auto: no plan that was tried fits in memory; search longer, or use a smaller batch")
