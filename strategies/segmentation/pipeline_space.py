"""A space of pipelines: the ideals of a graph, or of a coarse one, with what stages between them cost and hold."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.strategies.pipeline import pair_kernels as pairs
from maniple.strategies.pipeline.ideals import Lattice, chain, enumerate_ideals
from maniple.strategies.pipeline.stage_costs import Clock, clock_for, cut_ticks, node_work
from maniple.strategies.segmentation.bottleneck import Cut, Found, Loads, least_bottleneck

if TYPE_CHECKING:
    from maniple.strategies.pipeline.coarse_graph import CoarseGraph
    from maniple.strategies.pipeline.ideals import Index, Ticks
    from maniple.strategies.pipeline.problem import SegmentationProblem
    from maniple.strategies.pipeline.sweep_kernels import Small

__all__: list[str] = []

MOST_PAIRED = 40_000
"""Ideals of which all nested pairs are looked at."""


@final
@dataclass(frozen=True, slots=True)
class Part:
    """A stage as found: its nodes and replicas.

    Args:
        nodes: places in the graph, ascending.
        path: from the outermost level in: which stage of its group it is (part of), and that stage's replicas.
    """

    nodes: tuple[int, ...]
    path: tuple[tuple[int, int], ...]

    @property
    def replicas(self) -> int:
        """The devices that compute it."""
        return prod(count for _, count in self.path)


@final
@dataclass(frozen=True, slots=True, eq=False)
class NodeCosts:
    """The ticks and bytes of every node of a problem on its innermost level.

    Args:
        clock: what a tick is.
        work: both passes on 1, 2, ... replicas, shape (nodes, replicas).
        synchronization: of weights, same shape.
        parameters: bytes, shape (nodes,).
        stored: bytes kept for backward, shape (nodes,).
    """

    clock: Clock
    work: Ticks
    synchronization: Ticks
    parameters: Ticks
    stored: Ticks

    @staticmethod
    def of(problem: SegmentationProblem) -> NodeCosts:
        """The costs of a problem's nodes."""
        graph, level, given = problem.graph, problem.levels[0], problem.assumptions
        clock = clock_for(graph, problem.levels, given)
        replicas = level.members if problem.replicate else 1
        work, synchronization = node_work(graph, level, given, replicas, clock)
        return NodeCosts(
            clock,
            work,
            synchronization,
            np.array([node.parameter_bytes for node in graph.nodes], dtype=np.int64),
            np.array([node.stored_bytes for node in graph.nodes], dtype=np.int64),
        )

    def floor(self, devices: int) -> int:
        """Ticks that no pipeline on some devices goes below: a fair share of all work, and the largest node."""
        total = int(self.work[:, 0].sum())
        added = self.work + self.synchronization
        return max(-(-total // devices) - len(self.work), int(added.min(axis=1).max()), 0)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """A lattice of ideals with its costs.

    Args:
        problem: what is asked.
        costs: of the nodes.
        coarse: the graph whose ideals these are.
        lattice: the ideals.
        crossing: bytes over the cut of each ideal.
        loads: ticks of stages.
    """

    problem: SegmentationProblem
    costs: NodeCosts
    coarse: CoarseGraph
    lattice: Lattice
    crossing: Ticks
    loads: Loads

    @staticmethod
    def over(problem: SegmentationProblem, costs: NodeCosts, coarse: CoarseGraph, lattice: Lattice) -> Space:
        """The space of a lattice of a coarse graph."""
        given, level = problem.assumptions, problem.levels[0]
        work = costs.work + costs.synchronization if given.synchronization == "add" else costs.work
        crossing = lattice.crossing(coarse.tensors)
        loads = Loads(
            lattice,
            lattice.total(coarse.gather(work)),
            cut_ticks(crossing, level, given, work.shape[1], costs.clock),
            given.transfers == "add",
        )
        return Space(problem, costs, coarse, lattice, crossing, loads)

    @staticmethod
    def enumerate_ideals(
        problem: SegmentationProblem, costs: NodeCosts, coarse: CoarseGraph, limit: int
    ) -> Space | None:
        """The space of all ideals of a coarse graph, or None where there are more than ``limit``."""
        lattice = enumerate_ideals(coarse.links, limit)
        return None if lattice is None else Space.over(problem, costs, coarse, lattice)

    @staticmethod
    def line(problem: SegmentationProblem, costs: NodeCosts, coarse: CoarseGraph) -> Space:
        """The space of the prefixes of a coarse graph's order."""
        return Space.over(problem, costs, coarse, chain(coarse.links))

    def parts(self, cuts: tuple[Cut, ...]) -> tuple[Part, ...]:
        """The stages that end at some cuts."""
        parts: list[Part] = []
        done: set[int] = set()
        for cut in cuts:
            groups = set(self.lattice.nodes(cut.ideal))
            nodes = sorted(node for group in groups - done for node in self.coarse.groups[group])
            parts.append(Part(tuple(nodes), ((len(parts), cut.replicas),)))
            done = groups
        return tuple(parts)

    # -- throughput -----------------------------------------------------------------------------------------------

    @property
    def passes_along(self) -> bool:
        """Whether one sweep of the lattice decides a bound: a stage's time is one sum, whatever it holds."""
        return self.problem.assumptions.synchronization == "add" or not self.problem.replicate

    def fastest(self, ceiling: int | None = None) -> Found | None:
        """The pipeline with the least slowest stage, whatever it holds in memory.

        Args:
            ceiling: only better ones are looked for.
        """
        if not self.passes_along:
            return self.fitting(ceiling, limit=None)
        return least_bottleneck(self.loads, self.problem.devices, self.costs.floor(self.problem.devices), ceiling)

    def fitting(self, ceiling: int | None, limit: float | None) -> Found | None:
        """The pipeline with the least slowest stage among those that hold at most ``limit`` bytes per device."""
        best, ends, replicas = pairs.least_maximum(
            self.lattice.members,
            self.loads.work,
            self._second(),
            self.loads.transfer,
            self.loads.added,
            self.holdings(limit),
            self.problem.devices,
            int(pairs.INFINITE) if ceiling is None else ceiling,
        )
        used = int(np.argmin(best[0]))
        if best[0, used] >= pairs.INFINITE:
            return None
        return Found(trace_cuts(ends, replicas, used), int(best[0, used]))

    def _second(self) -> Ticks:
        """The times that overlap with work: synchronisation where the problem says so."""
        if self.problem.assumptions.synchronization == "add":
            return np.zeros_like(self.loads.work)
        return self.lattice.total(self.coarse.gather(self.costs.synchronization))

    def holdings(self, limit: float | None) -> pairs.Holdings:
        """What stages hold, for the compiled searches."""
        problem, devices = self.problem, self.problem.devices
        table = [
            [problem.holding(after, m) for m in range(1, self.loads.work.shape[1] + 1)] for after in range(devices)
        ]
        coefficients = np.array(table, dtype=np.float64)
        return pairs.Holdings(
            self.lattice.total(self.coarse.gather(self.costs.parameters)).astype(np.float64),
            self.lattice.total(self.coarse.gather(self.costs.stored)).astype(np.float64),
            self.crossing.astype(np.float64),
            np.ascontiguousarray(coefficients[:, :, 0]),
            np.ascontiguousarray(coefficients[:, :, 1]),
            -1.0 if limit is None else float(limit),
        )


def trace_cuts(ends: Index, replicas: Small, used: int) -> tuple[Cut, ...]:
    """The cuts that a table of best suffixes leads to.

    Args:
        ends: of the first stage after each ideal with each number of devices.
        replicas: of that stage.
        used: devices in all.
    """
    cuts: list[Cut] = []
    ideal = 0
    while used:
        end, count = int(ends[ideal, used]), int(replicas[ideal, used])
        cuts.append(Cut(end, count))
        ideal, used = end, used - count
    return tuple(cuts)
