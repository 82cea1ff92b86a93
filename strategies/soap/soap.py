"""SOAP: Markov chain Monte Carlo over the degrees and processors of every operator, on simulated step times.

After Z. Jia, M. Zaharia, A. Aiken, Beyond Data and Model Parallelism for Deep Neural Networks (SysML 2019), section 6:
chains from known plans, each until it has not improved for a while. Then the best plan is improved operator by operator
until no change of a single one helps.

    phase    what a step does                         ends
    seeds    makes a part of OptCNN's plan            when it is made, soon or, for large models, after the other chains
    chains   one proposal of the chain from a seed,   after PATIENCE proposals per operator without a better plan,
             the fastest seed first                   each chain
    descent  tries one choice of one operator         when no choice of any operator helps
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, final

from maniple.strategies.bound import lower_bound_s
from maniple.strategies.optcnn.optcnn import OptCNN, OptCNNState
from maniple.strategies.soap.chain import Chain, advance
from maniple.strategies.soap.descent import Descent, descend
from maniple.strategies.soap.evaluation import UNFIT, Evaluation
from maniple.strategies.soap.seeding import SEEDS, choices_of, found_plan, seeding
from maniple.strategies.space import Space
from maniple.strategies.strategy import AbstractStrategy, Problem, Progress

if TYPE_CHECKING:
    from maniple.operators.plan import Plan
    from maniple.strategies.soap.move import Choices

__all__: list[str] = []

PATIENCE = 50
"""A chain ends after so many proposals per operator without a better plan."""
TEMPERATURE = 0.003
"""The share of the first plan's step time that a slower plan is taken with probability 1/e."""
EARLY = 4000
"""OptCNN's plan is a seed of the first chains where its costs have at most so many entries, else a seed of the last."""


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
        published: OptCNN's search for one more seed, once it has begun.
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
    published: OptCNNState | None = None


@final
class Soap(AbstractStrategy[SoapState]):
    """Searches every operator's degrees, replicas and processors by simulated step time."""

    name: ClassVar[str] = "soap"
    needs_budget: ClassVar[bool] = True

    def init(self, problem: Problem) -> SoapState:
        """The state in which the seeds have been simulated."""
        space, evaluation, _, costs = seeding(problem)
        best_cost, _, best = costs[0]
        bound = lower_bound_s(problem.graph, problem.machine)
        scale = best_cost if best_cost < UNFIT else 1.0
        return SoapState(problem, space, evaluation, costs, scale, bound, best, best_cost)

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
        local = "locally optimal" if self.terminate(state) else "the budget ended before the search did"
        told = (("proposals", state.proposals), ("search", local))
        return found_plan(self.name, state.problem, state.evaluation, state.best, state.best_cost, told, state.bound)


def _next_phase(state: SoapState) -> SoapState:
    """Begin the next seed's chain, or the descent from the best plan."""
    published = state.published or OptCNN().init(state.problem)
    if published.plan is None and (not state.waiting or published.cost.entries <= EARLY):
        return _published(state, OptCNN().step(published))
    if state.waiting:
        (_, _, choices), *others = state.waiting
        cost = state.evaluation.move_to(choices)
        seed = state.problem.seed * (len(SEEDS) + 1) + len(others)
        return replace(state, published=published, waiting=tuple(others), chain=Chain.at(choices, cost, seed))
    cost = state.evaluation.move_to(state.best)
    return replace(state, descent=Descent(state.best, cost))


def _published(state: SoapState, published: OptCNNState) -> SoapState:
    """Let OptCNN's plan become a seed, once it is known."""
    state = replace(state, published=published)
    choices = None if published.plan is None else choices_of(state.space, published.plan)
    if choices is None:
        return state
    cost = state.evaluation.move_to(choices)
    state = replace(state, waiting=tuple(sorted([*state.waiting, (cost, OptCNN.name, choices)])))
    return replace(state, best=choices, best_cost=cost) if cost < state.best_cost else state


def _descended(state: SoapState, before: Descent) -> SoapState:
    """Try one choice of the descent."""
    descent = descend(before, state.space, state.evaluation)
    proposals = state.proposals + descent.proposals - before.proposals
    state = replace(state, descent=descent, proposals=proposals, accepted=state.accepted + (descent.cost < before.cost))
    if descent.cost < state.best_cost:
        return replace(state, best=descent.choices, best_cost=descent.cost)
    return state
