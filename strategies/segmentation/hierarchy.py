"""Pipelines on machines of several levels: stages of groups, each of which runs a pipeline of its own.

    level 2: two servers       stage 0 on server 0            stage 1 on server 1
    level 1: two devices       (a b | c)  within server 0     (d) x 2  within server 1

(Narayanan et al., PipeDream, SOSP 2019, section 3.1: the optimizer's levels.) An inner pipeline pays its level's
transfers at its own cuts only; what crosses the border of its group is the outer level's.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.strategies.pipeline.pair_kernels import INFINITE
from maniple.strategies.pipeline.stage_costs import cut_ticks, synchronization_ticks
from maniple.strategies.segmentation import hierarchy_kernels as kernels
from maniple.strategies.segmentation.pipeline_space import Part

if TYPE_CHECKING:
    from maniple.strategies.pipeline.ideals import Index, Ticks
    from maniple.strategies.segmentation.hierarchy_kernels import Flags, LevelCosts
    from maniple.strategies.segmentation.pipeline_space import Space

__all__: list[str] = []

MOST_TABLED = 1_000
"""Ideals for which tables of all pairs are made."""

Situation = tuple[int, int]
"""Devices after a group, and in how many copies it runs."""


@final
class Hierarchy:
    """The search over a lattice for a machine of several levels.

    Args:
        space: the lattice with its costs.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._problem = space.problem
        self._inside: Flags = kernels.nesting(space.lattice.members)
        self._tables: dict[tuple[int, Situation], Ticks] = {}
        self._sizes = [prod(level.members for level in self._problem.levels[:depth]) for depth in range(10)]
        self._levels = [self._level(depth) for depth in range(len(self._problem.levels))]
        work = space.lattice.total(space.coarse.gather(space.costs.work[:, :1]))[:, 0]
        self._work: Ticks = np.where(self._inside, work[None, :] - work[:, None], INFINITE)
        parameters = space.lattice.total(space.coarse.gather(space.costs.parameters)).astype(np.float64)
        stored = space.lattice.total(space.coarse.gather(space.costs.stored)).astype(np.float64)
        self._weights = parameters[None, :] - parameters[:, None]
        self._kept = stored[None, :] - stored[:, None] + space.crossing[:, None]

    def solve(self, ceiling: int | None) -> tuple[tuple[Part, ...], int] | None:
        """The pipeline with the least slowest stage, or None where none is below the ceiling."""
        top, last = len(self._levels) - 1, len(self._space.lattice) - 1
        whole, _ = self._group(top, last, (0, 1))
        value = int(whole[0])
        if value >= (int(INFINITE) if ceiling is None else ceiling):
            return None
        return tuple(self._parts(top, 0, last, (0, 1), ())), value

    def _level(self, depth: int) -> tuple[Ticks, Ticks]:
        """Synchronisation and transfers of every ideal on 1, 2, ... members of a level."""
        problem, space = self._problem, self._space
        level = problem.levels[depth]
        replicas = level.members if problem.replicate else 1
        shared = self._sizes[depth]
        nodes = synchronization_ticks(problem.graph, level, problem.assumptions, replicas, space.costs.clock, shared)
        return (
            space.lattice.total(space.coarse.gather(nodes)),
            cut_ticks(space.crossing, level, problem.assumptions, replicas, space.costs.clock),
        )

    def _key(self, situation: Situation) -> Situation:
        """The situation as far as it matters: without a memory limit all are alike."""
        return (0, 1) if self._problem.memory_bytes is None else situation

    def _table(self, depth: int, situation: Situation) -> Ticks:
        """Ticks between all pairs of ideals on one member of a level."""
        key = (depth, self._key(situation))
        if key not in self._tables:
            self._tables[key] = (
                self._single(situation)
                if depth == 0
                else kernels.groups(self._costs(depth - 1, situation), self._problem.levels[depth - 1].members)
            )
        return self._tables[key]

    def _single(self, situation: Situation) -> Ticks:
        """Ticks between all pairs of ideals on one device, infinite where it does not hold them."""
        limit = self._problem.memory_bytes
        if limit is None:
            return self._work
        copies, flights = self._problem.holding(*situation)
        return np.where(copies * self._weights + flights * self._kept > limit, INFINITE, self._work)

    def _costs(self, depth: int, situation: Situation) -> LevelCosts:
        """What the stages of a group of a level cost in a situation."""
        given, members = self._problem.assumptions, self._problem.levels[depth].members
        synchronization, transfer = self._levels[depth]
        replicas = transfer.shape[1]
        tables: list[Ticks] = []
        known: dict[Situation, int] = {}
        index: Index = np.zeros((members, replicas), dtype=np.int32)
        for after in range(members):
            for m in range(1, min(replicas, members - after) + 1):
                inner = self._inner(depth, situation, after, m)
                key = self._key(inner)
                if key not in known:
                    known[key] = len(tables)
                    tables.append(self._table(depth, inner))
                index[after, m - 1] = known[key]
        return kernels.LevelCosts(
            self._inside,
            np.stack(tables),
            index,
            synchronization,
            transfer,
            given.transfers == "add",
            given.synchronization == "add",
        )

    def _inner(self, depth: int, situation: Situation, after: int, replicas: int) -> Situation:
        """The situation of the members of a stage; whole groups after it count as used."""
        downstream, copies = situation
        return downstream + after * self._sizes[depth] * copies, copies * replicas

    def _group(self, depth: int, end: int, situation: Situation) -> tuple[Ticks, tuple[Index, Index]]:
        """The best pipelines of one group that end at an ideal, with the steps that lead to them."""
        count, members = len(self._space.lattice), self._problem.levels[depth].members
        first: Index = np.empty((count, 3), dtype=np.int32)
        later: Index = np.empty((count, members + 1, 2), dtype=np.int32)
        best, whole = np.empty((count, members + 1), dtype=np.int64), np.empty(count, dtype=np.int64)
        kernels.group(self._costs(depth, situation), end, members, first, later, best, whole)
        return whole, (first, later)

    def _parts(
        self, depth: int, start: int, end: int, situation: Situation, path: tuple[tuple[int, int], ...]
    ) -> list[Part]:
        """The stages between two ideals."""
        if depth < 0:
            lattice, groups = self._space.lattice, self._space.coarse.groups
            inside = sorted(set(lattice.nodes(end)) - set(lattice.nodes(start)))
            return [Part(tuple(sorted(node for place in inside for node in groups[place])), path)]
        _, (first, later) = self._group(depth, end, situation)
        cut, replicas, after = (int(value) for value in first[start])
        found: list[Part] = []
        stage = 0
        while True:
            inner = self._inner(depth, situation, after, replicas)
            found += self._parts(depth - 1, start, cut, inner, (*path, (stage, replicas)))
            if cut == end:
                return found
            start, used = cut, after
            cut, replicas = int(later[start, used, 0]), int(later[start, used, 1])
            after = used - replicas
            stage += 1
