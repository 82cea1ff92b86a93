"""Local improvement of a pipeline: all ideals near its cuts, exactly, the rest of every stage held together.

line of nodes    a b c d | e f g h i | j k        | cut
free             . . c d   e f . . i   j k        windows of two nodes on either side
coarse           (a b) c d e f (g h) i j k
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.strategies.segmentation.coarse_graph import CoarseGraph, Group
from maniple.strategies.segmentation.linear_order import ORDERS
from maniple.strategies.segmentation.space import Part, Space

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maniple.strategies.segmentation.cost_graph import CostGraph
    from maniple.strategies.segmentation.problem import SegmentationProblem
    from maniple.strategies.segmentation.space import NodeCosts

__all__: list[str] = []

Pipeline = tuple[tuple[Part, ...], int]
"""The stages and the ticks of the value that is minimised."""


def lines(graph: CostGraph) -> list[list[Group]]:
    """The graph made linear in several orders, every node a group."""
    found: list[list[Group]] = []
    for order in ORDERS:
        line: list[Group] = [(node,) for node in order(graph)]
        if line not in found:
            found.append(line)
    return found


def refined(
    problem: SegmentationProblem,
    costs: NodeCosts,
    start: Pipeline,
    solve: Callable[[Space, int | None], Pipeline | None],
    limit: int,
) -> Pipeline:
    """The pipeline after improvements that look at up to ``limit`` ideals around all of its cuts at once.

    Windows around the cuts grow until their ideals are too many; whenever a better pipeline is found, the search
    goes on around its cuts.

    Args:
        problem: what is asked.
        costs: of its nodes.
        start: a pipeline.
        solve: the best pipeline of a space below a ceiling.
        limit: ideals of one neighbourhood.
    """
    best, width = start, 4
    # The line on which the nodes of each stage lie together.
    line = _line(problem.graph, best[0])
    while width <= 2 * len(line):
        coarse = CoarseGraph.of(problem.graph, _windows(line, best[0], width))
        space = Space.enumerated(problem, costs, coarse, limit)
        if space is None:
            break
        better = solve(space, best[1])
        if better is None:
            width *= 2
        else:
            best = better
            line = _line(problem.graph, best[0])
    return best


def _line(graph: CostGraph, parts: Sequence[Part]) -> list[int]:
    """The nodes by stage, and in the graph's order within each."""
    return [node for part in parts for node in part.nodes]


def _windows(line: Sequence[int], parts: Sequence[Part], width: int) -> list[Group]:
    """The line with the nodes that are within ``width`` places of a cut alone, and those between in groups."""
    free = [False] * len(line)
    place = 0
    for part in parts[:-1]:
        place += len(part.nodes)
        for near in range(max(0, place - width), min(len(line), place + width)):
            free[near] = True
    groups: list[Group] = []
    held: list[int] = []
    for at, node in enumerate(line):
        if free[at]:
            groups += [tuple(sorted(held))] if held else []
            groups.append((node,))
            held = []
        else:
            held.append(node)
    return groups + ([tuple(sorted(held))] if held else [])
