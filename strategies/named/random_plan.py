"""Random plans: any legal plan can come out, from a seed; for tests, and as the start of searches.

The distribution, for P processors. An operator gets at most 2 P tasks, replicas counted.

    what                  drawn
    degrees               the factors in random order; each stays whole with probability 1/2, otherwise its degree
                          is uniform from 1 to the least of its extent and the tasks that are left
    replicas              1 with probability 3/4, otherwise uniform from 2 to min(P, 2 P / points) where that is
    processors of points  with probability 1/2 one random permutation of all processors, taken in turn;
                          otherwise each point draws its own, so that several may share one
    homes of weights      the same, with the parameter's dimensions for factors
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, ClassVar, final

from maniple.operators.plan.plan import OperatorPlan, Plan, WeightPlan
from maniple.operators.plan.weight_home import turns_of
from maniple.strategies.interface.strategy import AbstractDirectStrategy, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []


@final
class RandomPlan(AbstractDirectStrategy):
    """Draws a legal plan from the problem's seed."""

    name: ClassVar[str] = "random"

    def plan(self, problem: Problem) -> Plan:
        """The plan for a problem; equal seeds give equal plans."""
        graph, count = problem.graph, len(problem.machine.processors)
        chance = Random(problem.seed)
        operators: list[tuple[str, OperatorPlan]] = []
        for node in graph.nodes:
            factors = graph.bound(node).factors
            extents = [factor.highest_degree for factor in factors]
            degrees, replicas, processors = _draw(chance, extents, count)
            named = tuple((factor.name, degree) for factor, degree in zip(factors, degrees, strict=True))
            operators.append((node.name, OperatorPlan(named, processors, replicas)))
        weights: list[tuple[str, WeightPlan]] = []
        whole = turns_of(graph, problem.optimizer)
        for parameter in graph.lasting:
            shape = (1,) * len(parameter.shape) if parameter.name in whole else parameter.shape
            degrees, replicas, processors = _draw(chance, shape, count)
            weights.append((parameter.name, WeightPlan(degrees, processors, replicas)))
        return Plan(
            graph=graph.fingerprint(),
            machine=problem.machine.fingerprint(),
            operators=tuple(operators),
            weights=tuple(weights),
            strategy=self.name,
            seed=problem.seed,
        )


def _draw(chance: Random, extents: Sequence[int], count: int) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """Degrees, replicas and processors for a box of the given extents."""
    degrees, points = [1] * len(extents), 1
    for axis in chance.sample(range(len(extents)), len(extents)):
        most = min(extents[axis], 2 * count // points)
        if most > 1 and chance.random() < 0.5:
            degrees[axis] = chance.randint(1, most)
            points *= degrees[axis]
    most = min(count, 2 * count // points)
    replicas = chance.randint(2, most) if most > 1 and chance.random() < 0.25 else 1
    return tuple(degrees), replicas, _place(chance, points, replicas, count)


def _place(chance: Random, points: int, replicas: int, count: int) -> tuple[int, ...]:
    if chance.random() < 0.5:
        order = chance.sample(range(count), count)
        return tuple(order[task % count] for task in range(points * replicas))
    return tuple(processor for _ in range(points) for processor in chance.sample(range(count), replicas))
