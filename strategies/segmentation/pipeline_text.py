"""A pipeline as plain data and as a table."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING

from maniple.strategies.pipeline.problem import Stage
from maniple.strategies.pipeline.stage_drawing import bars

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.strategies.dnn_partitioning.max_load import MaxLoad
    from maniple.strategies.dnn_partitioning.placement_problem import Placement
    from maniple.strategies.dnn_partitioning.sample_latency import SampleLatency
    from maniple.strategies.pipeline.cost_graph import CostGraph
    from maniple.strategies.pipeline.problem import Segmentation, SegmentationProblem

__all__: list[str] = []


def document(problem: SegmentationProblem, found: Segmentation, search_s: float) -> dict[str, object]:
    """The pipeline as the one JSON object that ``maniple partition --json`` prints.

    Args:
        problem: what was asked.
        found: the pipeline.
        search_s: seconds that the search took.
    """
    stages = [
        {
            "nodes": ids(problem.graph, stage.nodes),
            "replicas": stage.replicas,
            "devices": list(stage.devices),
            "load_s": stage.load_s,
            "memory_bytes": stage.memory_bytes,
            "sent_bytes": stage.sent_bytes,
        }
        for stage in found.stages
    ]
    levels = [
        {"members": level.members, "bandwidth": level.bandwidth if math.isfinite(level.bandwidth) else None}
        for level in problem.levels
    ]
    return {
        "graph": problem.graph.name,
        "objective": problem.goal,
        "levels": levels,
        "stages": stages,
        "bottleneck_s": found.bottleneck_s,
        "value_s": found.value_s,
        "lower_bound_s": found.lower_bound_s,
        "exact": found.exact,
        "gap": found.gap if math.isfinite(found.gap) else None,
        "states": found.states,
        "balance": found.balance,
        "search_s": search_s,
        "assumptions": asdict(problem.assumptions),
        "uncounted": problem.graph.uncounted or None,
    }


def text(problem: SegmentationProblem, found: Segmentation, search_s: float) -> str:
    """The pipeline as a table and a drawing."""
    rows: list[tuple[str, ...]] = [
        ("stage", "replicas", "nodes", "first", "last", "load s", "memory MB", "sent MB"),
    ]
    for number, stage in enumerate(found.stages):
        names = ids(problem.graph, stage.nodes)
        rows.append(
            (
                str(number),
                str(stage.replicas),
                str(len(names)),
                names[0],
                names[-1],
                f"{stage.load_s:.6f}",
                f"{stage.memory_bytes / 1e6:.1f}",
                f"{stage.sent_bytes / 1e6:.1f}",
            )
        )
    known = "exact" if found.exact else f"at most {found.gap:.2%} above the least"
    what, why = "bottleneck" if problem.goal == "throughput" else "latency", problem.graph.uncounted
    return "\n".join(
        [
            table(rows),
            "",
            bars(found.stages),
            "",
            f"{what} {found.value_s:.6f} s per mini-batch ({known}); lower bound {found.lower_bound_s:.6f} s",
            f"{found.states} states, searched in {search_s:.3f} s; worst stage over mean: {found.balance:.3f}",
            *([f"each micro-batch was counted to add starts of kernels alone: {why}"] if why else []),
        ]
    )


def placement_document(
    placement: Placement, found: MaxLoad | SampleLatency, objective: str, search_s: float
) -> dict[str, object]:
    """A placement on accelerators and CPUs as one JSON object."""
    stages = [
        {
            "device": share.kind,
            "nodes": ids(placement.graph, stage.nodes),
            "replicas": 1,
            "load_s": share.load_s,
            "memory_bytes": share.size_bytes,
        }
        for share, stage in zip(found.shares, placement_stages(placement, found), strict=True)
    ]
    loads = [share.load_s for share in found.shares]
    return {
        "graph": placement.graph.name,
        "objective": objective,
        "stages": stages,
        "bottleneck_s": max(loads),
        "value_s": found.value_s,
        "lower_bound_s": found.lower_bound_s,
        "exact": found.exact,
        "gap": found.gap if math.isfinite(found.gap) else None,
        "states": found.states,
        "search_s": search_s,
    }


def placement_text(placement: Placement, found: MaxLoad | SampleLatency, objective: str, search_s: float) -> str:
    """A placement as a table."""
    rows = [("device", "nodes", "load s", "memory MB")]
    for share in found.shares:
        count = sum(len(placement.atoms[atom].nodes) for atom in share.atoms)
        rows.append((share.kind, str(count), f"{share.load_s:.6f}", f"{share.size_bytes / 1e6:.1f}"))
    known = "exact" if found.exact else f"at most {found.gap:.2%} above the least"
    return "\n".join(
        [
            table(rows),
            "",
            f"{objective} {found.value_s:.7f} s per sample ({known}); lower bound {found.lower_bound_s:.7f} s",
            f"{found.states} states, searched in {search_s:.3f} s",
        ]
    )


def placement_stages(placement: Placement, found: MaxLoad | SampleLatency) -> tuple[Stage, ...]:
    """The shares of a placement as stages, for drawings."""
    stages: list[Stage] = []
    for share in found.shares:
        nodes = sorted(node for atom in share.atoms for node in placement.atoms[atom].nodes)
        stages.append(Stage(tuple(nodes), (len(stages),), share.load_s, share.load_s, share.size_bytes, 0))
    return tuple(stages)


def ids(graph: CostGraph, places: Sequence[int]) -> list[str]:
    """The file's (or the graph's) ids of some nodes and of what runs beside them."""
    return [name for place in places for name in (graph.nodes[place].id, *graph.nodes[place].beside)]


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows in columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
