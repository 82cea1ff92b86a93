"""The expert's plan for networks of convolutions and dense layers: data parallel first, parameters split later.

Convolutions have few parameters and much work per sample, dense layers the reverse: so convolutions are split by
sample, and dense layers by output feature, where their weights then stay. (A. Krizhevsky, One weird trick for
parallelizing convolutional neural networks, arXiv 1404.5997, section 4.)

    operator               degrees  processors
    conv2d, pool, flatten  b=2      p0 p1
    linear                 n=2      p0 p1
    relu after linear      n=2      p0 p1
    cross_entropy          b=2      p0 p1
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, final

from maniple.strategies.placement import complete, follow, is_pointwise, split_axis, split_sample
from maniple.strategies.strategy import AbstractDirectStrategy, Problem

if TYPE_CHECKING:
    from maniple.operators.plan import OperatorPlan, Plan

__all__: list[str] = []


@final
class Expert(AbstractDirectStrategy):
    """Splits dense layers by output feature, pointwise operators as their producer, all others by sample."""

    name: ClassVar[str] = "expert"

    def plan(self, problem: Problem) -> Plan:
        """The plan for a problem."""
        graph, machine = problem.graph, problem.machine
        operators: dict[str, OperatorPlan] = {}
        for node in graph.nodes:
            if node.operator.name == "linear":
                features = len(graph.tensors[node.results[0]].shape) - 1
                operators[node.name] = split_axis(graph, node, features, machine)
            elif is_pointwise(node):
                operators[node.name] = follow(graph, node, operators) or split_sample(graph, node, machine)
            else:
                operators[node.name] = split_sample(graph, node, machine)
        return complete(problem, self.name, tuple(operators.items()))
