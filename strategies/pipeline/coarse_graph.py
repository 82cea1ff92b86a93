"""Coarse graphs: some nodes of a graph taken together, so that there are fewer ideals to choose among.

nodes a b c d, groups (a b) (c) (d)      every ideal of the coarse graph is an ideal of the graph
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.strategies.pipeline.ideals import Links, Tensors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.strategies.pipeline.cost_graph import CostGraph
    from maniple.strategies.pipeline.ideals import Ticks

__all__: list[str] = []

Group = tuple[int, ...]


@final
@dataclass(frozen=True, slots=True, eq=False)
class CoarseGraph:
    """A graph whose nodes are groups of another's, in topological order.

    Args:
        groups: the nodes of each group, ascending.
        links: the edges between groups.
        tensors: what groups hand to each other, with the bytes of the nodes' own tensors.
    """

    groups: tuple[Group, ...]
    links: Links
    tensors: Tensors

    @staticmethod
    def of(graph: CostGraph, groups: Sequence[Group]) -> CoarseGraph:
        """The coarse graph of some groups, which hold every node once and come in a topological order.

        Args:
            graph: the graph.
            groups: the groups; no edge leads from a group to an earlier one.
        """
        home = [0] * len(graph.nodes)
        for place, group in enumerate(groups):
            for node in group:
                home[node] = place
        successors = graph.successors()
        made = [
            (place, graph.nodes[node].activation_bytes, sorted({home[target] for target in successors[node]} - {place}))
            for place, group in enumerate(groups)
            for node in group
        ]
        edges = sorted({(home[a], home[b]) for a, b in graph.edges if home[a] != home[b]})
        return CoarseGraph(tuple(groups), Links.of(len(groups), edges), Tensors.of(len(groups), made))

    @staticmethod
    def whole(graph: CostGraph) -> CoarseGraph:
        """The graph itself: every node a group."""
        return CoarseGraph.of(graph, [(node,) for node in range(len(graph.nodes))])

    def gather(self, weights: Ticks) -> Ticks:
        """The sums of node weights over each group.

        Args:
            weights: shape (nodes, ...).

        Returns:
            Shape (groups, ...).
        """
        if all(group == (place,) for place, group in enumerate(self.groups)):
            return weights
        order = np.array([node for group in self.groups for node in group], dtype=np.int64)
        starts = np.cumsum([0, *(len(group) for group in self.groups[:-1])])
        sums: Ticks = np.add.reduceat(weights[order], starts, axis=0)
        return sums


def compress(graph: CostGraph) -> list[Group]:
    """The groups of branch compression: the chains inside branches, each one group.

    A node that is before or after every other one is on the trunk and stays alone; of the others, a node whose only
    predecessor has no other successor joins it. (Narayanan et al., PipeDream's artifact, branch compression.)
    """
    trunk = _trunk(graph)
    successors, predecessors = graph.successors(), graph.predecessors()
    home: dict[int, int] = {}
    groups: list[list[int]] = []
    for node in range(len(graph.nodes)):
        before = predecessors[node]
        joins = not trunk[node] and len(before) == 1 and not trunk[before[0]] and len(successors[before[0]]) == 1
        if joins:
            home[node] = home[before[0]]
            groups[home[node]].append(node)
        else:
            home[node] = len(groups)
            groups.append([node])
    return order(graph, [tuple(group) for group in groups])


def order(graph: CostGraph, groups: Sequence[Group]) -> list[Group]:
    """The groups in a topological order, of those that are free the one with the lowest node first.

    The groups must be convex: no path leaves one and comes back.
    """
    import heapq

    home = {node: place for place, group in enumerate(groups) for node in group}
    edges = {(home[a], home[b]) for a, b in graph.edges if home[a] != home[b]}
    targets: list[list[int]] = [[] for _ in groups]
    missing = [0] * len(groups)
    for source, target in sorted(edges):
        targets[source].append(target)
        missing[target] += 1
    free = [(groups[place][0], place) for place, count in enumerate(missing) if count == 0]
    heapq.heapify(free)
    order: list[Group] = []
    while free:
        _, place = heapq.heappop(free)
        order.append(groups[place])
        for target in targets[place]:
            missing[target] -= 1
            if missing[target] == 0:
                heapq.heappush(free, (groups[target][0], target))
    return order


def _trunk(graph: CostGraph) -> list[bool]:
    """For every node whether each other one is before or after it."""
    count = len(graph.nodes)
    above, below = [0] * count, [0] * count
    for source, target in graph.edges:
        above[target] |= above[source] | 1 << source
    for source, target in reversed(graph.edges):
        below[source] |= below[target] | 1 << target
    return [(above[node] | below[node]).bit_count() == count - 1 for node in range(count)]
