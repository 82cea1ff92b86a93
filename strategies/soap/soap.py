"""SOAP: Markov chain Monte Carlo over the degrees and processors of every operator, on simulated step times.

After Z. Jia, M. Zaharia, A. Aiken, Beyond Data and Model Parallelism for Deep Neural Networks (SysML 2019), section 6:
chains from known plans, each until it has not improved for a while. Then the best plan is improved operator by operator
until no change of a single one helps.

    phase    what a step does                         ends
    seeds    simulates one of the starting plans      when all are
    chains   one proposal of the chain from a seed,   after PATIENCE proposals per operator without a better plan,
             the fastest seed first                   each chain
    descent  tries one choice of one operator         when no choice of any operator helps
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, final

from maniple.operators.plan import Plan, Predicted
from maniple.regions.error import RequestError
from maniple.strategies.bound import lower_bound_s
from maniple.strategies.data_parallel import DataParallel
from maniple.strategies.expert import Expert
from maniple.strategies.model_parallel import ModelParallel
from maniple.strategies.simulation.simulation import Simulation
from maniple.strategies.soap.chain import Chain, advance
from maniple.strategies.soap.descent import Descent, descend
from maniple.strategies.soap.evaluation import UNFIT, Evaluation
from maniple.strategies.space import Space
from maniple.strategies.strategy import AbstractStrategy, Problem, Progress

if TYPE_CHECKING:
    from maniple.runtime.machine import Machine
    from maniple.strategies.soap.move import Choices

__all__: list[str] = []

PATIENCE = 50
"""A chain ends after so many proposals per operator without a better plan."""
TEMPERATURE = 0.003
"""The share of the first plan's step time that a slower plan is taken with probability 1/e."""
SEEDS = (DataParallel, Expert, ModelParallel)


@final
@dataclass(frozen=True, slots=True)
class SoapState:
    """The state of a search.

    Args:
        problem: what is searched.
        space: what can be chosen.
        evaluation: a simulation, which is kept beside the state: it goes to the choices of whatever state is stepped.
        waiting: (cost, name, choices) of the seeds whose chains are still to come, the fastest first.
        scale: the step time of the fastest seed, for the temperature.
        bound: seconds below which no plan can go.
        best: the fastest choices found.
        best_cost: their step time.
        chain: the chain that goes on now.
        descent: the descent, once the chains have ended.
        proposals: how many changes were evaluated in all.
        accepted: how many of them were kept.
    """

    problem: Problem
    space: Space
    evaluation: Evaluation
    waiting: tuple[tuple[float, str, Choices], ...]
    scale: float
    bound: float
    best: Choices
    best_cost: float
    chain: Chain | None = None
    descent: Descent | None = None
    proposals: int = 0
    accepted: int = 0


@final
class Soap(AbstractStrategy[SoapState]):
    """Searches every operator's degrees, replicas and processors by simulated step time."""

    name: ClassVar[str] = "soap"
    needs_budget: ClassVar[bool] = True

    def init(self, problem: Problem) -> SoapState:
        """The state in which the seeds have been simulated."""
        space = Space.of(problem.graph, len(problem.machine.processors))
        seeds: list[tuple[str, Choices, Plan]] = []
        for strategy in SEEDS:
            plan = strategy().plan(problem)
            choices = choices_of(space, plan)
            if choices is not None:
                seeds.append((strategy.name, choices, plan))
        _, first, plan = seeds[0]
        evaluation = Evaluation(Simulation(problem.graph, problem.machine, plan), space, first)
        costs = [(evaluation.move_to(choices), name, choices) for name, choices, _ in seeds]
        costs.sort(key=lambda seed: seed[:2])
        best_cost, _, best = costs[0]
        bound = lower_bound_s(problem.graph, problem.machine)
        scale = best_cost if best_cost < UNFIT else 1.0
        return SoapState(problem, space, evaluation, tuple(costs), scale, bound, best, best_cost)

    def step(self, state: SoapState) -> SoapState:
        """The state after one more proposal."""
        if state.descent is not None:
            state.evaluation.stand_at(state.descent.choices)
            return _descended(state, state.descent)
        if state.chain is None:
            return _next_phase(state)
        state.evaluation.stand_at(state.chain.choices)
        chain = advance(state.chain, state.space, state.evaluation, TEMPERATURE, state.scale)
        accepted = state.accepted + chain.accepted - state.chain.accepted
        state = replace(state, chain=chain, proposals=state.proposals + 1, accepted=accepted)
        if chain.best_cost < state.best_cost:
            state = replace(state, best=chain.best, best_cost=chain.best_cost)
        if chain.proposals - chain.improved > PATIENCE * len(state.space.names):
            return replace(state, chain=None)
        return state

    def terminate(self, state: SoapState) -> bool:
        """Whether no change of a single operator helps."""
        return state.descent is not None and state.descent.finished

    def progress(self, state: SoapState) -> Progress:
        """How far a state has come."""
        best = None if state.best_cost >= UNFIT else state.best_cost
        return Progress(state.proposals, state.accepted, best)

    def result(self, state: SoapState) -> Plan:
        """The fastest plan found, with what is expected of it.

        Raises:
            RequestError: no plan that was tried fits in memory.
        """
        if state.best_cost >= UNFIT:
            raise nothing_fits(self.name, state.evaluation, state.problem.machine)
        state.evaluation.stand_at(state.best)
        plan = state.evaluation.plan()
        memory_bytes = state.evaluation.memory_bytes
        local = "locally optimal" if self.terminate(state) else "the budget ended before the search did"
        return replace(
            plan,
            strategy=self.name,
            seed=state.problem.seed,
            explanation=(("", (("proposals", state.proposals), ("search", local))),),
            predicted=Predicted(state.best_cost, memory_bytes, None, state.bound),
        )


def nothing_fits(name: str, evaluation: Evaluation, machine: Machine) -> RequestError:
    """Say how much too large the plan is that needs the least memory of all that were tried, and what fills it.

    Args:
        name: the strategy.
        evaluation: has seen a plan that does not fit, and none that does.
        machine: the machine.
    """
    if evaluation.least is None:
        return RequestError(f"{name}: no plan was tried yet; call step() first")
    excess, memory, choices = evaluation.least
    evaluation.move_to(choices)
    operator, size = evaluation.largest(memory)
    held = machine.memories[memory].capacity_bytes
    return RequestError(
        f"no plan that was tried fits in memory: the least needs {held + excess} bytes in memory {memory}, which holds "
        f"{held}; operator {operator} stands in the way with {size} bytes there; search longer, use a smaller batch, "
        "or a machine with more memory"
    )


def choices_of(space: Space, plan: Plan) -> Choices | None:
    """The choices that a plan is, or None where one of its operators is no choice of the space."""
    found = [own.choice(plan.operator(name)) for name, own in zip(space.names, space.operators, strict=True)]
    return tuple(choice for choice in found if choice is not None) if None not in found else None


def _next_phase(state: SoapState) -> SoapState:
    """Begin the next seed's chain, or the descent from the best plan."""
    if state.waiting:
        (_, _, choices), *others = state.waiting
        cost = state.evaluation.move_to(choices)
        seed = state.problem.seed * len(SEEDS) + len(others)
        return replace(state, waiting=tuple(others), chain=Chain.at(choices, cost, seed))
    cost = state.evaluation.move_to(state.best)
    return replace(state, descent=Descent(state.best, cost))


def _descended(state: SoapState, before: Descent) -> SoapState:
    """Try one choice of the descent."""
    descent = descend(before, state.space, state.evaluation)
    proposals = state.proposals + descent.proposals - before.proposals
    state = replace(state, descent=descent, proposals=proposals, accepted=state.accepted + (descent.cost < before.cost))
    if descent.cost < state.best_cost:
        return replace(state, best=descent.choices, best_cost=descent.cost)
    return state
