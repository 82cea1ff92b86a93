"""Matching: the stages of a straight pipeline and the unequal processors that they run on, chosen together.

What is left to do after an ideal, by how many processors of each class, the next of them of a given class, has a least
slowest stage; it follows from what is left after a larger ideal:

    best(i, counts, c)  =  min over ideals j that hold i:  max( work of j without i on class c,
                               min over classes d:  max( what leaves j over the link from c to d,
                                                         best(j, counts without one of c, d) ) )

A stage that its processor has no room for does not count: with 1F1B it holds the more micro-batches, the more
processors come after it, and their number is known. Where not all ideals can be looked at in pairs, lines are cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.strategies.pipeline.coarse_graph import CoarseGraph
from maniple.strategies.pipeline.ideals import chain, enumerate_ideals
from maniple.strategies.pipeline.pipeline_timing import StageTimes
from maniple.strategies.pipeline.problem import Segmentation, Stage
from maniple.strategies.pipeline.stage_costs import Level, transfer_s, work_s
from maniple.strategies.segmentation.refinement import lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maniple.strategies.pipeline.cost_graph import CostGraph
    from maniple.strategies.pipeline.fleet import Fleet
    from maniple.strategies.pipeline.ideals import Lattice
    from maniple.strategies.pipeline.problem import SegmentationProblem
    from maniple.strategies.pipeline.stage_costs import Floats

__all__: list[str] = []

MOST_IDEALS = 1_000
"""Ideals that are looked at in pairs."""
MOST_WORK = 200_000_000
"""Pairs of ideals times numbers of processors of each class times classes."""

Counts = tuple[int, ...]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Matching:
    """What is matched.

    Args:
        asked: the assumptions, and how much stages hold; its levels and its limit are not regarded.
        costs: the graph with what it takes on a processor of each class; only times differ.
        fleet: the processors.
    """

    asked: SegmentationProblem
    costs: tuple[CostGraph, ...]
    fleet: Fleet

    def pipelines(self) -> tuple[Segmentation, ...]:
        """For each number of stages the pipeline with the least slowest stage, the fewest stages first.

        Only those that hold in memory what their stages need; and none but one stage, where the fleet has so many
        classes that all matches are too many.
        """
        graph = self.costs[0]
        whole = CoarseGraph.whole(graph)
        lattice = enumerate_ideals(whole.links, MOST_IDEALS)
        spaces = [(whole, lattice)] if lattice is not None else []
        if not spaces:
            spaces = [(found, chain(found.links)) for found in (CoarseGraph.of(graph, line) for line in lines(graph))]
        best: dict[int, Segmentation] = {}
        for coarse, found in spaces:
            for answer in self._over(coarse, found, exact=lattice is not None):
                known = best.get(len(answer.stages))
                if known is None or answer.bottleneck_s < known.bottleneck_s:
                    best[len(answer.stages)] = answer
        return tuple(best[count] for count in sorted(best))

    def times(self, found: Segmentation) -> tuple[StageTimes, ...]:
        """What one micro-batch takes in every stage of a pipeline."""
        given, parts = self.asked.assumptions, self.asked.assumptions.micro_batches
        times = []
        for place, stage in enumerate(found.stages):
            here = self._class_of(stage)
            nodes = [self.costs[here].nodes[node] for node in stage.nodes]
            forward = sum(work_s(given, node.forward_s, node.forward_start_s, 1) for node in nodes)
            backward = sum(work_s(given, node.backward_s, node.backward_start_s, 1) for node in nodes)
            moved = 0.0
            if place + 1 < len(found.stages):
                link = self.fleet.bandwidth[here, self._class_of(found.stages[place + 1])]
                moved = self.moved_s(float(link), stage.sent_bytes)
            times.append(StageTimes(forward / parts, backward / parts, moved / parts / 2))
        return tuple(times)

    def _class_of(self, stage: Stage) -> int:
        return next(place for place, own in enumerate(self.fleet.classes) if stage.devices[0] in own)

    def moved_s(self, bandwidth: float, size: float) -> float:
        """Seconds of a mini-batch in which so many bytes cross a cut."""
        return transfer_s(self.asked.assumptions, Level(1, bandwidth), 1, size)

    def _over(self, coarse: CoarseGraph, lattice: Lattice, *, exact: bool) -> Iterator[Segmentation]:
        """The best pipelines over the ideals of a coarse graph."""
        sizes = [len(own) for own in self.fleet.classes]
        states = int(np.prod([size + 1 for size in sizes])) * len(sizes)
        if len(lattice) ** 2 * states > MOST_WORK:
            return
        table = _Table.of(self, coarse, lattice)
        for counts in sorted(product(*(range(size + 1) for size in sizes)), key=sum):
            if sum(counts):
                table.fill(counts)
        for used in range(1, sum(sizes) + 1):
            ends = [(float(best[0]), counts, c) for (counts, c), best in table.best.items() if sum(counts) == used]
            value, counts, first = min(ends)
            if value < np.inf:
                yield self._segmentation(coarse, lattice, table.trace(counts, first), value, exact=exact)

    def _segmentation(
        self, coarse: CoarseGraph, lattice: Lattice, cuts: Sequence[tuple[int, int]], value: float, *, exact: bool
    ) -> Segmentation:
        """The pipeline that ends stages at some ideals, each on a processor of a class."""
        given, crossing = self.asked.assumptions, lattice.crossing(coarse.tensors)
        free = [list(own) for own in self.fleet.classes]
        stages, done, before = list[Stage](), set[int](), 0
        for place, (ideal, here) in enumerate(cuts):
            groups = set(lattice.nodes(ideal))
            nodes = tuple(sorted(node for group in groups - done for node in coarse.groups[group]))
            own = [self.costs[here].nodes[node] for node in nodes]
            work = float(sum(work_s(given, node.compute_s, node.start_s, 1) for node in own))
            ends = (place, before), (place + 1, ideal)
            moved = [self.moved_s(self._link(cuts, end), int(crossing[at])) for end, at in ends]
            held = self.asked.held_bytes(
                sum(node.parameter_bytes for node in own),
                sum(node.stored_bytes for node in own) + int(crossing[before]),
                len(cuts) - place - 1,
                1,
            )
            device = free[here].pop(0)
            stages.append(Stage(nodes, (device,), max(work, *moved), work, held, int(crossing[ideal])))
            done, before = groups, ideal
        return Segmentation(tuple(stages), value, value if exact else 0.0, exact, len(lattice), value)

    def _link(self, cuts: Sequence[tuple[int, int]], end: int) -> float:
        """The bandwidth between the stages before and after a place; infinite at both ends of the pipeline."""
        inside = 0 < end < len(cuts)
        return float(self.fleet.bandwidth[cuts[end - 1][1], cuts[end][1]]) if inside else np.inf


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """The best of what is left to do after each ideal.

    Args:
        work: by class, seconds of all ideals.
        moved: by pair of classes, seconds over the cut after each ideal.
        nested: whether the second ideal holds the first, and more.
        limit: by class, what a processor may hold.
        weights: bytes of the parameters of each ideal.
        kept: bytes that each ideal keeps for backward.
        sent: bytes over the cut after each ideal.
        matching: what is matched.
        best: by the numbers of processors of each class and the class of the next, the slowest stage after each ideal.
        ends: likewise the ideal that the next stage ends with, and the class of the one after it.
    """

    work: tuple[Floats, ...]
    moved: tuple[tuple[Floats, ...], ...]
    nested: np.ndarray[tuple[int, int], np.dtype[np.bool_]]
    limit: tuple[float, ...]
    weights: Floats
    kept: Floats
    sent: Floats
    matching: Matching
    best: dict[tuple[Counts, int], Floats]
    ends: dict[tuple[Counts, int], tuple[np.ndarray[tuple[int], np.dtype[np.int64]], ...]]

    @staticmethod
    def of(matching: Matching, coarse: CoarseGraph, lattice: Lattice) -> _Table:
        """The table of a lattice, not yet filled."""
        given, fleet = matching.asked.assumptions, matching.fleet

        def total(values: Sequence[float]) -> Floats:
            """The sum of some values of nodes over each ideal, in units that hold them exactly enough."""
            scale = max(max(values, default=0.0), 1e-300) / 2**40
            ticks = np.rint(np.asarray(values, dtype=np.float64) / scale).astype(np.int64)
            return lattice.total(coarse.gather(ticks)).astype(np.float64) * scale

        work = tuple(total([work_s(given, n.compute_s, n.start_s, 1) for n in graph.nodes]) for graph in matching.costs)
        nodes, sent = matching.costs[0].nodes, lattice.crossing(coarse.tensors).astype(np.float64)
        moved = tuple(tuple(sent * matching.moved_s(float(b), 1.0) for b in row) for row in fleet.bandwidth)
        members = lattice.members
        inside = np.stack([~(row & ~members).any(axis=1) for row in members])  # row within each of the ideals
        np.fill_diagonal(inside, val=False)
        weights, kept = total([n.parameter_bytes for n in nodes]), total([n.stored_bytes for n in nodes])
        return _Table(work, moved, inside, fleet.held_bytes, weights, kept, sent, matching, {}, {})

    def fill(self, counts: Counts) -> None:
        """Find the best with so many processors of each class; fewer are filled already."""
        count, after = len(self.sent), sum(counts) - 1
        copies, flights = self.matching.asked.holding(after, 1)
        for here, own in enumerate(counts):
            if not own:
                continue
            rest = (*counts[:here], own - 1, *counts[here + 1 :])
            follows, then = np.full(count, np.inf), np.full(count, -1)
            if after == 0:
                follows[-1] = 0.0
            for other, left in enumerate(rest):
                if left:
                    value = np.maximum(self.best[rest, other], self.moved[here][other])
                    then = np.where(value < follows, other, then)
                    follows = np.minimum(value, follows)
            held = copies * (self.weights - self.weights[:, None]) + flights * (
                self.kept - self.kept[:, None] + self.sent[:, None]
            )
            work = self.work[here]
            slowest = np.maximum(work - work[:, None], follows)
            slowest = np.where(self.nested & (held <= self.limit[here]), slowest, np.inf)
            end = slowest.argmin(axis=1)
            self.best[counts, here] = slowest[np.arange(count), end]
            self.ends[counts, here] = end, then[end]

    def trace(self, counts: Counts, here: int) -> list[tuple[int, int]]:
        """The (ideal that a stage ends with, class of its processor) of each stage of the best pipeline."""
        found, ideal = list[tuple[int, int]](), 0
        while sum(counts):
            end, then = self.ends[counts, here]
            found.append((int(end[ideal]), here))
            counts = (*counts[:here], counts[here] - 1, *counts[here + 1 :])
            ideal, here = int(end[ideal]), int(then[ideal])
        return found
