"""The space that is searched: for every operator its degrees, replicas, and a range of processors.

A choice names its processors as a range with a start and a stride, counted around the machine. On 8 processors

    choice                          tasks  processors
    b=4, start 0, stride 1          4      0 1 2 3
    b=2 n=2, start 1, stride 2      4      1 3 5 7
    b=2, 2 replicas, start 6        4      6 7 0 1

Inside the stages of a pipeline an operator has the processors of its stage, and a range is counted around these: of a
stage on processors 4 to 7

    b=2, start 3, stride 1          2      7 4

Published configurations (Jia et al., Beyond Data and Model Parallelism, section 4) have equal parts of the result's
dimensions. Here a degree need not divide its factor's extent, a reduction may be split too, and a whole operator may
be computed by several processors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.operators.plan.pipeline_plan import stages_of
from maniple.operators.plan.plan import OperatorPlan
from maniple.strategies.interface.layer import layers_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from maniple.operators.graph.graph import Graph, Node
    from maniple.operators.plan.plan import Plan
    from maniple.operators.rules.rule import BoundFactor

__all__: list[str] = []

Split = tuple[tuple[int, ...], int]
"""The degree of every factor, and the number of replicas."""


@final
@dataclass(frozen=True, slots=True)
class Choice:
    """One point of an operator's space.

    Args:
        degrees: the degree of every factor, in the rule's order.
        replicas: how many processors compute each part.
        start: the processor of the first task.
        stride: how many processors the next task's is further on, counted around the machine.
        mesh: where tasks are not in a row: the processors as a mesh, row-major, of each of whose axes the extent and
            the factor that it cuts, -1: replicas. Where several cut one factor, the last cuts finest.
    """

    degrees: tuple[int, ...]
    replicas: int = 1
    start: int = 0
    stride: int = 1
    mesh: tuple[tuple[int, int], ...] = ()

    @property
    def tasks(self) -> int:
        """How many tasks the operator becomes, replicas counted."""
        return prod(self.degrees) * self.replicas


@final
@dataclass(frozen=True, slots=True)
class OperatorSpace:
    """All choices of one operator.

    Args:
        factors: the factors of its rule, with extents.
        processors: the number of processors; a choice has at most so many tasks.
        within: the processors that ranges are counted around; empty: all of the machine.
        recompute: whether its results are computed again for backward, which no choice changes.
    """

    factors: tuple[BoundFactor, ...]
    processors: int
    within: tuple[int, ...] = ()
    recompute: bool = False

    def splits(self) -> tuple[Split, ...]:
        """Every way to cut it: degrees and replicas, in lexicographic order.

        A contribution to a sum counts once, so where a reduction is split there are no replicas.
        """
        return _splits(self.factors, self.processors)

    def strides(self, tasks: int) -> range:
        """The strides with which so many tasks get different processors without lapping the machine."""
        return range(1, self.processors // tasks + 1) if tasks > 1 else range(1, 2)

    def contains(self, choice: Choice) -> bool:
        """Whether a choice is one of this operator's."""
        limits = zip(choice.degrees, self.factors, strict=True)
        if any(not 1 <= degree <= factor.highest_degree for degree, factor in limits):
            return False
        reduces = any(d > 1 and f.reduction for d, f in zip(choice.degrees, self.factors, strict=True))
        return (
            choice.tasks <= self.processors
            and choice.replicas >= 1
            and (choice.replicas == 1 or not reduces)
            and choice.stride in self.strides(choice.tasks)
            and 0 <= choice.start < self.processors
        )

    def draw(self, chance: Random) -> Choice:
        """A choice: the split, the start and then the stride uniformly among the legal ones."""
        degrees, replicas = chance.choice(self.splits())
        strides = self.strides(prod(degrees) * replicas)
        return Choice(degrees, replicas, chance.randrange(self.processors), chance.choice(strides))

    def probability(self, choice: Choice) -> float:
        """The probability with which ``draw`` gives a choice."""
        return 1.0 / (len(self.splits()) * self.processors * len(self.strides(choice.tasks)))

    def choices(self) -> tuple[Choice, ...]:
        """All choices, by split, start and stride."""
        return tuple(
            Choice(degrees, replicas, start, stride)
            for degrees, replicas in self.splits()
            for start in range(self.processors)
            for stride in self.strides(prod(degrees) * replicas)
        )

    def plan(self, choice: Choice) -> OperatorPlan:
        """The choice as the configuration of a plan."""
        named = tuple((factor.name, degree) for factor, degree in zip(self.factors, choice.degrees, strict=True))
        if choice.mesh:
            places = _on_mesh(choice.mesh)
        else:
            places = [(choice.start + task * choice.stride) % self.processors for task in range(choice.tasks)]
        on = tuple(self.within[place] for place in places) if self.within else tuple(places)
        return OperatorPlan(named, on, choice.replicas, self.recompute)

    def choice(self, plan: OperatorPlan) -> Choice | None:
        """The choice that a configuration is, or None where its processors are no range of ours."""
        if self.within and not set(plan.processors) <= set(self.within):
            return None
        first, *others = (self.within.index(p) if self.within else p for p in plan.processors)
        stride = (others[0] - first) % self.processors if others else 1
        found = Choice(tuple(degree for _, degree in plan.degrees), plan.replicas, first, stride)
        return found if self.contains(found) and self.plan(found) == plan else None


@final
@dataclass(frozen=True, slots=True)
class Space:
    """The spaces of all operators of a graph, and which of them have to do with each other.

    Args:
        names: the operators' names, in the graph's order.
        operators: their spaces.
        neighbours: for every operator those that share a tensor with it, ascending.
        maps: for every operator and neighbour (in the same order), pairs (its factor, the neighbour's factor) that
            cut the same dimension of the tensor between them.
        alike: for every operator the number of its class: equal operators over equal shapes are one class.
        layers: for every operator the number of its layer, see ``layers_of``.
    """

    names: tuple[str, ...]
    operators: tuple[OperatorSpace, ...]
    neighbours: tuple[tuple[int, ...], ...]
    maps: tuple[tuple[tuple[tuple[int, int], ...], ...], ...]
    alike: tuple[int, ...]
    layers: tuple[int, ...]

    @staticmethod
    def of(graph: Graph, processors: int, inside: Plan | None = None) -> Space:
        """The space of a graph on a number of processors.

        Args:
            graph: the graph.
            processors: how many the machine has.
            inside: a plan; then each operator has the processors of its stage alone.
        """
        nodes = graph.nodes
        spaces = tuple(OperatorSpace(graph.bound(node).factors, processors) for node in nodes)
        if inside is not None:
            on, again = stage_processors(inside), {name for name, own in inside.operators if own.recompute}
            spaces = tuple(
                replace(space, processors=len(on[node.name]), within=on[node.name], recompute=node.name in again)
                for space, node in zip(spaces, nodes, strict=True)
            )
        joined: list[dict[int, tuple[tuple[int, int], ...]]] = [{} for _ in nodes]
        for reader in nodes:
            for place, operand in enumerate(reader.operands):
                writer = None if operand is None else graph.producer(operand)
                if writer is not None and writer.id not in joined[reader.id]:
                    pairs = _find_shared(graph, writer, reader, place)
                    joined[reader.id][writer.id] = pairs
                    joined[writer.id][reader.id] = tuple((mine, theirs) for theirs, mine in pairs)
        classes: dict[object, int] = {}
        alike = tuple(
            classes.setdefault((node.operator, graph.bound(node).operand_shapes), len(classes)) for node in nodes
        )
        near = tuple(tuple(sorted(found)) for found in joined)
        maps = tuple(tuple(found[other] for other in sorted(found)) for found in joined)
        return Space(tuple(node.name for node in nodes), spaces, near, maps, alike, layers_of(graph))

    def carry(self, operator: int, place: int, choice: Choice) -> Choice | None:
        """What an operator's choice becomes when it is cut, and placed, as a neighbour is.

        Args:
            operator: the operator.
            place: which of its neighbours.
            choice: the neighbour's choice.

        Returns:
            None where the operator cannot be cut like that.
        """
        space = self.operators[operator]
        degrees = [1] * len(space.factors)
        for mine, theirs in self.maps[operator][place]:
            degrees[mine] = choice.degrees[theirs]
        found = Choice(tuple(degrees), choice.replicas, choice.start, choice.stride)
        if found.tasks == 1:
            found = Choice(found.degrees, 1, choice.start, 1)
        return found if space.contains(found) else None


def stage_processors(plan: Plan) -> dict[str, tuple[int, ...]]:
    """The processors of each operator's stage, ascending, by the operator's name."""
    stage_of, on = stages_of(plan.stages, [name for name, _ in plan.operators]), dict[int, set[int]]()
    for name, own in plan.operators:
        on.setdefault(stage_of[name], set()).update(own.processors)
    return {name: tuple(sorted(on[stage_of[name]])) for name, _ in plan.operators}


def _find_shared(graph: Graph, writer: Node, reader: Node, place: int) -> tuple[tuple[int, int], ...]:
    """Pairs (reader's factor, writer's factor) that cut one dimension of the tensor between two operators."""
    made, used = graph.bound(writer), graph.bound(reader)
    mine = [factor.name for factor in used.factors]
    theirs = [factor.name for factor in made.factors]
    result = writer.results.index(reader.operands[place])
    cuts = zip(used.cuts(used.rule.operands[place]), made.cuts(made.rule.results[result]), strict=True)
    return tuple((mine.index(reads), theirs.index(writes)) for reads, writes in cuts if reads and writes)


@lru_cache(maxsize=1024)
def _splits(factors: tuple[BoundFactor, ...], processors: int) -> tuple[Split, ...]:
    """See ``OperatorSpace.splits``."""
    vectors: list[tuple[tuple[int, ...], int]] = [((), 1)]
    for factor in factors:
        vectors = [
            ((*degrees, degree), tasks * degree)
            for degrees, tasks in vectors
            for degree in range(1, min(factor.highest_degree, processors // tasks) + 1)
        ]
    return tuple(
        (degrees, replicas)
        for degrees, tasks in vectors
        for replicas in range(1, 1 + (1 if _reduces(factors, degrees) else processors // tasks))
    )


def _on_mesh(mesh: Sequence[tuple[int, int]]) -> list[int]:
    """The place of each task, by factor and then by replica."""
    extents = [extent for extent, _ in mesh]
    # Replicas of a part are next to each other.
    order = sorted(range(len(mesh)), key=lambda axis: (mesh[axis][1] < 0, mesh[axis][1], axis))
    found: list[int] = np.arange(prod(extents)).reshape(extents).transpose(order).ravel().tolist()
    return found


def _reduces(factors: Sequence[BoundFactor], degrees: Sequence[int]) -> bool:
    return any(degree > 1 and factor.reduction for degree, factor in zip(degrees, factors, strict=True))
