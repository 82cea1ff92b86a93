"""What a pipeline costs, added up from its nodes: independent of the searches, which count in ticks."""

from __future__ import annotations

from math import fsum
from typing import TYPE_CHECKING

from maniple.strategies.pipeline.problem import Stage
from maniple.strategies.pipeline.stage_costs import synchronization_s, transfer_s, work_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maniple.strategies.pipeline.cost_graph import CostGraph
    from maniple.strategies.pipeline.problem import SegmentationProblem
    from maniple.strategies.pipeline.stage_costs import Assumptions
    from maniple.strategies.segmentation.pipeline_space import Part

__all__: list[str] = []


def stages(problem: SegmentationProblem, parts: Sequence[Part]) -> tuple[Stage, ...]:
    """The stages of a pipeline with their times and sizes."""
    crossing = cut_bytes(problem.graph, parts)
    return tuple(_stage(problem, parts, crossing, place) for place in range(len(parts)))


def cut_bytes(graph: CostGraph, parts: Sequence[Part]) -> list[int]:
    """The bytes that cross the cut after each stage: every output made before it and read after it, once."""
    home = {node: place for place, part in enumerate(parts) for node in part.nodes}
    crossing = [0] * len(parts)
    for node, targets in enumerate(graph.successors()):
        if targets:
            for place in range(home[node], max(home[target] for target in targets)):
                crossing[place] += graph.nodes[node].activation_bytes
    return crossing


def _stage(problem: SegmentationProblem, parts: Sequence[Part], crossing: Sequence[int], place: int) -> Stage:
    part, nodes = parts[place], problem.graph.nodes
    compute = fsum(nodes[node].compute_s for node in part.nodes)
    depth = len(part.path)
    # On several levels the replicas of the inner ones are counted level by level.
    innermost = part.path[-1][1] if len(problem.levels) == 1 else 1
    given = problem.assumptions
    load = fsum(work_s(given, nodes[node].compute_s, nodes[node].start_s, innermost) for node in part.nodes) * innermost
    shared = 1
    for level in range(len(problem.levels)):
        # Flat pipelines have one entry, of the innermost level.
        inward = depth - level
        replicas = part.path[inward - 1][1]
        same = [at for at, other in enumerate(parts) if other.path[:inward] == part.path[:inward]]
        group = [at for at, other in enumerate(parts) if other.path[: inward - 1] == part.path[: inward - 1]]
        parameters = fsum(nodes[node].parameter_bytes for at in same for node in parts[at].nodes)
        link = problem.levels[level]
        synchronization = synchronization_s(given, link, replicas, shared, parameters)
        borders = ([same[0] - 1] if same[0] > group[0] else []) + ([same[-1]] if same[-1] < group[-1] else [])
        transfers = [transfer_s(given, link, replicas, crossing[border]) for border in borders]
        load = _together(given, load / replicas, synchronization, transfers)
        shared *= link.members
    after = sum(other.replicas for other in parts[place + 1 :])
    received = crossing[place - 1] if place else 0
    held = problem.held_bytes(
        fsum(nodes[node].parameter_bytes for node in part.nodes),
        fsum(nodes[node].stored_bytes for node in part.nodes) + received,
        after,
        part.replicas,
    )
    return Stage(part.nodes, _devices(problem, parts, place), load, compute, held, crossing[place])


def _devices(problem: SegmentationProblem, parts: Sequence[Part], place: int) -> tuple[int, ...]:
    """The devices of a stage: every level's stages take the members of their group in order."""
    path, units = parts[place].path, [0]
    size = problem.devices
    for depth, (stage, replicas) in enumerate(path):
        size //= problem.levels[len(path) - 1 - depth].members
        siblings = {other.path[depth] for other in parts if other.path[:depth] == path[:depth]}
        offset = sum(count for number, count in siblings if number < stage)
        units = [unit + (offset + member) * size for unit in units for member in range(replicas)]
    return tuple(units)


def _together(given: Assumptions, work: float, synchronization: float, transfers: Iterable[float]) -> float:
    """The time of a stage whose work, synchronisation and transfers overlap or add up."""
    load = work + synchronization if given.synchronization == "add" else max(work, synchronization)
    return load + fsum(transfers) if given.transfers == "add" else max((load, *transfers))
