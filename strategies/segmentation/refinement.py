"""Local improvement of a pipeline: all ideals near its cuts, exactly, the rest of every stage held together.

line of nodes    a b c d | e f g h i | j k        | cut
free             . . c d   e f . . i   j k        windows of two nodes on either side
coarse           (a b) c d e f (g h) i j k
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.strategies.pipeline.coarse_graph import CoarseGraph, Group
from maniple.strategies.pipeline.linear_order import ORDERS
from maniple.strategies.segmentation.pipeline_space import Part, Space

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maniple.strategies.pipeline.cost_graph import CostGraph
    from maniple.strategies.pipeline.problem import SegmentationProblem
    from maniple.strategies.segmentation.pipeline_space import NodeCosts

__all__: list[str] = []

_FIRST_WIDTH = 4

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


def refine(
    problem: SegmentationProblem,
    costs: NodeCosts,
    start: Pipeline,
    solve: Callable[[Space, int | None], Pipeline | None],
    limit: int,
    rounds: int = 3,
) -> Pipeline:
    """The pipeline after improvements that look at up to ``limit`` ideals around all of its cuts at once.

    Windows around all cuts grow until their ideals are too many; then those around every single cut do, in turn.
    Whenever a better pipeline is found, the search goes on around its cuts.

    Args:
        problem: what is asked.
        costs: of its nodes.
        start: a pipeline.
        solve: the best pipeline of a space below a ceiling.
        limit: ideals of one neighbourhood.
        rounds: how often to go through the single cuts.
    """
    best, width = _grow(problem, costs, start, solve, limit, None, _FIRST_WIDTH)
    for _ in range(rounds):
        before = best[1]
        for cut in range(len(best[0]) - 1):
            if cut < len(best[0]) - 1:
                best, _ = _grow(problem, costs, best, solve, limit, cut, width)
        if best[1] == before:
            break
    return best


def _grow(
    problem: SegmentationProblem,
    costs: NodeCosts,
    start: Pipeline,
    solve: Callable[[Space, int | None], Pipeline | None],
    limit: int,
    cut: int | None,
    width: int,
) -> tuple[Pipeline, int]:
    """The best pipeline in windows around one cut or all that grow while they can, and the first width too large."""
    best, count = start, len(problem.graph.nodes)
    while width <= 2 * count:
        line = [node for part in best[0] for node in part.nodes]
        coarse = CoarseGraph.of(problem.graph, _windows(line, best[0], width, cut))
        space = Space.enumerate_ideals(problem, costs, coarse, limit)
        if space is None:
            break
        better = solve(space, best[1])
        if better is None:
            width *= 2
        else:
            best = better
            cut = None if cut is None else min(cut, len(best[0]) - 2)
            if cut == -1:
                break
    return best, width


def _windows(line: Sequence[int], parts: Sequence[Part], width: int, cut: int | None) -> list[Group]:
    """The line with the nodes within ``width`` places of a cut (of one, or of all) alone, those between in groups.

    A group ends at every cut, so that the pipeline itself is among those that are looked at.
    """
    free = [False] * len(line)
    ends: set[int] = set()
    place = 0
    for number, part in enumerate(parts[:-1]):
        place += len(part.nodes)
        ends.add(place)
        if cut is None or cut == number:
            for near in range(max(0, place - width), min(len(line), place + width)):
                free[near] = True
    groups: list[Group] = []
    held: list[int] = []
    for at, node in enumerate(line):
        if at in ends and held:
            groups.append(tuple(sorted(held)))
            held = []
        if free[at]:
            groups += [tuple(sorted(held))] if held else []
            groups.append((node,))
            held = []
        else:
            held.append(node)
    return groups + ([tuple(sorted(held))] if held else [])
