"""Replacements: nodes of a graph that one node takes the place of, which computes the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from maniple.operators.graph.graph import Graph

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.operators.graph.node import Node
    from maniple.operators.operator.builder import Tensor
    from maniple.operators.operator.operator import AbstractOperator

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True)
class Replacement:
    """A node in place of several.

    Args:
        nodes: what it takes the place of, in the graph's order; it comes where the last of them was, and nobody before
            that reads what it gives.
        operator: what it computes.
        given: the tensors that it is applied to, by id; None for an absent one.
        own: the tensors at the places of the operator's own parameters.
        results: the tensors that it gives.
    """

    nodes: tuple[Node, ...]
    operator: AbstractOperator
    given: tuple[int | None, ...]
    own: tuple[int | None, ...]
    results: tuple[int, ...]

    @property
    def name(self) -> str:
        """What it is called, such as ``add+layer_norm``."""
        return joined_name(self.nodes)


def joined_name(nodes: Sequence[Node]) -> str:
    """What nodes are called together."""
    return "+".join([node.name for node in nodes])


def replaced(graph: Graph, found: Sequence[Replacement]) -> Graph:
    """The graph with replacements; itself where there are none.

    Inputs, parameters, buffers and outputs keep their names. Values and arguments of calls are not taken along.

    Args:
        graph: the graph.
        found: of no node twice.
    """
    if not found:
        return graph
    made = Graph(graph.name)
    handles: dict[int, Tensor] = {}
    for tensor in graph.tensors:
        if tensor.kind != "activation":
            handles[tensor.id] = made.adopt(replace(tensor, owner=None))
    last = {item.nodes[-1].id: item for item in found}
    inside = {node.id for item in found for node in item.nodes}

    def there(tensors: Sequence[int | None]) -> list[Tensor | None]:
        return [None if tensor is None else handles[tensor] for tensor in tensors]

    for node in graph.nodes:
        if node.id in last:
            item = last[node.id]
            results = made.apply(item.operator, there(item.given), there(item.own), item.name)
            handles |= dict(zip(item.results, results, strict=True))
        elif node.id not in inside:
            results = made.apply(node.operator, there(node.given), there(node.own), node.name)
            handles |= dict(zip(node.results, results, strict=True))
    made.adopt_ends(graph, handles)
    return made
