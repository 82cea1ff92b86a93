"""Orders and rows of a graph that are good to cut: lines of nodes, and series of nodes and of branches side by side.

0 -> 1 -> 4 -> 5      orders   0 1 2 3 4 5    2 3 0 1 4 5    ...
2 -> 3 -> 4           series   (0 1 | 2 3) 4 5
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from maniple.strategies.pipeline.cost_graph import CostGraph

__all__: list[str] = []

Mask = int
"""Nodes as bits."""


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


@final
@dataclass(frozen=True, slots=True)
class Block:
    """Branches side by side.

    Args:
        branches: each a row of units.
    """

    branches: tuple[tuple[Unit, ...], ...]


Unit = int | Block
"""A node, or a block of branches."""


def mask_of(units: Iterable[Unit]) -> Mask:
    """The nodes of some units."""
    found = 0
    for unit in units:
        found |= 1 << unit if isinstance(unit, int) else sum(map(mask_of, unit.branches))
    return found


def series(graph: CostGraph, nodes: Sequence[int] | None = None) -> tuple[Unit, ...]:
    """A graph, or some nodes of it, as a row of units.

    Nodes that all others are before or after are units by themselves; what lies between two of them falls apart into
    branches, each a row again. What has neither is taken in topological order, node by node.

    Args:
        graph: the graph.
        nodes: which nodes, ascending; all by default.
    """
    inside = list(range(len(graph.nodes)) if nodes is None else nodes)
    own = set(inside)
    edges = [(a, b) for a, b in graph.edges if a in own and b in own]
    parts = _components(inside, edges)
    if len(parts) > 1:
        return (Block(tuple(series(graph, part) for part in parts)),)
    above = _reach(inside, edges)
    trunk = _trunk(inside, above)
    if not trunk:
        return tuple(inside)
    on_it = sum(1 << node for node in trunk)
    between: list[list[int]] = [[] for _ in range(len(trunk) + 1)]
    for node in inside:
        if not on_it >> node & 1:
            between[(above[node] & on_it).bit_count()].append(node)
    units: list[Unit] = []
    for number, others in enumerate(between):
        units += series(graph, others) if others else ()
        units += trunk[number : number + 1]
    return tuple(units)


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


def _components(nodes: Iterable[int], edges: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The nodes that hang together, however edges lead."""
    home = {node: node for node in nodes}

    def root(node: int) -> int:
        while home[node] != node:
            home[node] = node = home[home[node]]
        return node

    for a, b in edges:
        first, second = sorted((root(a), root(b)))
        home[second] = first
    found: dict[int, list[int]] = {}
    for node in home:
        found.setdefault(root(node), []).append(node)
    return list(found.values())


def _reach(nodes: Sequence[int], edges: Sequence[tuple[int, int]]) -> dict[int, Mask]:
    """For every node those before it."""
    above = dict.fromkeys(nodes, 0)
    for source, target in edges:  # sorted, so that all that comes before a source is known
        above[target] |= above[source] | 1 << source
    return above


def _trunk(nodes: Sequence[int], above: dict[int, Mask]) -> list[int]:
    """The nodes that all others are before or after, in order."""
    after = dict.fromkeys(nodes, 0)
    for node in nodes:
        for other in nodes:
            after[other] += above[node] >> other & 1
    return [node for node in nodes if above[node].bit_count() + after[node] == len(nodes) - 1]
