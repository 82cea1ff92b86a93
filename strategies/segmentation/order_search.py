"""BaPipe's exploration: every pipeline order with its best partition, the fastest that fits.

(Zhao et al., BaPipe, arXiv 2012.12544.) Every order has its own way of overlapping transfers and its own number of
micro-batches in flight; for each, and for each number of micro-batches, the partition that finishes a mini-batch
soonest within the devices' memory is found, and timed event by event.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import fsum
from typing import TYPE_CHECKING, final

from maniple.process.error import RequestError
from maniple.strategies.pipeline.pipeline_timing import StageTimes, pipeline_s
from maniple.strategies.pipeline.problem import SegmentationProblem
from maniple.strategies.pipeline.stage_costs import Assumptions, Order, Overlap, synchronization_s, transfer_s, work_s
from maniple.strategies.segmentation.matching import Matching
from maniple.strategies.segmentation.segment import segment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maniple.strategies.pipeline.cost_graph import CostGraph
    from maniple.strategies.pipeline.fleet import Fleet
    from maniple.strategies.pipeline.problem import Segmentation
    from maniple.strategies.pipeline.stage_costs import Level

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True)
class Variation:
    """A pipeline order with its way of moving data.

    Args:
        name: what people call it.
        order: the order of actions, which fixes how many micro-batches are in flight.
        transfers: whether transfers overlap with computation.
        asynchronous: whether it needs devices that compute and transfer, or run both passes, at the same time by
            themselves.
    """

    name: str
    order: Order
    transfers: Overlap
    asynchronous: bool = False


VARIATIONS = (
    Variation("1f1b-as", "1f1b", "overlap", asynchronous=True),
    Variation("fbp-as", "fbp", "overlap", asynchronous=True),
    Variation("1f1b-sno", "1f1b", "add"),
    Variation("1f1b-so", "1f1b-so", "overlap"),
    Variation("gpipe", "gpipe", "add"),
    Variation("gpipe-o", "gpipe", "overlap"),
)
"""What is explored: BaPipe's four, and GPipe with and without overlapped transfers."""


@final
@dataclass(frozen=True, slots=True)
class Candidate:
    """An order with a partition.

    Args:
        variation: the order.
        micro_batches: into how many the mini-batch is cut.
        segmentation: the partition.
        step_s: seconds of a mini-batch, event by event, weights' synchronisation included.
        asked: the partition search's problem, with the assumptions that it was found under.
        times: what a micro-batch takes in each stage.
    """

    variation: Variation
    micro_batches: int
    segmentation: Segmentation
    step_s: float
    asked: SegmentationProblem
    times: tuple[StageTimes, ...]


def explore(
    graph: CostGraph,
    level: Level,
    *,
    memory_bytes: float | None = None,
    replicate: bool = False,
    asynchronous: bool = False,
    micro_batches: Sequence[int] = (1, 2, 4, 8, 16),
    given: Assumptions | None = None,
) -> tuple[Candidate, ...]:
    """The candidates that fit, the fastest first; of equals the one that comes first among the variations.

    Args:
        graph: the graph with its costs.
        level: the devices and their links.
        memory_bytes: of each device; None: no limit.
        replicate: whether a stage may run on several devices.
        asynchronous: whether the devices overlap by themselves, so that the -as variations are to be had.
        micro_batches: the numbers to try.
        given: the other assumptions.

    Raises:
        RequestError: nothing fits.
    """
    found: list[Candidate] = []
    refusal: RequestError | None = None
    for variation, assumed in _explored(micro_batches, given, asynchronous=asynchronous):
        try:
            problem = SegmentationProblem(graph, (level,), replicate, memory_bytes, "latency", assumed)
            segmentation = segment(problem)
        except RequestError as error:
            refusal = error
            continue
        found += _candidates(variation, problem, segmentation, stage_times(problem, segmentation))
    if not found:
        raise refusal or RequestError(f"{graph.name}: expected at least one number of micro-batches to try")
    return tuple(sorted(found, key=lambda candidate: candidate.step_s))


def explore_matched(
    costs: tuple[CostGraph, ...],
    fleet: Fleet,
    level: Level,
    *,
    asynchronous: bool = False,
    micro_batches: Sequence[int] = (1, 2, 4, 8, 16),
) -> tuple[Candidate, ...]:
    """The candidates whose stages are matched to unequal processors, one processor each, the fastest first.

    For every order, every number of micro-batches and every number of processors the pipeline with the least slowest
    stage that fits; none where nothing does.

    Args:
        costs: the graph with what it takes on a processor of each class.
        fleet: the processors.
        level: so many of them, as a partition search of equal ones would see them.
        asynchronous: see `explore`.
        micro_batches: the numbers to try.
    """
    found: list[Candidate] = []
    for variation, assumed in _explored(micro_batches, None, asynchronous=asynchronous):
        asked = SegmentationProblem(costs[0], (level,), False, None, "throughput", assumed)
        matching = Matching(asked, costs, fleet)
        for segmentation in matching.pipelines():
            found += _candidates(variation, asked, segmentation, matching.times(segmentation))
    return tuple(sorted(found, key=lambda candidate: candidate.step_s))


def _explored(
    micro_batches: Sequence[int], given: Assumptions | None, *, asynchronous: bool
) -> Iterator[tuple[Variation, Assumptions]]:
    """The variations that are to be had, with what is taken for granted of them, for each number of micro-batches."""
    for variation in VARIATIONS:
        for count in micro_batches if asynchronous or not variation.asynchronous else ():
            known = given or Assumptions()
            own = replace(known, order=variation.order, transfers=variation.transfers, micro_batches=count)
            yield variation, own


def _candidates(
    variation: Variation, asked: SegmentationProblem, found: Segmentation, times: tuple[StageTimes, ...]
) -> list[Candidate]:
    """A partition as a candidate; none where the variation's condition does not hold."""
    if variation.name == "1f1b-so" and not _hides_transfers(times):
        return []
    count = asked.assumptions.micro_batches
    step = pipeline_s(times, variation.order, count, variation.transfers) + _synchronization(asked, found)
    return [Candidate(variation, count, found, step, asked, times)]


def stage_times(problem: SegmentationProblem, found: Segmentation) -> tuple[StageTimes, ...]:
    """What one micro-batch takes in every stage."""
    nodes, given = problem.graph.nodes, problem.assumptions
    times = []
    for place, stage in enumerate(found.stages):
        last = place == len(found.stages) - 1
        # The slower end of a cut sets its pace; both directions are alike.
        narrow = stage.replicas if last else min(stage.replicas, found.stages[place + 1].replicas)
        moved = 0.0 if last else transfer_s(given, problem.levels[0], narrow, stage.sent_bytes)
        chosen = [nodes[node] for node in stage.nodes]
        forward = fsum(work_s(given, node.forward_s, node.forward_start_s, stage.replicas) for node in chosen)
        backward = fsum(work_s(given, node.backward_s, node.backward_start_s, stage.replicas) for node in chosen)
        m = given.micro_batches
        times.append(StageTimes(forward / m, backward / m, moved / m / 2))
    return tuple(times)


def _hides_transfers(times: Sequence[StageTimes]) -> bool:
    """Whether 1F1B-SO's condition holds: no transfer takes longer than a pass next to it."""
    return all(
        before.transfer_s <= min(before.forward_s, before.backward_s, after.forward_s, after.backward_s)
        for before, after in pairwise(times)
    )


def _synchronization(problem: SegmentationProblem, found: Segmentation) -> float:
    """Seconds in which replicas synchronise weights after the flush."""
    if problem.assumptions.synchronization == "overlap":
        return 0.0
    nodes = problem.graph.nodes
    return max(
        synchronization_s(
            problem.assumptions,
            problem.levels[0],
            stage.replicas,
            1,
            fsum(nodes[node].parameter_bytes for node in stage.nodes),
        )
        for stage in found.stages
    )
