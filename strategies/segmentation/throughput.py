"""The pipeline with the least slowest stage."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from maniple.process.error import RequestError
from maniple.strategies.pipeline.coarse_graph import CoarseGraph, compress
from maniple.strategies.segmentation.hierarchy import MOST_TABLED, Hierarchy
from maniple.strategies.segmentation.pipeline_cost import stages
from maniple.strategies.segmentation.pipeline_space import MOST_PAIRED, NodeCosts, Space
from maniple.strategies.segmentation.refinement import Pipeline, lines, refine
from maniple.strategies.segmentation.relaxation import two_level_bound

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maniple.strategies.pipeline.problem import SegmentationProblem
    from maniple.strategies.segmentation.pipeline_space import Part

__all__: list[str] = []

_MOST_SWEPT = 70_000_000
"""Numbers of one sweep's scratch: ideals times pairs of replicas and devices."""
TWO = 2
"""Levels of the machines for which there is a bound that knows of communication."""
_NEIGHBOURHOOD = 200_000
_CLOSE_ENOUGH = 1e-4
"""The gap that no improvement is looked for below."""
_PAIRED_NEIGHBOURHOOD = 4_000


@final
@dataclass(frozen=True, slots=True)
class Answer:
    """A pipeline and what is known about better ones.

    Args:
        parts: its stages.
        ticks: the value that was minimised.
        bound: ticks that no pipeline of the problem goes below.
        states: ideals of the last space that was searched whole.
    """

    parts: tuple[Part, ...]
    ticks: int
    bound: int
    states: int


def throughput(problem: SegmentationProblem, costs: NodeCosts) -> Answer:
    """The pipeline with the least slowest stage, and a bound.

    The ideals of the graph are searched exactly where they can be enumerated. Otherwise the graph is made linear in
    several orders and compressed along its branches, and the best pipeline is improved around its cuts.

    Raises:
        RequestError: no pipeline keeps the memory limit.
    """
    coarse = CoarseGraph.whole(problem.graph)
    space = Space.enumerate_ideals(problem, costs, coarse, most_states(problem))
    bound, states = floor(problem, costs), 0
    if space is not None:
        states = len(space.lattice)
        if states <= reach(problem):
            found = best_of(space, None)
            if found is None:
                raise does_not_fit(problem)
            return Answer(*found, found[1], states)
        if len(problem.levels) == 1:
            free = space.fastest() if space.passes_along else None
            if free is not None:
                bound = free.ticks
                parts = space.parts(free.cuts)
                if fits(problem, parts):
                    return Answer(parts, free.ticks, free.ticks, states)
    answer = approximate(problem, costs, bound, states, best_of)
    if len(problem.levels) != TWO:
        return answer
    if space is None:  # a bound needs less room than a search
        space = Space.enumerate_ideals(problem, costs, coarse, problem.states)
    return answer if space is None else replace(answer, bound=two_level_bound(space, answer.bound, answer.ticks))


def approximate(
    problem: SegmentationProblem,
    costs: NodeCosts,
    bound: int,
    states: int,
    solve: Callable[[Space, int | None], Pipeline | None],
) -> Answer:
    """The best pipeline of coarser graphs, improved around its cuts.

    Args:
        problem: what is asked.
        costs: of its nodes.
        bound: ticks that no pipeline goes below.
        states: ideals that were searched already.
        solve: the best pipeline of a space below a ceiling.

    Raises:
        RequestError: none keeps the memory limit.
    """
    swept = solve is best_of and reach(problem) > MOST_PAIRED
    found: list[Pipeline] = []
    groups = compress(problem.graph)
    if len(groups) < len(problem.graph.nodes):
        limit = most_states(problem) if swept else min(most_states(problem), reach(problem), _PAIRED_NEIGHBOURHOOD)
        space = Space.enumerate_ideals(problem, costs, CoarseGraph.of(problem.graph, groups), limit)
        if space is not None:
            states = max(states, len(space.lattice))
            pipeline = solve(space, None)
            found += [] if pipeline is None else [pipeline]
    for line in lines(problem.graph):
        ceiling = min((ticks for _, ticks in found), default=None)
        pipeline = solve(Space.line(problem, costs, CoarseGraph.of(problem.graph, line)), ceiling)
        found += [] if pipeline is None else [pipeline]
    if not found:
        raise does_not_fit(problem)
    best = min(found, key=lambda pipeline: pipeline[1])
    if best[1] - bound > bound * _CLOSE_ENOUGH:
        limit = _NEIGHBOURHOOD if swept else min(_PAIRED_NEIGHBOURHOOD, reach(problem))
        # Pairs of ideals take much longer than sweeps: single cuts are left as they are.
        best = refine(problem, costs, best, solve, limit, rounds=3 if swept else 0)
    return Answer(*best, bound, max(states, len(problem.graph.nodes) + 1))


def best_of(space: Space, ceiling: int | None) -> Pipeline | None:
    """The best pipeline of a space that keeps the memory limit and is below a ceiling."""
    problem = space.problem
    if len(problem.levels) > 1:
        return Hierarchy(space).solve(ceiling)
    found = space.fastest(ceiling)
    if found is None:
        return None
    parts = space.parts(found.cuts)
    if fits(problem, parts):
        return parts, found.ticks
    fitting = space.fitting(ceiling, problem.memory_bytes)
    return None if fitting is None else (space.parts(fitting.cuts), fitting.ticks)


def fits(problem: SegmentationProblem, parts: Sequence[Part]) -> bool:
    """Whether every device holds its stage."""
    limit = problem.memory_bytes
    return limit is None or all(stage.memory_bytes <= limit for stage in stages(problem, parts))


def reach(problem: SegmentationProblem) -> int:
    """The most ideals that one search of the problem can go through exactly."""
    if len(problem.levels) > 1:
        return MOST_TABLED
    swept = problem.memory_bytes is None and (not problem.replicate or problem.assumptions.synchronization == "add")
    return problem.states if swept else MOST_PAIRED


def most_states(problem: SegmentationProblem) -> int:
    """The most ideals to enumerate."""
    replicas = problem.levels[0].members if problem.replicate else 1
    pairs = sum(problem.devices - m for m in range(replicas))
    return max(2, min(problem.states, _MOST_SWEPT // pairs))


def floor(problem: SegmentationProblem, costs: NodeCosts) -> int:
    """Ticks that no pipeline of the problem goes below, whatever its graph looks like."""
    if len(problem.levels) == 1:
        return costs.floor(problem.devices)
    total, most = int(costs.work[:, 0].sum()), problem.devices if problem.replicate else 1
    return max(total // problem.devices - len(costs.work), int(costs.work[:, 0].max()) // most - 1, 0)


def does_not_fit(problem: SegmentationProblem) -> RequestError:
    """The refusal of a memory limit that no pipeline was found for."""
    return RequestError(
        f"{problem.graph.name}: memory: no pipeline on {problem.devices} devices holds at most "
        f"{problem.memory_bytes:.0f} bytes on each; give more devices or memory, or more micro-batches"
    )
