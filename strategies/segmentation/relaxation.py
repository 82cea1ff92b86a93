"""A lower bound for pipelines on machines of two levels: all ideals are searched, with a stage's costs made less.

What a stage of a pipeline in groups costs depends on its group: the group's replicas synchronise the weights of all its
stages. Here every stage pays for its own weights only, and a group as if all its devices shared its work evenly:

    time of a stage >= its work / its devices + synchronisation of its weights
    time of a group >= its work / its devices + synchronisation of its weights between groups

Both are sums over operators, so one sweep of the lattice decides whether a bottleneck can be kept (see
``sweep_kernels``), for each way of dealing the groups to the stages of the outer level:

    groups (2, 1)       slot      0     1     2     3
    of 2 devices        replicas  2     2     1     1       of its group
                        before    outer inner outer inner   the link over which a stage that starts here is sent to

Each pipeline of the problem is one of these, and costs there at most what it costs: what no sweep can keep, no
pipeline can.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.strategies.pipeline.stage_costs import synchronization_s, transfer_s, work_s
from maniple.strategies.segmentation import relaxation_kernels as kernels

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maniple.strategies.pipeline.ideals import Index, Ticks
    from maniple.strategies.pipeline.problem import SegmentationProblem
    from maniple.strategies.segmentation.pipeline_space import Space

__all__: list[str] = []

CLOSE = 1e-4
"""The share of a bound within which the greatest is looked for."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    """One way of dealing the groups to the stages of the outer level; see the module.

    Args:
        count: slots in all: the devices of one replica of each group.
        begin: the slot at which a stage starts, one for each slot and number of replicas.
        replicas: inside its group, 1 first.
        outer: replicas of the group.
        last: the slot after its group.
    """

    count: int
    begin: Index
    replicas: Index
    outer: Index
    last: Index

    @staticmethod
    def of(groups: tuple[int, ...], members: int, most: int) -> Slots:
        """The slots of groups of some members, with at most some replicas inside a group."""
        rows = [
            (group * members + slot, count, outer, (group + 1) * members)
            for group, outer in enumerate(groups)
            for slot in range(members)
            for count in range(1, min(most, members - slot) + 1)
        ]
        begin, replicas, outer, last = np.array(rows, dtype=np.int32).T
        return Slots(len(groups) * members, *(np.ascontiguousarray(row) for row in (begin, replicas, outer, last)))


def two_level_bound(space: Space, floor: int, ceiling: int) -> int:
    """Ticks that no pipeline on a machine of two levels goes below.

    Args:
        space: all ideals of the whole graph.
        floor: a bound that is known.
        ceiling: ticks of a pipeline that is known.
    """
    problem = space.problem
    inner, outer = problem.levels
    most = inner.members if problem.replicate else 1
    dealt = groupings(outer.members) if problem.replicate else iter([(1,) * outer.members])
    ways = [Slots.of(groups, inner.members, most) for groups in dealt]
    low, high = floor, ceiling
    alive = [_Sweep(space, slots) for slots in ways]
    while alive and high - low > max(1, int(CLOSE * high)):
        middle = (low + high) // 2
        able = [sweep for sweep in alive if sweep.keeps(middle)]
        if able:
            alive, high = able, middle
        else:
            low = middle + 1
    return low


def groupings(members: int) -> Iterator[tuple[int, ...]]:
    """All ways to deal so many groups to stages in order, every stage one at least."""
    if members == 0:
        yield ()
    for first in range(1, members + 1):
        for others in groupings(members - first):
            yield (first, *others)


@final
class _Sweep:
    """The sweeps for one way of dealing the groups."""

    def __init__(self, space: Space, slots: Slots) -> None:
        self._slots = slots
        problem, tick = space.problem, space.costs.clock.tick_s
        inner, outer = problem.levels
        kinds = sorted(set(zip(slots.outer.tolist(), slots.replicas.tolist(), strict=True)))
        place = {kind: number for number, kind in enumerate(kinds)}
        pairs = zip(slots.outer.tolist(), slots.replicas.tolist(), strict=True)
        kind: Index = np.array([place[pair] for pair in pairs], dtype=np.int32)
        nodes = np.stack([node_ticks(problem, tick, shared, count) for shared, count in kinds], axis=1)
        work: Ticks = space.lattice.total(space.coarse.gather(nodes))
        copies = sorted(set(slots.outer.tolist()))
        group: Index = np.array([copies.index(outer) for outer in slots.outer.tolist()], dtype=np.int32)
        groups = np.stack([group_ticks(problem, tick, outer) for outer in copies], axis=1)
        shared_evenly: Ticks = space.lattice.total(space.coarse.gather(groups))
        lattice, crossing = space.lattice, space.crossing.astype(np.float64)
        self._ideals = kernels.Ideals(lattice.first, lattice.larger, work, shared_evenly, crossing)
        given = problem.assumptions
        inside = np.array([transfer_s(given, inner, m, 1.0) / shared / tick for shared, m in kinds])
        outside = np.array([transfer_s(given, outer, shared, 1.0) / tick for shared, _ in kinds])
        self._stages = kernels.Stages(slots.begin, slots.replicas, slots.last, kind, inside, outside, group)

    def keeps(self, bound: int) -> bool:
        """Whether a pipeline may keep a bottleneck."""
        return bool(kernels.keeps(self._ideals, self._stages, self._slots.count, bound))


def node_ticks(problem: SegmentationProblem, tick_s: float, outer: int, replicas: int) -> Ticks:
    """Ticks of each node, rounded down, on some replicas inside a group that has replicas itself."""
    given, near = problem.assumptions, problem.levels[0]
    ticks = []
    for node, apart in zip(problem.graph.nodes, _apart(problem, outer), strict=True):
        seconds = work_s(given, node.compute_s, node.start_s, replicas)
        if given.synchronization == "add":
            seconds += synchronization_s(given, near, replicas, 1, node.parameter_bytes)
        ticks.append(int((seconds / outer + apart) / tick_s))
    return np.array(ticks, dtype=np.int64)


def group_ticks(problem: SegmentationProblem, tick_s: float, outer: int) -> Ticks:
    """Ticks of each node, rounded down, when all devices of a group that has replicas share it evenly."""
    devices = outer * problem.levels[0].members
    pairs = zip(problem.graph.nodes, _apart(problem, outer), strict=True)
    return np.array([int((node.compute_s / devices + apart) / tick_s) for node, apart in pairs], dtype=np.int64)


def _apart(problem: SegmentationProblem, outer: int) -> list[float]:
    """Seconds of each node in which the replicas of its group synchronise its weights, where these add to work."""
    given, (near, far) = problem.assumptions, problem.levels
    if given.synchronization != "add":
        return [0.0] * len(problem.graph.nodes)
    return [synchronization_s(given, far, outer, near.members, node.parameter_bytes) for node in problem.graph.nodes]
