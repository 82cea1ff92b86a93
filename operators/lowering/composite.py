"""Composites: operators whose split needs an exchange inside them, replaced by primitive operators before expansion.

A softmax over 6 classes, split in two, on processors 4 and 7:

    node            rule              degrees   processors
    softmax         b c -> b c        c=2       4 7
becomes
    softmax.shift   b c -> b          c=2 max   4 7
    softmax.sum     b c, b -> b       c=2       4 7
    softmax.result  b c, b, b -> b c  c=2       4 7

The exchange (here the maximum and the sum over the classes) is then a fold into a region between two primitives, and
the gradients follow from the primitives' own rules. An operator none of whose exchanged factors is split stays as it
is: its fused body runs.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.operators.graph.graph import Graph
from maniple.operators.operator.composition import AbstractComposition
from maniple.operators.operator.formula import ConstantFormula, Formula
from maniple.operators.rules.bounds import row_major
from maniple.operators.rules.configuration import OperatorPlan, StagePlan
from maniple.operators.rules.task_placement import processors_by_point

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from maniple.operators.graph.graph import Node
    from maniple.operators.operator.builder import Tensor
    from maniple.operators.operator.formula import TileFunction
    from maniple.operators.operator.operator import AbstractOperator
    from maniple.operators.plan.plan import Plan
    from maniple.operators.rules.bounds import Column

__all__: list[str] = []


def lower_composites(graph: Graph, plan: Plan, *, training: bool) -> tuple[Graph, Plan]:
    """Replace every operator whose plan splits a factor that it exchanges, or changes by its semantics.

    Args:
        graph: the graph.
        plan: a configuration for every operator of it.
        training: whether a training step is wanted, and no evaluation.

    Returns:
        A graph of primitives and the plan with their configurations; both as given where nothing is to be replaced.
        Inputs, parameters, buffers and outputs keep their names.
    """
    semantics = dict(plan.semantics)
    operators = {node.id: node.operator.under(semantics) for node in graph.nodes}
    split = {node.id for node in graph.nodes if _is_split(operators[node.id], plan.operator(node.name))}
    if not split and all(operators[node.id] is node.operator for node in graph.nodes):
        return graph, plan
    made = Graph(graph.name)
    inside: dict[str, tuple[str, ...]] = {}
    handles: dict[int, Tensor] = {}
    for tensor in graph.tensors:
        if tensor.kind != "activation":
            handles[tensor.id] = made.adopt(replace(tensor, owner=None))
    configurations: list[tuple[str, OperatorPlan]] = []
    for node in graph.nodes:
        given = [None if i is None else handles[i] for i in node.given]
        own = [None if i is None else handles[i] for i in node.own]
        if node.id in split:
            composition = Composition(made, graph, node, plan.operator(node.name), training=training)
            results = node.operator.compose(composition, (*given, *own))
            configurations += composition.configurations
            inside[node.name] = tuple(name for name, _ in composition.configurations)
        else:
            results = made.apply(operators[node.id], given, own, node.name)
            configurations.append((node.name, plan.operator(node.name)))
        handles |= dict(zip(node.results, results, strict=True))
    made.adopt_ends(graph, handles)
    stages = tuple(
        StagePlan(tuple(name for operator in stage.operators for name in inside.get(operator, (operator,))))
        for stage in plan.stages
    )
    return made, replace(plan, operators=tuple(configurations), stages=stages)


def is_composite(graph: Graph, plan: Plan, name: str, configuration: OperatorPlan) -> bool:
    """Whether an operator with a configuration is replaced by primitives, by the semantics of a plan."""
    return _is_split(graph.node(name).operator.under(dict(plan.semantics)), configuration)


def _is_split(operator: AbstractOperator, configuration: OperatorPlan) -> bool:
    """Whether a factor that the operator exchanges is split."""
    exchanged = operator.exchanges()
    return any(degree > 1 and factor in exchanged for factor, degree in configuration.degrees)


@final
class Composition(AbstractComposition):
    """The primitives of one composite as they are written.

    Their factors are the composite's, by name: each is split as the composite is, and runs where the composite does. A
    primitive that lacks a factor runs where the first part of that factor does. What a primitive reads whole may have a
    factor that the composite lacks, which is not split.

    Args:
        graph: where the primitives go.
        source: the graph of the composite.
        node: the composite.
        configuration: its degrees and processors.
        training: whether a training step is wanted, and no evaluation.
    """

    def __init__(self, graph: Graph, source: Graph, node: Node, configuration: OperatorPlan, *, training: bool) -> None:
        self.training = training
        self._change: Callable[[AbstractOperator, tuple[Tensor | None, ...]], AbstractOperator] | None = None
        self.bound = source.bound(node)
        self.configurations: list[tuple[str, OperatorPlan]] = []
        self._graph = graph
        self._node = node
        self._plan = configuration

    def formulas(
        self,
        part: str,
        text: str,
        function: TileFunction,
        *operands: Tensor | None,
        sizes: Mapping[str, int] | None = None,
    ) -> tuple[Tensor, ...]:
        """Write a primitive of several results; see ``formula``."""
        return self._apply(part, Formula(text, function, "", tuple((sizes or {}).items())), operands)

    def constant(
        self,
        part: str,
        text: str,
        function: TileFunction,
        *operands: Tensor | None,
        reduce: str = "",
        sizes: Mapping[str, int] | None = None,
    ) -> Tensor:
        """Write a primitive through which no gradient flows; see ``formula`` and, for ``reduce``, ``Rule.parse``."""
        return self._apply(part, ConstantFormula(text, function, reduce, tuple((sizes or {}).items())), operands)[0]

    def primitive(
        self, part: str, operator: AbstractOperator, operands: tuple[Tensor | None, ...]
    ) -> tuple[Tensor, ...]:
        """See ``AbstractComposition.primitive``."""
        return self._apply(part, operator, operands)

    def within(
        self, change: Callable[[AbstractOperator, tuple[Tensor | None, ...]], AbstractOperator]
    ) -> AbstractComposition:
        """See ``AbstractComposition.within``."""
        found = copy(self)
        found._change = change  # noqa: SLF001  (its own class)
        return found

    def _apply(self, part: str, operator: AbstractOperator, operands: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
        name = f"{self._node.name}.{part}"
        if self._change is not None:
            operator = self._change(operator, operands)
        own = len(operator.parameters())
        first = len(operands) - own
        results = self._graph.apply(operator, operands[:first], operands[first:], name)
        factors = [factor.name for factor in self._graph.bound(self._graph.nodes[-1]).factors]
        self.configurations.append((name, _inherit(self._plan, factors)))
        return results


def points_within(degrees: Mapping[str, int], factors: Sequence[str]) -> Column:
    """For each tile of a primitive the point of the composite with which it runs: the first part of factors it lacks.

    Args:
        degrees: of the composite's factors, in its rule's order.
        factors: of the primitive, in its rule's order.
    """
    index = row_major([degrees.get(factor, 1) for factor in factors])
    points = np.zeros(len(index), dtype=np.int64)
    for factor, degree in degrees.items():
        points *= degree
        if factor in factors:
            points += index[:, factors.index(factor)]
    return points


def _inherit(plan: OperatorPlan, factors: list[str]) -> OperatorPlan:
    """The configuration of a primitive with some of the composite's factors."""
    degrees = dict(plan.degrees)
    processors = processors_by_point(plan)[points_within(degrees, factors)]
    inherited = tuple((factor, degrees.get(factor, 1)) for factor in factors)
    return OperatorPlan(inherited, tuple(processors.ravel().tolist()), plan.replicas, plan.recompute)
