"""The pipeline that is done soonest with one mini-batch of several micro-batches.

With m micro-batches, stage i taking F_i + B_i for each and x_i over the cut after it, both ways:

    1F1B (with a flush)    sum(F_i + B_i + x_i) + (m - 1) max(F_i + B_i, x_i) + max(synchronisation)
    GPipe                  the same with (m - 1) (max(F_i, x_i / 2) + max(B_i, x_i / 2))

(Huang et al., GPipe, NeurIPS 2019; Narayanan et al., PipeDream-Flush.) The maxima are bounded from above and bisected;
under bounds the sum is a dynamic programme. What bounds cannot contain a better pipeline is never looked at: of a
pipeline that is known, here the one with the least slowest stage, follows how large the maxima of a better one may be,
for its stages together take at least what all nodes do.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from math import fsum
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.process.error import RequestError, nearest
from maniple.strategies.pipeline import pair_kernels as pairs
from maniple.strategies.pipeline.coarse_graph import CoarseGraph
from maniple.strategies.pipeline.stage_costs import (
    FLUSHED,
    cut_ticks,
    per_replica,
    synchronization_s,
    transfer_s,
    work_s,
)
from maniple.strategies.segmentation.pipeline_cost import cut_bytes
from maniple.strategies.segmentation.pipeline_space import MOST_PAIRED, Space, trace_cuts
from maniple.strategies.segmentation.throughput import Answer, approximate, does_not_fit, fits, most_states

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.strategies.pipeline.ideals import Ticks
    from maniple.strategies.pipeline.problem import SegmentationProblem
    from maniple.strategies.segmentation.bottleneck import Cut
    from maniple.strategies.segmentation.pipeline_space import NodeCosts, Part
    from maniple.strategies.segmentation.refinement import Pipeline

__all__: list[str] = []

_MOST_STEPS = 6_000_000_000
"""Stages times situations that one search looks at, at most; then the gap is stated."""
_MOST_SOLVES = 400


def latency(problem: SegmentationProblem, costs: NodeCosts) -> Answer:
    """The pipeline with the least time of one mini-batch, and a bound.

    Raises:
        RequestError: a machine of several levels, an order without a flush, or a memory limit that nothing keeps.
    """
    if len(problem.levels) > 1:
        raise RequestError(
            "latency: expected a machine of one level; give one bandwidth (the slowest), or ask for throughput"
        )
    if problem.assumptions.order not in FLUSHED:
        raise RequestError(
            f"latency: expected an order that ends with a flush, got {problem.assumptions.order!r}"
            f"{nearest(problem.assumptions.order, FLUSHED)}"
        )
    limit = min(most_states(problem), MOST_PAIRED)
    space = Space.enumerate_ideals(problem, costs, CoarseGraph.whole(problem.graph), limit)
    if space is None:
        return approximate(problem, costs, _floor(problem, costs), 0, soonest)
    answer = _Search(space).run(None)
    if answer is None:
        raise does_not_fit(problem)
    return answer


def soonest(space: Space, ceiling: int | None) -> Pipeline | None:
    """The pipeline of a space that is done soonest, or None where none is below the ceiling."""
    answer = _Search(space).run(ceiling)
    return None if answer is None else (answer.parts, answer.ticks)


def fill_s(problem: SegmentationProblem, parts: Sequence[Part]) -> float:
    """Seconds of one mini-batch through a pipeline; each end of a cut is charged half of its transfers."""
    graph, given, level, m = problem.graph, problem.assumptions, problem.levels[0], problem.assumptions.micro_batches
    crossing = cut_bytes(graph, parts)
    split = given.order == "gpipe"
    total, slots, synchronization = 0.0, [0.0, 0.0], 0.0
    for place, part in enumerate(parts):
        nodes = [graph.nodes[node] for node in part.nodes]
        forward = fsum(work_s(given, n.forward_s, n.forward_start_s, part.replicas) for n in nodes) / m
        backward = fsum(work_s(given, n.backward_s, n.backward_start_s, part.replicas) for n in nodes) / m
        sizes = [crossing[at] for at in (place - 1, place) if 0 <= at < len(parts) - 1]
        transfers = [transfer_s(given, level, part.replicas, size) / m for size in sizes]
        total += forward + backward + fsum(transfers) / 2
        phases = [forward, backward] if split else [forward + backward, 0.0]
        for phase, work in enumerate(phases[: 2 if split else 1]):
            moved = [transfer / (2 if split else 1) for transfer in transfers]
            slot = work + fsum(moved) if given.transfers == "add" else max([work, *moved])
            slots[phase] = max(slots[phase], slot)
        weights = fsum(node.parameter_bytes for node in nodes)
        synchronization = max(synchronization, synchronization_s(given, level, part.replicas, 1, weights))
    if given.synchronization == "overlap":
        synchronization = 0.0
    return total + (m - 1) * fsum(slots) + synchronization


@final
@dataclass(frozen=True, slots=True, order=True)
class _Box:
    """Bounds between which the three maxima are looked for.

    Args:
        bound: no pipeline in the box is below it.
        number: breaks ties.
        low: least slots and synchronisation.
        high: their most.
        total: the least sum of fill times under ``high``.
        maxima: of the pipeline that has it.
    """

    bound: int
    number: int
    low: tuple[int, ...]
    high: tuple[int, ...]
    total: int
    maxima: tuple[int, ...]


@final
class _Search:
    """Branch and bound over the maxima; every box is solved by a dynamic programme."""

    def __init__(self, space: Space) -> None:
        self._space = space
        problem, costs = space.problem, space.costs
        given, m = problem.assumptions, problem.assumptions.micro_batches
        replicas = costs.work.shape[1]
        forward = np.array([(node.forward_s, node.forward_start_s) for node in problem.graph.nodes])
        backward = np.array([(node.backward_s, node.backward_start_s) for node in problem.graph.nodes])
        split = given.order == "gpipe"
        first, second = (forward, backward) if split else (forward + backward, np.zeros_like(backward))
        synchronization = costs.synchronization if given.synchronization == "add" else 0 * costs.synchronization
        phases = [per_replica(given, each, replicas, costs.clock, m) for each in (first, second)]
        self._least = int((phases[0] + phases[1]).min(axis=1).sum())
        self._fill = pairs.Fill(
            self._totals(phases[0]),
            self._totals(phases[1]),
            self._totals(synchronization),
            cut_ticks(space.crossing, problem.levels[0], given, replicas, costs.clock) // m,
            2 if split else 1,
            given.transfers == "add",
        )
        self._holdings = space.holdings(problem.memory_bytes)
        self._weights = (m - 1, m - 1 if split else 0, 1)
        self._solves = 0
        self._most_solves = 1

    def run(self, ceiling: int | None) -> Answer | None:
        """The best pipeline below a ceiling with the least bound of what was not looked at."""
        best, value = self._known(), int(pairs.INFINITE) if ceiling is None else ceiling
        best = best if best is not None and best[1] < value else None
        value = value if best is None else best[1]
        high = tuple(int(table[-1].max()) + int(self._fill.transfer.max()) * 2 for table in self._fill[:3])
        high = self._within(high, value)
        self._most_solves = max(8, min(_MOST_SOLVES, _MOST_STEPS // self._steps(high)))
        boxes = [] if (root := self._solve((0, 0, 0), high, 0)) is None else [root[0]]
        if root is not None and self._value(root[0]) < value:
            best = (root[1], self._value(root[0]))
            value = best[1]
        number = 1
        while boxes and boxes[0].bound < value and self._solves < self._most_solves:
            box = heapq.heappop(boxes)
            gaps = [w * (top - low) for w, top, low in zip(self._weights, box.maxima, box.low, strict=True)]
            axis = gaps.index(max(gaps))
            middle = (box.low[axis] + box.maxima[axis]) // 2
            # The box's own pipeline is in the upper half, which needs no new solution.
            low = (*box.low[:axis], middle + 1, *box.low[axis + 1 :])
            heapq.heappush(boxes, self._box(number, low, box.high, box.total, box.maxima))
            cut = (*box.high[:axis], middle, *box.high[axis + 1 :])
            lower = self._solve(box.low, self._within(cut, value), number + 1)
            number += 2
            if lower is not None:
                heapq.heappush(boxes, lower[0])
                if self._value(lower[0]) < value:
                    best = (lower[1], self._value(lower[0]))
                    value = best[1]
        if best is None:
            return None
        bound = min(value, boxes[0].bound) if boxes else value
        return Answer(best[0], value, bound, len(self._space.lattice))

    def _known(self) -> Pipeline | None:
        """The pipeline with the least slowest stage, and what it comes to; None where it does not fit, or is as far."""
        space = self._space
        found = space.fastest() if space.passes_along else None
        parts = () if found is None else space.parts(found.cuts)
        if found is None or not fits(space.problem, parts):
            return None
        total, maxima = self._added_up(found.cuts)
        return parts, total + sum(w * most for w, most in zip(self._weights, maxima, strict=True))

    def _steps(self, high: tuple[int, ...]) -> int:
        """The stages times situations that a solution under upper bounds looks at, at most."""
        work, devices = np.sort(self._fill.first[:, -1]), self._space.problem.devices
        stages = np.searchsorted(work, work + high[0], side="right") - np.arange(len(work))
        return max(1, int(stages.sum()) * sum(devices - r for r in range(self._fill.first.shape[1])))

    def _within(self, high: tuple[int, ...], value: int) -> tuple[int, ...]:
        """Upper bounds of the maxima of pipelines that are below a value."""
        room = value - 1 - self._least
        return tuple(min(most, room // w) if w else most for most, w in zip(high, self._weights, strict=True))

    def _added_up(self, cuts: Sequence[Cut]) -> tuple[int, tuple[int, ...]]:
        """The sum of the fill times of a pipeline's stages, and its maxima."""
        fill, total, maxima, start = self._fill, 0, [0, 0, 0], 0
        for cut in cuts:
            m = cut.replicas - 1
            for axis, value in enumerate(pairs.slots(fill, start, cut.ideal, m)):
                maxima[axis] = max(maxima[axis], int(value))
            total += int(
                fill.first[cut.ideal, m] - fill.first[start, m] + fill.second[cut.ideal, m] - fill.second[start, m]
            )
            total += int(fill.transfer[start, m] + fill.transfer[cut.ideal, m]) // 2
            start = cut.ideal
        return total, tuple(maxima)

    def _totals(self, nodes: Ticks) -> Ticks:
        return self._space.lattice.total(self._space.coarse.gather(nodes))

    def _value(self, box: _Box) -> int:
        return box.total + sum(w * most for w, most in zip(self._weights, box.maxima, strict=True))

    def _box(
        self, number: int, low: tuple[int, ...], high: tuple[int, ...], total: int, maxima: tuple[int, ...]
    ) -> _Box:
        bound = total + sum(w * least for w, least in zip(self._weights, low, strict=True))
        return _Box(bound, number, low, high, total, maxima)

    def _solve(self, low: tuple[int, ...], high: tuple[int, ...], number: int) -> tuple[_Box, tuple[Part, ...]] | None:
        """The box with the pipeline of the least sum under its upper bounds; None where there is no pipeline."""
        self._solves += 1
        devices = self._space.problem.devices
        best, ends, replicas = pairs.least_sum(
            self._space.lattice.members, self._fill, self._holdings, devices, np.array(high, dtype=np.int64)
        )
        used = int(np.argmin(best[0]))
        if best[0, used] >= pairs.INFINITE:
            return None
        cuts = trace_cuts(ends, replicas, used)
        _, maxima = self._added_up(cuts)
        box = self._box(number, low, high, int(best[0, used]), maxima)
        return box, self._space.parts(cuts)


def _floor(problem: SegmentationProblem, costs: NodeCosts) -> int:
    """Ticks that no pipeline goes below: one micro-batch through all devices, and a fair share of the others."""
    m, total = problem.assumptions.micro_batches, int(costs.work[:, 0].sum())
    most = problem.devices if problem.replicate else 1
    slot = max(total // problem.devices, int(costs.work[:, 0].max()) // most)
    return max(0, total // (m * most) + (m - 1) * slot // m - 2 * len(costs.work))
