"""All strategies in one search: the cheap ones first, the rest of the budget on the promising ones.

    phase      a step                                                  ends
    cheap      simulates one named plan, or makes a part of OptCNN's   when each has its plan
    trial      a proposal of one of the searches                       when each has made TRIAL proposals, or ended
    pipelines  all pipelines of one of those that plan them            when each has its plan, or refused
    rest       a proposal of the search with the fastest plan          when it has ended, and those after it in turn

Where an order or a number of micro-batches is asked for, only those that plan pipelines take part. The explanation of
the plan is the table of all: the step time of the fastest plan of each, and of every pipeline that was simulated; and
who did not have a turn. After a runoff it tells of those that took part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, final

from maniple.operators.plan.plan import Plan, Predicted
from maniple.process.error import RequestError
from maniple.strategies.interface.registry import STRATEGIES
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
PIPELINES: tuple[tuple[str, bool], ...] = (("antichain", True), ("bapipe", True), ("graphpipe", True), ("gpipe", False))
"""What plans pipelines, by name, and whether it compares them with plans without one, which here others make."""
STEP_S_OF = "step_s of "
"""How the explanation of a plan begins that tells of a plan of another strategy."""
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
        refusal: why it makes no plan.
    """

    strategy: AbstractStrategy[Any]
    state: Any = None
    best_s: float | None = None
    proposals: int = 0
    ended: bool = False
    plan: Plan | None = None
    refusal: RequestError | None = None


@final
@dataclass(frozen=True, slots=True)
class AutoState:
    """The state of a search.

    Args:
        problem: what is searched.
        entrants: the strategies: the cheap ones, the searches, and those that plan pipelines.
    """

    problem: Problem
    entrants: tuple[Entrant, ...]


@final
class Auto(AbstractStrategy[AutoState]):
    """Tries the strategies and goes on with the best."""

    name: ClassVar[str] = "auto"
    needs_budget: ClassVar[bool] = True
    pipelines: ClassVar[bool] = True

    def load_compiled(self) -> None:
        """Compile what the strategies call, or load it."""
        for strategy in (*(made() for made in (*CHEAP, *SEARCHES)), *_pipelines()):
            strategy.load_compiled()

    def init(self, problem: Problem) -> AutoState:
        """The state in which the first named plan is simulated, and no other has begun."""
        asked = problem.order is not None or problem.micro_batches is not None
        found = [] if asked else [strategy() for strategy in (*CHEAP, *SEARCHES)]
        found += _pipelines() if asked or len(problem.machine.processors) > 1 else []
        return self.step(AutoState(problem, tuple(map(Entrant, found))))

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
        waiting = [entrant.strategy.name for entrant in state.entrants if entrant.state is None]
        told: tuple[tuple[str, Term], ...] = (
            ("proposals", self.progress(state).proposals),
            (
                "search",
                "every strategy has ended" if self.terminate(state) else "the budget ended before the search did",
            ),
            *((("had no turn", ", ".join(waiting)),) if waiting else ()),
            ("found by", winner.strategy.name),
            *(each for entrant in state.entrants for each in _told(entrant)),
        )
        return replace(
            plan,
            strategy=self.name,
            seed=state.problem.seed,
            explanation=(("", told),),
            predicted=Predicted(plan.predicted.step_s, bound_s=plan.predicted.bound_s),
        )

    def alternatives(self, state: AutoState) -> tuple[Plan, ...]:
        """The plan of each strategy that has one."""
        plans = (_plan(state.entrants[number]) for _, number in _order(state.entrants))
        return tuple(plan for plan in plans if plan is not None)


def _pipelines() -> list[AbstractStrategy[Any]]:
    """The strategies that plan pipelines, asked for by name: their own rivals are seeds of this room."""
    found: list[AbstractStrategy[Any]] = []
    for name, compares in PIPELINES:
        make: Any = STRATEGIES.lookup(name)
        found.append(make(alone=True) if compares else make())
    return found


def _told(entrant: Entrant) -> list[tuple[str, Term]]:
    """What the explanation says of an entrant: its step time, that of each of its pipelines, or why it has none."""
    name = entrant.strategy.name
    if not entrant.state:
        return []
    if entrant.refusal is not None:
        return [(f"{name} refused", str(entrant.refusal).splitlines()[-1].strip())]
    told: list[tuple[str, Term]] = [(f"{STEP_S_OF}{name}", entrant.best_s)]
    if entrant.plan is not None and entrant.strategy.pipelines:
        terms = dict(entrant.plan.explanation).get("", ())
        told += [
            (f"{STEP_S_OF}{name}: {term.removeprefix(STEP_S_OF)}", value)
            for term, value in terms
            if term.startswith(STEP_S_OF)
        ]
    return told


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
        if not entrant.strategy.needs_budget or entrant.proposals < TRIAL:
            return number
    return min(going, key=lambda item: (item[1].best_s is None, item[1].best_s or 0.0, item[0]))[0]


def _advance(entrant: Entrant, problem: Problem) -> Entrant:
    """The entrant after one more step."""
    strategy = entrant.strategy
    state = strategy.init(problem) if entrant.state is None else entrant.state
    try:
        state = strategy.step(state)
    except RequestError as error:
        if not strategy.pipelines:
            raise
        return Entrant(strategy, state, proposals=1, ended=True, refusal=error)
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
    """What the search that has come furthest says of memory, or the first of those that plan pipelines."""
    for entrant in reversed(state.entrants):
        if entrant.state is not None and entrant.strategy.needs_budget:
            try:
                entrant.strategy.result(entrant.state)
            except RequestError as error:
                return error
    refusals = [entrant.refusal for entrant in state.entrants if entrant.refusal is not None]
    nothing = RequestError("auto: no plan that was tried fits in memory; search longer, or use a smaller batch")
    return (*refusals, nothing)[0]
