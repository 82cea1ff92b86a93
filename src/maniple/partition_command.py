"""The command `maniple partition`: cut a profile or a model into pipeline stages and print them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from maniple.process.error import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.strategies.dnn_partitioning.max_load import MaxLoad
    from maniple.strategies.dnn_partitioning.sample_latency import SampleLatency
    from maniple.strategies.pipeline.cost_graph import CostGraph
    from maniple.strategies.pipeline.problem import Goal, SegmentationProblem, Stage
    from maniple.strategies.pipeline.stage_costs import Order, Overlap

__all__: list[str] = []


@click.command()
@click.argument("source", metavar="FILE_OR_MODEL")
@click.option("--stages", type=int, required=True, help="The most devices to use.")
@click.option("--replicate", is_flag=True, help="Let a stage run on several devices.")
@click.option("--machine", "machine_name", metavar="M", help="Preset or TOML file that gives bandwidths and levels.")
@click.option("--bandwidth", metavar="B[,B...]", help="Bytes per second of a device's link, innermost level first.")
@click.option("--levels", metavar="4x2", help="Devices of a group, groups of a group, ...; their product is --stages.")
@click.option("--memory", metavar="SIZE", help="Bytes that each device holds at most, such as 16GiB.")
@click.option("--objective", default="throughput", show_default=True, help="throughput or latency.")
@click.option("--batch", type=int, help="Samples of a model's mini-batch.")
@click.option("--costs", default="analytic", show_default=True, help="A model's: analytic, measured, or a file.")
@click.option("--order", help="Pipeline order.  [default: pipedream; for latency 1f1b]")
@click.option("--micro-batches", type=int, help="Parts of a mini-batch.  [default: 1; for latency 8]")
@click.option("--transfers", help="Transfers overlap with work, or add.  [default: overlap; in placement files add]")
@click.option("--synchronization", help="Weights' synchronisation adds to work, or overlaps.  [default: add]")
@click.option("--crossings", type=float, help="How often a cut tensor crosses its cut.  [default: 2]")
@click.option("--compression", type=float, help="Divides the bytes of cut tensors.  [default: 1]")
@click.option("--synchronized", type=float, help="Bytes moved per byte of weights, times r / (r - 1).  [default: 4]")
@click.option("--gradients", type=float, help="Bytes of gradients per byte of weights.  [default: 1]")
@click.option("--optimizer", type=float, help="Bytes of optimizer state per byte of weights.  [default: 1]")
@click.option("--states", type=int, help="The most ideals to enumerate.")
@click.option("-o", "output", type=click.Path(path_type=Path), help="Drawing of the cut: a .dot or .svg file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def partition(
    source: str,
    stages: int,
    replicate: bool,  # noqa: FBT001  (click passes flags by name)
    machine_name: str | None,
    bandwidth: str | None,
    levels: str | None,
    memory: str | None,
    objective: str,
    batch: int | None,
    costs: str,
    order: Order | None,
    micro_batches: int | None,
    transfers: Overlap | None,
    synchronization: Overlap | None,
    crossings: float | None,
    compression: float | None,
    synchronized: float | None,
    gradients: float | None,
    optimizer: float | None,
    states: int | None,
    output: Path | None,
    as_json: bool,  # noqa: FBT001
) -> int:
    """Cut a profile or a model into balanced pipeline stages.

    FILE_OR_MODEL is a profile (PipeDream's text or dnn-partitioning's JSON), a model of the zoo, or file.py:callable.
    """
    from maniple import partition_request as request
    from maniple.request import amount, machine_of
    from maniple.strategies.pipeline.problem import MOST_STATES, SegmentationProblem

    request.refuse_stages(stages)
    if output is not None and output.suffix not in {".dot", ".svg"}:
        raise RequestError(f"-o {output}: expected a file that ends with .dot or .svg")
    goal, limit = request.goal_of(objective), None if memory is None else amount("--memory", memory)
    moved = (transfers, synchronization, crossings, compression, synchronized)
    given = (order, micro_batches, *moved, gradients, optimizer)
    machine = None if machine_name is None else machine_of(machine_name)
    graph = request.graph_of(source, machine, batch, costs, request.parts_of(goal, micro_batches))
    if graph.devices is not None:
        request.refuse_given(source, replicate or None, machine_name, bandwidth, levels, *given)
        found = _place(graph, stages, goal, limit, states, overlap=transfers == "overlap")
    else:
        asked = request.levels_of(stages, machine, bandwidth, levels)
        most = MOST_STATES if states is None else states
        assumptions = request.assumptions_of(goal, *given)
        found = _segment(SegmentationProblem(graph, asked, replicate, limit, goal, assumptions, most))
    document, text, drawn = found
    if output is not None:
        _draw(output, graph, drawn)
    click.echo(json.dumps(document) if as_json else text)
    return 0


Found = tuple["dict[str, object]", str, "Sequence[Stage]"]
"""The pipeline as plain data, as a table, and as stages to draw."""


def _segment(problem: SegmentationProblem) -> Found:
    """Cut a graph of costs into stages."""
    from maniple.strategies.segmentation.pipeline_text import document, text
    from maniple.strategies.segmentation.segment import load_compiled, segment

    load_compiled()
    begun = time.perf_counter()
    found = segment(problem)
    spent = time.perf_counter() - begun
    return document(problem, found, spent), text(problem, found, spent), found.stages


def _place(
    graph: CostGraph, stages: int, goal: Goal, limit: float | None, states: int | None, *, overlap: bool
) -> Found:
    """Solve dnn-partitioning's problems: the largest load, or the time of one sample."""
    from maniple.strategies.dnn_partitioning import max_load, sample_latency
    from maniple.strategies.dnn_partitioning.placement_problem import Placement
    from maniple.strategies.segmentation.pipeline_text import placement_document, placement_stages, placement_text

    placement = Placement.of(graph, accelerators=stages, memory_bytes=limit)
    begun = time.perf_counter()
    if goal == "throughput":
        found: MaxLoad | SampleLatency = max_load.max_load(
            placement, overlap=overlap, states=states or max_load.MOST_IDEALS
        )
    elif overlap:
        raise RequestError("--transfers overlap: the time of one sample adds them; leave it out, or ask for throughput")
    else:
        found = sample_latency.sample_latency(placement, states or sample_latency.MOST_IDEALS)
    spent = time.perf_counter() - begun
    what = "max-load" if goal == "throughput" else "latency"
    return (
        placement_document(placement, found, what, spent),
        placement_text(placement, found, what, spent),
        placement_stages(placement, found),
    )


def _draw(output: Path, graph: CostGraph, stages: Sequence[Stage]) -> None:
    """Write a drawing of the cut."""
    from maniple.process.file_entry import write_atomically
    from maniple.strategies.pipeline.stage_drawing import dot, svg

    write_atomically(output, dot(graph, stages) if output.suffix == ".dot" else svg(graph, stages))
