"""Exhaustive search: the fastest plan of the published space, by branch and bound on simulated step times.

An operator's choices are its equal splits, on a range of processors with any start and stride, of which those that the
machine's symmetries make alike count once (up to how ties are broken by ids). Operators are decided in the graph's
order, depth first, the choice with the least bound first; what a bound shows to be no better than the best is left out.
(FlexFlow's authors search the same way, depth first with A*: SysML 2019, section 8.4.)

    phase     what happens                                                 ends
    seeds     the named plans that are in the space are simulated          before the first step
    branches  a step simulates the next plan that no bound excludes        when no branch is left

For graphs of a few operators on a few processors: the number of plans is a product over the operators.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, final

from maniple.strategies.equal_split import equal_splits
from maniple.strategies.exhaustive.relaxation import Relaxation
from maniple.strategies.exhaustive.symmetry import symmetries
from maniple.strategies.optcnn.additive_cost import AdditiveCost
from maniple.strategies.placement import complete
from maniple.strategies.simulation.simulation import Simulation
from maniple.strategies.soap.evaluation import NS, UNFIT, Evaluation
from maniple.strategies.soap.seeding import SEEDS, choices_of, found_plan
from maniple.strategies.space import Choice, Space
from maniple.strategies.strategy import AbstractStrategy, Problem, Progress

if TYPE_CHECKING:
    from maniple.operators.plan import Plan
    from maniple.strategies.exhaustive.symmetry import Exchange
    from maniple.strategies.soap.move import Choices

__all__: list[str] = []

EXPANSIONS = 64
"""A step ends after so many branches without a plan, so that a budget can end between steps."""


@final
@dataclass(frozen=True, slots=True)
class Branch:
    """The choices of one operator that are left, after those of all before it.

    Args:
        prefix: the numbers of the choices of the operators before.
        left: (bound, number) of each choice, the least bound last.
        exchanges: the symmetries that the prefix keeps.
    """

    prefix: tuple[int, ...]
    left: tuple[tuple[int, int], ...]
    exchanges: tuple[Exchange, ...]


@final
@dataclass(frozen=True, slots=True)
class ExhaustiveState:
    """The state of a search.

    Args:
        problem: what is searched.
        space: the graph's space.
        choices: of every operator the published ones.
        relaxation: the bounds.
        evaluation: a simulation that stands at the last plan.
        branches: the branches that are open, the deepest last.
        best: the fastest choices found.
        best_cost: their step time.
        proposals: how many plans were simulated.
    """

    problem: Problem
    space: Space
    choices: tuple[Choices, ...]
    relaxation: Relaxation
    evaluation: Evaluation
    branches: tuple[Branch, ...]
    best: Choices
    best_cost: float
    proposals: int


@final
class Exhaustive(AbstractStrategy[ExhaustiveState]):
    """Finds the fastest plan of equal splits."""

    name: ClassVar[str] = "exhaustive"
    needs_budget: ClassVar[bool] = True

    def init(self, problem: Problem) -> ExhaustiveState:
        """The state in which the seeds have been simulated."""
        space = Space.of(problem.graph, len(problem.machine.processors))
        choices = tuple(_published(space, number) for number in range(len(space.names)))
        whole = tuple(Choice((1,) * len(own.factors)) for own in space.operators)
        plans = [strategy().plan(problem) for strategy in SEEDS]
        seeds = [whole, *(found for found in (choices_of(space, plan) for plan in plans) if found is not None)]
        seeds = [seed for seed in seeds if all(c in own for c, own in zip(seed, choices, strict=True))]
        at_first = zip(space.names, space.operators, whole, strict=True)
        plan = complete(problem, self.name, tuple((name, own.plan(choice)) for name, own, choice in at_first))
        evaluation = Evaluation(Simulation(problem.graph, problem.machine, plan), space, whole)
        costs = [(evaluation.move_to(seed), number) for number, seed in enumerate(seeds)]
        best_cost, best = min(costs)
        relaxation = Relaxation(problem.graph, plan, space, choices, AdditiveCost(problem, space, choices))
        state = ExhaustiveState(problem, space, choices, relaxation, evaluation, (), seeds[best], best_cost, len(seeds))
        return replace(state, branches=(_branch(state, (), symmetries(problem.machine)),))

    def step(self, state: ExhaustiveState) -> ExhaustiveState:
        """The state after the next plan that no bound excludes, or some branches further on."""
        for _ in range(EXPANSIONS):
            if self.terminate(state):
                break
            *before, branch = state.branches
            if not branch.left or branch.left[-1][0] * NS >= state.best_cost:
                state = replace(state, branches=tuple(before))
                continue
            *left, (_, number) = branch.left
            prefix = (*branch.prefix, number)
            state = replace(state, branches=(*before, replace(branch, left=tuple(left))))
            if len(prefix) == len(state.choices):
                return _simulated(state, prefix)
            exchanges = _kept(state, len(branch.prefix), number, branch.exchanges)
            state = replace(state, branches=(*state.branches, _branch(state, prefix, exchanges)))
        return state

    def terminate(self, state: ExhaustiveState) -> bool:
        """Whether no branch is left."""
        return not state.branches

    def progress(self, state: ExhaustiveState) -> Progress:
        """How far a state has come."""
        best = None if state.best_cost >= UNFIT else state.best_cost
        return Progress(state.proposals, 0, best)

    def result(self, state: ExhaustiveState) -> Plan:
        """The fastest plan found; whether it is the fastest of all is in its explanation.

        Raises:
            RequestError: no plan that was simulated fits in memory.
        """
        exact = self.terminate(state)
        search = "the fastest plan of equal splits" if exact else "the budget ended before the search did"
        told = (("proposals", state.proposals), ("search", search), ("exact", exact))
        return found_plan(self.name, state.problem, state.evaluation, state.best, state.best_cost, told)


def _published(space: Space, number: int) -> Choices:
    """The choices of an operator: equal splits, on every range of processors."""
    own = space.operators[number]
    wanted = set(equal_splits(own.factors, own.processors))
    return tuple(choice for choice in own.choices() if choice.replicas == 1 and choice.degrees in wanted)


def _branch(state: ExhaustiveState, prefix: tuple[int, ...], exchanges: tuple[Exchange, ...]) -> Branch:
    """The choices of the next operator that may lead to a better plan, alike ones once."""
    number = len(prefix)
    own, choices = state.space.operators[number], state.choices[number]
    places = {(choice.degrees, own.plan(choice).processors): at for at, choice in reversed([*enumerate(choices)])}
    bounds = state.relaxation.bounds(prefix)
    left = []
    for (degrees, processors), at in places.items():
        images = (places.get((degrees, tuple(exchange[p] for p in processors)), at) for exchange in exchanges)
        if bounds[at] * NS < state.best_cost and all(image >= at for image in images):
            left.append((int(bounds[at]), at))
    return Branch(prefix, tuple(sorted(left, reverse=True)), exchanges)


def _kept(state: ExhaustiveState, number: int, choice: int, exchanges: tuple[Exchange, ...]) -> tuple[Exchange, ...]:
    """The symmetries that keep one more operator where it is."""
    processors = state.space.operators[number].plan(state.choices[number][choice]).processors
    return tuple(exchange for exchange in exchanges if tuple(exchange[p] for p in processors) == processors)


def _simulated(state: ExhaustiveState, numbers: tuple[int, ...]) -> ExhaustiveState:
    """Simulate a plan, and keep it where it is the fastest."""
    choices = tuple(own[number] for own, number in zip(state.choices, numbers, strict=True))
    cost = state.evaluation.move_to(choices)
    state = replace(state, proposals=state.proposals + 1)
    return replace(state, best=choices, best_cost=cost) if cost < state.best_cost else state
