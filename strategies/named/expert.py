"""The expert's plans: one for networks of convolutions and dense layers, one for recurrent networks.

Convolutions have few parameters and much work per sample, dense layers the reverse: so convolutions are split by
sample, and dense layers by output feature, where their weights then stay. (A. Krizhevsky, One weird trick for
parallelizing convolutional neural networks, arXiv 1404.5997, section 4.)

    operator               degrees  processors
    conv2d, pool, flatten  b=2      p0 p1
    linear                 n=2      p0 p1
    relu after linear      n=2      p0 p1
    cross_entropy          b=2      p0 p1

Recurrent networks: samples are split over hosts, and in every host each layer is on one processor, so that layers work
on different steps at once. (Y. Wu et al., Google's Neural Machine Translation System, arXiv 1609.08144, section 3;
the expert of Jia et al., Beyond Data and Model Parallelism, section 8.)

    2 hosts of 2 processors          degrees  processors
    embedding, lstm of layer 0       b=2      p0 p2
    lstm of layer 1, linear          b=2      p1 p3
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, final

from maniple.strategies.interface.layer import layers_of
from maniple.strategies.interface.placement import (
    complete,
    follow,
    is_pointwise,
    node_flops,
    shared,
    split_axis,
    split_sample,
)
from maniple.strategies.interface.strategy import AbstractDirectStrategy, Problem
from maniple.strategies.named.model_parallel import balanced_blocks

if TYPE_CHECKING:
    from maniple.operators.graph.graph import Graph
    from maniple.operators.plan.plan import OperatorPlan, Plan
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []

RECURRENT = "recurrent"


@final
class Expert(AbstractDirectStrategy):
    """What an expert would write down for a network of its kind."""

    name: ClassVar[str] = "expert"

    def plan(self, problem: Problem) -> Plan:
        """The plan for a problem."""
        graph, machine = problem.graph, problem.machine
        recurrent = any(node.operator.name == RECURRENT for node in graph.nodes)
        operators = _layers_apart(graph, machine) if recurrent else _split_features(graph, machine)
        return complete(problem, self.name, tuple(operators.items()))


def _split_features(graph: Graph, machine: Machine) -> dict[str, OperatorPlan]:
    """Dense layers split by output feature, pointwise operators as their producer, all others by sample."""
    operators: dict[str, OperatorPlan] = {}
    for node in graph.nodes:
        if node.operator.name == "linear":
            features = len(graph.tensors[node.results[0]].shape) - 1
            operators[node.name] = split_axis(graph, node, features, machine)
        elif is_pointwise(node):
            operators[node.name] = follow(graph, node, operators) or split_sample(graph, node, machine)
        else:
            operators[node.name] = split_sample(graph, node, machine)
    return operators


def _layers_apart(graph: Graph, machine: Machine) -> dict[str, OperatorPlan]:
    """Samples split over hosts, the layers of every host on processors of their own, balanced by operations."""
    hosts: dict[int, list[int]] = {}
    for processor in machine.processors:
        hosts.setdefault(machine.memories[processor.memory].host, []).append(processor.id)
    layers = layers_of(graph)
    costs = [0] * (max(layers) + 1)
    for node in graph.nodes:
        costs[layers[node.id]] += node_flops(graph, node)
    places = balanced_blocks(costs, min(len(own) for own in hosts.values()))
    return {
        node.name: shared(graph, node, [own[places[layers[node.id]]] for _, own in sorted(hosts.items())])
        for node in graph.nodes
    }
