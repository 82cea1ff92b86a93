"""Topological orders of a graph that make good lines to cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from maniple.strategies.pipeline.cost_graph import CostGraph

__all__: list[str] = []


def by_id(graph: CostGraph) -> list[int]:
    """The order of the graph: of the nodes that are free the lowest first."""
    return list(range(len(graph.nodes)))


def depth_first(graph: CostGraph) -> list[int]:
    """The order that follows a branch to its end before it begins another.

    (Tarnawski et al., NeurIPS 2020, section 5.1.2: linearisation along a depth-first order.)
    """
    successors = graph.successors()
    fed_at = [-1] * len(graph.nodes)
    order: list[int] = []
    for node in _take_free(graph, lambda node: (-fed_at[node], node)):
        for target in successors[node]:
            fed_at[target] = len(order)
        order.append(node)
    return order


def narrow(graph: CostGraph) -> list[int]:
    """The order that at every step lets the fewest bytes more cross the cut."""
    successors, predecessors = graph.successors(), graph.predecessors()
    sizes = [node.activation_bytes for node in graph.nodes]
    unread = [len(targets) for targets in successors]

    def growth(node: int) -> tuple[int, int]:
        freed = sum(sizes[source] for source in predecessors[node] if unread[source] == 1)
        return (sizes[node] if successors[node] else 0) - freed, node

    order: list[int] = []
    for node in _take_free(graph, growth):
        for source in predecessors[node]:
            unread[source] -= 1
        order.append(node)
    return order


ORDERS: tuple[Callable[[CostGraph], list[int]], ...] = (by_id, depth_first, narrow)
"""The orders that are tried, in this order."""


def _take_free(graph: CostGraph, key: Callable[[int], tuple[int, int]]) -> Iterator[int]:
    """The nodes in a topological order, of those that are free the one with the least key, asked anew at every step."""
    successors = graph.successors()
    missing = [len(sources) for sources in graph.predecessors()]
    free = {node for node, count in enumerate(missing) if count == 0}
    while free:
        node = min(free, key=key)
        free.remove(node)
        yield node
        for target in successors[node]:
            missing[target] -= 1
            if missing[target] == 0:
                free.add(target)
