"""Device placement by policy gradient: whole operators on processors drawn from a policy that learns from step times.

After A. Mirhoseini et al., Device Placement Optimization with Reinforcement Learning (ICML 2017): the reward of a
placement is -sqrt(step time), its baseline a moving average of rewards, and the policy follows

    grad J = E[ (R - B) grad log p(placement) ]                                     (section 3.1; Williams 1992)

Their policy is a recurrent network over operators. Here it is a categorical distribution for each group of operators,
whose logits are learnt directly; groups are contiguous blocks of about equal work, at most 64 of them, as they group
operators by hand. Rewards are divided by the baseline, so that one learning rate suits all models.

    group     logits   p          drawn   4 ms instead of the usual 9: R = -2, B = -3, a = RATE / 3
    conv      0 0      1/2 1/2    0       logits +a/2 -a/2
    linear    0 0      1/2 1/2    1       logits -a/2 +a/2
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from random import Random
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np

from maniple.strategies.interface.placement import node_flops
from maniple.strategies.interface.space import Choice, Space
from maniple.strategies.interface.strategy import AbstractStrategy, Problem
from maniple.strategies.named.model_parallel import balanced_blocks
from maniple.strategies.soap.evaluation import Evaluation
from maniple.strategies.soap.incumbent import Incumbent
from maniple.strategies.soap.seeding import found_plan, seeding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.operators.plan.plan import Plan
    from maniple.strategies.interface.strategy import Progress
    from maniple.strategies.soap.move import Choices

    Policy = np.ndarray[tuple[int, int], np.dtype[np.float64]]

__all__: list[str] = []

GROUPS = 64
RATE = 2.0
"""How far the logits go for a reward that is better than the baseline by all of it."""
MEMORY = 0.9
"""The share of the baseline that is kept when a reward is added."""
CERTAIN = 0.99
"""The search ends when every group has a processor with this probability."""


@final
@dataclass(frozen=True, slots=True)
class ReinforceState:
    """The state of a search.

    Args:
        problem: what is searched.
        space: the graph's space.
        evaluation: a simulation that stands at the last placement.
        groups: the group of each operator.
        logits: by group and processor.
        baseline: the moving average of rewards; 0 before the first.
        random: the state of the random generator.
        incumbent: the fastest placement; accepted are those that were faster than all before.
    """

    problem: Problem
    space: Space
    evaluation: Evaluation
    groups: tuple[int, ...]
    logits: Policy
    baseline: float
    random: tuple[object, ...]
    incumbent: Incumbent


@final
class Reinforce(AbstractStrategy[ReinforceState]):
    """Learns on which processor each group of operators runs."""

    name: ClassVar[str] = "reinforce"
    needs_budget: ClassVar[bool] = True

    def init(self, problem: Problem) -> ReinforceState:
        """The state in which every processor is as likely as any other; all operators on one are simulated."""
        space, evaluation, _, _ = seeding(problem)
        count = len(problem.machine.processors)
        work = [node_flops(problem.graph, node) for node in problem.graph.nodes]
        groups = balanced_blocks(work, GROUPS)
        first = placement(space, groups, (0,) * (max(groups) + 1))
        logits: Policy = np.zeros((max(groups) + 1, count))
        cost = evaluation.move_to(first)
        chance = Random(problem.seed).getstate()
        return ReinforceState(problem, space, evaluation, groups, logits, 0.0, chance, Incumbent(first, cost))

    def step(self, state: ReinforceState) -> ReinforceState:
        """The state after one more placement was drawn, simulated and learnt from."""
        chance = Random()
        chance.setstate(state.random)
        likely = probabilities(state.logits)
        drawn = tuple(chance.choices(range(likely.shape[1]), row)[0] for row in likely.tolist())
        choices = placement(state.space, state.groups, drawn)
        cost = state.evaluation.move_to(choices)
        reward = -sqrt(cost)
        baseline = reward if state.incumbent.proposals == 0 else MEMORY * state.baseline + (1 - MEMORY) * reward
        advantage = (reward - state.baseline) / -state.baseline if state.incumbent.proposals else 0.0
        logits = state.logits + RATE * max(-1.0, advantage) * score(likely, drawn)
        incumbent = state.incumbent.against(choices, cost, 1, int(cost < state.incumbent.cost))
        return replace(state, random=chance.getstate(), logits=logits, baseline=baseline, incumbent=incumbent)

    def terminate(self, state: ReinforceState) -> bool:
        """Whether the policy is certain of every group."""
        return bool((probabilities(state.logits).max(axis=1) >= CERTAIN).all())

    def progress(self, state: ReinforceState) -> Progress:
        """How far a state has come."""
        return state.incumbent.progress

    def result(self, state: ReinforceState) -> Plan:
        """The fastest placement drawn.

        Raises:
            RequestError: no plan that was tried fits in memory.
        """
        certain = self.terminate(state)
        search = "the policy is certain" if certain else "the budget ended before the policy was certain"
        best = state.incumbent
        told = (("proposals", best.proposals), ("search", search))
        return found_plan(self.name, state.problem, state.evaluation, best.candidates, told)


def probabilities(logits: Policy) -> Policy:
    """The policy: for each group the probability of each processor."""
    grown = np.exp(logits - logits.max(axis=1, keepdims=True))
    likely: Policy = grown / grown.sum(axis=1, keepdims=True)
    return likely


def score(likely: Policy, drawn: Sequence[int]) -> Policy:
    """The gradient of the logarithm of a placement's probability by the logits."""
    found: Policy = -likely
    found[np.arange(len(drawn)), list(drawn)] += 1.0
    return found


def placement(space: Space, groups: Sequence[int], processors: Sequence[int]) -> Choices:
    """The choices in which every operator is whole, on the processor of its group."""
    return tuple(
        Choice((1,) * len(own.factors), 1, processors[group])
        for own, group in zip(space.operators, groups, strict=True)
    )
