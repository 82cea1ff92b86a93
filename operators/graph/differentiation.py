"""Differentiation: which tensors of a graph have a gradient in a training step, and which nodes contribute to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.operators.operator.operator import FLOAT_DTYPES

if TYPE_CHECKING:
    from maniple.operators.graph.graph import Graph
    from maniple.operators.graph.node import Node


def find_differentiated(graph: Graph) -> frozenset[int]:
    """The tensors whose gradient a training step computes: on a path from a trained parameter to the loss."""
    if graph.loss_tensor is None:
        return frozenset()
    grows: set[int] = {tensor.id for tensor in graph.parameters if tensor.requires_grad}
    for node in graph.nodes:
        if grows.intersection(gradient_operands(graph, node).values()):
            grows.update(gradient_results(graph, node).values())
    matters: set[int] = {graph.loss_tensor}
    for node in reversed(graph.nodes):
        if matters.intersection(gradient_results(graph, node).values()):
            matters.update(gradient_operands(graph, node).values())
    return frozenset(grows & matters)


def gradient_operands(graph: Graph, node: Node) -> dict[int, int]:
    """The tensors through which a gradient can leave a node, by place among its operands."""
    places = node.operator.differentiable
    return {
        place: operand
        for place, operand in enumerate(node.operands)
        if operand is not None and (places is None or place in places) and graph.tensors[operand].dtype in FLOAT_DTYPES
    }


def gradient_results(graph: Graph, node: Node) -> dict[int, int]:
    """The tensors through which a gradient can enter a node, by place among its results."""
    return {
        place: result
        for place, result in enumerate(node.results)
        if place not in node.operator.detached and graph.tensors[result].dtype in FLOAT_DTYPES
    }
