"""Differentiation: what of a graph a step computes, which tensors have a gradient, and which nodes contribute to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.operators.operator.operator import REAL_DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maniple.operators.graph.graph import Graph
    from maniple.operators.graph.node import Node


def find_needed(graph: Graph, targets: Iterable[int]) -> list[Node]:
    """The nodes that some tensors depend on, in graph order."""
    wanted = set(targets)
    nodes = []
    for node in reversed(graph.nodes):
        if wanted.intersection(node.results):
            nodes.append(node)
            wanted.update(operand for operand in node.operands if operand is not None)
    return nodes[::-1]


def find_differentiated(graph: Graph) -> frozenset[int]:
    """The tensors whose gradient a training step computes: on a path from a trained parameter to the loss."""
    if graph.loss_tensor is None:
        return frozenset()
    trained = {tensor.id for tensor in graph.parameters if tensor.requires_grad}
    return find_between(graph, trained, {graph.loss_tensor})


def find_between(graph: Graph, sources: set[int], targets: set[int]) -> frozenset[int]:
    """The tensors on a path, along which gradients flow back, from some tensors to others."""
    grows, matters = set(sources), set(targets)
    for node in graph.nodes:
        if grows.intersection(gradient_operands(graph, node).values()):
            grows.update(gradient_results(graph, node).values())
    for node in reversed(graph.nodes):
        if matters.intersection(gradient_results(graph, node).values()):
            matters.update(gradient_operands(graph, node).values())
    return frozenset(grows & matters)


def gradient_operands(graph: Graph, node: Node) -> dict[int, int]:
    """The tensors through which a gradient can leave a node, by place among its operands."""
    places, tensors = node.operator.differentiable, graph.tensors
    return {
        place: operand
        for place, operand in enumerate(node.operands)
        if operand is not None and (places is None or place in places) and tensors[operand].dtype in REAL_DTYPES
    }


def gradient_results(graph: Graph, node: Node) -> dict[int, int]:
    """The tensors through which a gradient can enter a node, by place among its results."""
    tensors = graph.tensors
    return {
        place: result
        for place, result in enumerate(node.results)
        if place not in node.operator.detached and tensors[result].dtype in REAL_DTYPES
    }
