"""The interface of strategies: pure steps over an explicit state, driven from outside.

Whoever drives it has the loop, the budget and the clock:

    state = strategy.init(problem)
    while not strategy.terminate(state) and budget is left:
        state = strategy.step(state)
    plan = strategy.result(state)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, final

from maniple.operators.plan.plan import Plan
from maniple.process.error import RequestError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.operators.graph.graph import Graph
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.runtime.machine.machine import Machine
    from maniple.strategies.cost_model.cost_model import CostModel
    from maniple.strategies.interface.plan_frontier import Frontier

__all__: list[str] = []

State = TypeVar("State")


class StrategyError(RequestError):
    """A strategy that gives what it must not, or raises: the message names it, the method and the next step."""


@final
@dataclass(frozen=True, slots=True)
class Problem:
    """What a strategy is asked: a plan for a graph on a machine.

    Args:
        graph: the graph, which is not changed while a strategy works on it.
        machine: the machine.
        seed: where all chance comes from.
        costs: what tasks take, for strategies that simulate; None: the roofline of the machine's processors.
        objective: what the plan is to have least of: ``time`` or ``memory``; ``pareto``: a frontier of both. One
            of those that the strategy knows.
        optimizer: what will update the weights, for strategies that simulate; None: descent with momentum.
        order: in which the stages of a pipeline are to take turns, for strategies that plan pipelines: a name, or the
            order as text; None: they choose.
        micro_batches: into how many parts such a pipeline cuts the samples; None: they choose.
        inside: a plan whose stages are kept, for strategies that can: they change degrees and processors of operators
            within the processors of their stage, whose order and micro-batches stay.
        space: what they are to choose besides, of what they know: ``recompute``, which results are computed again;
            ``cube``, layouts on the processors as a cube; ``stages``, pipelines.
        weights: which versions of weights are read, for strategies that plan pipelines without a flush; None: there is
            one, and a step sees all updates before it.
    """

    graph: Graph
    machine: Machine
    seed: int = 0
    costs: CostModel | None = None
    objective: str = "time"
    optimizer: AbstractOptimizer | None = None
    order: str | None = None
    micro_batches: int | None = None
    inside: Plan | None = None
    space: tuple[str, ...] = ()
    weights: str | None = None


@final
@dataclass(frozen=True, slots=True)
class Progress:
    """How far a search has come.

    Args:
        proposals: how many changes were evaluated.
        accepted: how many of them were kept.
        best_s: predicted seconds of a step under the best plan so far; None before there is one.
        bound_s: seconds below which no plan can go; None before they are known.
    """

    proposals: int = 0
    accepted: int = 0
    best_s: float | None = None
    bound_s: float | None = None


class AbstractStrategy(ABC, Generic[State]):
    """What turns a problem into a plan, step by step.

    All methods are pure: the state is a value that holds everything, the state of the random generator included.
    """

    name: ClassVar[str]
    """What plans and the command line call it."""
    needs_budget: ClassVar[bool]
    """Whether a search with it must be given a budget."""
    objectives: ClassVar[tuple[str, ...]] = ("time",)
    """What it can be asked for; see ``Problem``."""
    spaces: ClassVar[tuple[str, ...]] = ()
    """What it can choose besides its own space; see ``Problem``."""
    pipelines: ClassVar[bool] = False
    """Whether it plans pipelines, and heeds the order and the micro-batches of a problem."""
    inside_stages: ClassVar[bool] = False
    """Whether it can search inside the stages of a plan."""
    flows: ClassVar[bool] = False
    """Whether it plans pipelines without a flush, which must be asked for by a problem's ``weights``."""

    def load_compiled(self) -> None:
        """Compile what a search calls, or load it, before its budget begins; most call nothing.

        Where a search needs a budget, what a simulation calls is there already.
        """

    @abstractmethod
    def init(self, problem: Problem) -> State:
        """The state before the first step."""

    @abstractmethod
    def step(self, state: State) -> State:
        """The state after one more step."""

    @abstractmethod
    def terminate(self, state: State) -> bool:
        """Whether further steps would change nothing."""

    def progress(self, state: State) -> Progress:
        """How far a state has come; strategies that search say more than nothing."""
        del state
        return Progress()

    @abstractmethod
    def result(self, state: State) -> Plan:
        """The best plan that the state holds.

        Raises:
            RequestError: the state holds no plan yet.
        """

    def frontier(self, state: State) -> Frontier:
        """Every best trade of time and memory that the state holds, of a strategy that knows the objective ``pareto``.

        Raises:
            RequestError: it does not, or the state holds no plan yet.
        """
        del state
        raise RequestError(f"strategy {self.name!r} finds one plan, no frontier; ask strategy 'pareto' for one")

    def alternatives(self, state: State) -> tuple[Plan, ...]:
        """Plans beside the result that may be better by other costs: those with which a search has begun."""
        del state
        return ()


@final
@dataclass(frozen=True, slots=True)
class DirectState:
    """The state of a strategy that needs one step: the plan, once there is one."""

    problem: Problem
    plan: Plan | None = None


class AbstractDirectStrategy(AbstractStrategy[DirectState]):
    """A strategy that writes its plan down in one step."""

    needs_budget: ClassVar[bool] = False

    @abstractmethod
    def plan(self, problem: Problem) -> Plan:
        """The plan for a problem."""

    @final
    def init(self, problem: Problem) -> DirectState:
        """The state that has no plan yet."""
        return DirectState(problem)

    @final
    def step(self, state: DirectState) -> DirectState:
        """The state that has the plan.

        Raises:
            StrategyError: ``plan`` gave something else.
        """
        plan: object = self.plan(state.problem)
        if not isinstance(plan, Plan):
            got = "None" if plan is None else f"a value of type {type(plan).__name__}"
            raise StrategyError(
                f"strategy {self.name!r}: plan() gave {got}; expected a Plan: end it with "
                "`return complete(problem, self.name, operators)`"
            )
        return DirectState(state.problem, plan)

    @final
    def terminate(self, state: DirectState) -> bool:
        """Whether the plan is there."""
        return state.plan is not None

    @final
    def result(self, state: DirectState) -> Plan:
        """The plan.

        Raises:
            RequestError: no step was made.
        """
        if state.plan is None:
            raise RequestError(f"strategy {self.name!r}: there is no plan before the first step; call step() once")
        return state.plan


def asked_space(chosen: AbstractStrategy[Any], space: Sequence[str]) -> tuple[str, ...]:
    """What a strategy is to choose besides its own space.

    Args:
        chosen: the strategy.
        space: the names, or one.

    Raises:
        RequestError: it does not choose that.
    """
    asked = (space,) if isinstance(space, str) else tuple(dict.fromkeys(space))
    for name in asked:
        if name not in chosen.spaces:
            known = (
                nearest(name, chosen.spaces)
                if chosen.spaces
                else "; strategy 'pareto' chooses cube, recompute and stages"
            )
            raise RequestError(f"space: strategy {chosen.name!r} does not choose {name!r}{known}")
    return asked
