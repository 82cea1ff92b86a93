"""Layers: operators that use one weight, with what makes their inputs.

operator             weight   layer
embedding            table    0
lstm, first step     w0       1
lstm, second step    w0       1
linear               v        2
cross_entropy                 2
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maniple.operators.graph.graph import Graph, Node

__all__: list[str] = []


def layers_of(graph: Graph) -> tuple[int, ...]:
    """The number of the layer of every operator, by first appearance.

    Operators that use one weight are a layer. An operator without weights is in the first layer that reads it, so that
    what a layer makes of its inputs is made there; the loss is in the last.
    """
    first_user: dict[int, int] = {}
    for node in graph.nodes:
        for weight in weights_of(graph, node)[:1]:
            first_user.setdefault(weight, len(first_user))
    last = max(0, len(first_user) - 1)
    layers = [0] * len(graph.nodes)
    reading: dict[int | None, int] = {}
    for node in reversed(graph.nodes):
        weights = weights_of(graph, node)
        readers = [reading[result] for result in node.results if result in reading]
        layer = first_user[weights[0]] if weights else min(readers, default=last)
        layers[node.id] = layer
        reading |= {operand: min(layer, reading.get(operand, layer)) for operand in node.operands}
    return tuple(layers)


def is_unrolled(graph: Graph) -> bool:
    """Whether several operators of a kind use one weight, as the steps of a recurrent layer do."""
    uses = [(weight, node.operator) for node in graph.nodes for weight in weights_of(graph, node)[:1]]
    return len(set(uses)) < len(uses)


def weights_of(graph: Graph, node: Node) -> list[int]:
    """The trained weights that an operator uses."""
    return [i for i in node.operands if i is not None and graph.tensors[i].kind == "parameter"]
