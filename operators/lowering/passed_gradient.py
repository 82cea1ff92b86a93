"""Passed gradients: the gradient of a sum is that of each of its summands, so it needs no region and no copy for one.

    branch = linear(x), stream = add(x, branch)

    stream.grad      what add is given of its result
    branch.grad      the same values: linear's backward reads stream.grad
    x.grad           add's part and linear's: both contribute, as to any tensor that several read

A gradient is passed where nothing else contributes to it. An add of which both are needs no backward task.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from maniple.operators.graph.differentiation import (
    find_differentiated,
    find_needed,
    gradient_operands,
    gradient_results,
)
from maniple.operators.lowering.step_regions import gradient_dtype
from maniple.operators.lowering.view_group import is_rearranged, step_targets

if TYPE_CHECKING:
    from maniple.operators.graph.graph import Graph

__all__: list[str] = []

Passed = dict[int, tuple[int, ...]]
"""By number of an operator, the places of the operands to whose gradients it contributes nothing of its own."""


def passed_gradients(graph: Graph) -> Passed:
    """Find what a training step passes, of a graph as it is before operators are composed of others."""
    tensors, targets = graph.tensors, step_targets(graph, training=True)
    nodes, wanted = find_needed(graph, targets), find_differentiated(graph)
    contributors = Counter(
        operand
        for node in nodes
        if wanted.intersection(gradient_results(graph, node).values())
        for operand in gradient_operands(graph, node).values()
    )
    # What is a view of another has its gradient there.
    kept = {tensor for node in nodes if is_rearranged(graph, node) for tensor in (*node.operands, *node.results)}
    kept.update(targets)
    found: Passed = {}
    for node in nodes:
        result = node.results[0]
        places = tuple(
            place
            for place, operand in gradient_operands(graph, node).items()
            if place in node.operator.passes
            and {operand, result} <= wanted
            and not kept.intersection((operand, result))
            and contributors[operand] == 1
            and tensors[operand].kind == "activation"
            and gradient_dtype(tensors[operand].dtype) == gradient_dtype(tensors[result].dtype)
        )
        if places:
            found[node.id] = places
    return found
