"""Pruning: a graph without what neither the loss, nor an output, nor a buffer needs: operators, constants, inputs."""

from __future__ import annotations

from maniple.operators.graph.graph import Graph
from maniple.operators.operator.builder import Tensor


def prune(graph: Graph) -> Graph:
    """The graph without operators that nothing needs, and without constants and inputs that only these read.

    Every operand must be a tensor that was declared by itself or an operator's result.

    Args:
        graph: Its state is not copied. Itself the result where everything is needed.
    """
    needed = _find_needed(graph)
    if all(needed.intersection(node.results) for node in graph.nodes) and all(
        tensor.id in needed or (tensor.kind == "buffer" and tensor.persistent)
        for tensor in graph.tensors
        if tensor.kind in {"buffer", "input"}
    ):
        return graph
    found = Graph(graph.name)
    handles: dict[int, Tensor] = {}
    for tensor in graph.tensors:
        match tensor.kind:
            case "input" if tensor.id in needed:
                handles[tensor.id] = found.input(tensor.name, tensor.shape, tensor.dtype)
            case "parameter":
                handles[tensor.id] = found.parameter(
                    tensor.name, tensor.shape, tensor.dtype, tensor.initial, requires_grad=tensor.requires_grad
                )
            case "buffer" if tensor.persistent or tensor.id in needed:
                handles[tensor.id] = found.buffer(
                    tensor.name, tensor.shape, tensor.dtype, tensor.initial, persistent=tensor.persistent
                )
            case _:
                pass
    for node in graph.nodes:
        if needed.intersection(node.results):
            given, own = (
                [None if operand is None else handles[operand] for operand in part] for part in (node.given, node.own)
            )
            results = found.apply(node.operator, given, own, node.name)
            handles |= dict(zip(node.results, results, strict=True))
    found.adopt_ends(graph, handles)
    return found


def _find_needed(graph: Graph) -> set[int]:
    """The tensors that the loss, an output or a buffer's next value depends on, these included."""
    needed = {*graph.outputs.values(), *graph.assignments.values(), *graph.assignments}
    if graph.loss_tensor is not None:
        needed.add(graph.loss_tensor)
    for node in reversed(graph.nodes):
        if needed.intersection(node.results):
            needed.update(operand for operand in node.operands if operand is not None)
    return needed
