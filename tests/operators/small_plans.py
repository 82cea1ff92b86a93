"""A small network with one operator of each sort, and plans of it."""

from __future__ import annotations

from dataclasses import replace

from maniple.operators.graph.graph import Graph
from maniple.operators.plan.plan import OperatorPlan, Plan, WeightPlan
from maniple.runtime.machine.machine import Machine

MACHINE = Machine.preset("cpu:4")


def network(batch: int = 6) -> Graph:
    """A small network with one operator of each sort."""
    g = Graph("small")
    x, y = g.input("x", (batch, 1, 6, 6)), g.input("y", (batch,), dtype="int64")
    h = g.max_pool2d(g.relu(g.conv2d(x, 4, 3, padding=1)), 2)
    logits = g.linear(g.flatten(h), 10)
    g.loss(g.cross_entropy(logits, y))
    g.output("logits", logits)
    return g


GRAPH = network()


def cut(graph: Graph, name: str, processors: tuple[int, ...], replicas: int = 1, **degrees: int) -> OperatorPlan:
    """The configuration of an operator with some degrees, the others 1."""
    node = next(node for node in graph.nodes if node.name == name)
    factors = [factor.name for factor in graph.bound(node).factors]
    assert set(degrees) <= set(factors)
    return OperatorPlan(tuple((factor, degrees.get(factor, 1)) for factor in factors), processors, replicas)


def single(graph: Graph = GRAPH) -> Plan:
    """Everything on processor 0."""
    return Plan(
        graph=graph.fingerprint(),
        machine=MACHINE.fingerprint(),
        operators=tuple((node.name, cut(graph, node.name, (0,))) for node in graph.nodes),
        weights=tuple((tensor.name, WeightPlan((1,) * len(tensor.shape), (0,))) for tensor in graph.parameters),
    )


def with_operator(name: str, operator: OperatorPlan) -> Plan:
    """The plan with another configuration of one operator."""
    plan = single()
    return replace(plan, operators=tuple((key, operator if key == name else old) for key, old in plan.operators))
