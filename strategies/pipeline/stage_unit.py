"""Stage units: operators that no cut of a pipeline without a flush may part.

In such a pipeline stages are at different mini-batches, and have versions of weights of their own, so a weight is read
by one stage. Who reads one weight stays together, and so does what lies between:

    e = embed(i, w)   h = relu(e)   y = linear(h, w)   z = linear(y)      units: embed, relu and linear | linear
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from maniple.strategies.pipeline.cost_graph import CostGraph

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.operators.graph.graph import Graph

__all__: list[str] = []


def without_parting(graph: Graph, costs: CostGraph) -> CostGraph:
    """The graph of costs with a node for each unit.

    Args:
        graph: the operators.
        costs: their costs, a node for an operator with those beside it.
    """
    home = {name: place for place, node in enumerate(costs.nodes) for name in (node.id, *node.beside)}
    joined = [set[int]() for _ in costs.nodes]
    for weight in graph.parameters:
        together = {home[node.name] for node in graph.nodes if weight.id in node.operands}
        for one in together:
            joined[one] |= together
    units = _components(costs, joined)
    return _contracted(costs, units)


def _components(costs: CostGraph, joined: Sequence[set[int]]) -> list[list[int]]:
    """The strongly connected components of who feeds and who is joined, in topological order (Kosaraju)."""
    forward = [set(found) for found in joined]
    backward = [set(found) for found in joined]
    for source, target in costs.edges:
        forward[source].add(target)
        backward[target].add(source)
    finished: list[int] = []
    seen: set[int] = set()
    for root in range(len(costs.nodes) - 1, -1, -1):
        _walk(root, forward, seen, finished)
    units: list[list[int]] = []
    taken: set[int] = set()
    for root in reversed(finished):
        unit: list[int] = []
        _walk(root, backward, taken, unit)
        if unit:
            units.append(sorted(unit))
    return units


def _walk(root: int, edges: Sequence[set[int]], seen: set[int], finished: list[int]) -> None:
    """Add what a node leads to and was not seen, each after all that it leads to."""
    if root in seen:
        return
    seen.add(root)
    stack = [(root, iter(sorted(edges[root], reverse=True)))]
    while stack:
        node, rest = stack[-1]
        following = next((other for other in rest if other not in seen), None)
        if following is None:
            finished.append(node)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(sorted(edges[following], reverse=True))))


def _contracted(costs: CostGraph, units: Sequence[Sequence[int]]) -> CostGraph:
    """The graph with a node for each group of nodes: what leaves the group is its activation."""
    unit_of = {place: number for number, unit in enumerate(units) for place in unit}
    leaving = {source for source, target in costs.edges if unit_of[source] != unit_of[target]}
    nodes = []
    for unit in units:
        own = [costs.nodes[place] for place in unit]
        names = [name for node in own for name in (node.id, *node.beside)]
        nodes.append(
            replace(
                own[0],
                forward_s=sum(node.forward_s for node in own),
                backward_s=sum(node.backward_s for node in own),
                activation_bytes=sum(costs.nodes[place].activation_bytes for place in unit if place in leaving),
                parameter_bytes=sum(node.parameter_bytes for node in own),
                stored_bytes=sum(node.stored_bytes for node in own),
                forward_start_s=sum(node.forward_start_s for node in own),
                backward_start_s=sum(node.backward_start_s for node in own),
                beside=tuple(names[1:]),
            )
        )
    pairs = {(nodes[unit_of[a]].id, nodes[unit_of[b]].id) for a, b in costs.edges if unit_of[a] != unit_of[b]}
    return CostGraph.in_order(costs.name, nodes, sorted(pairs))
