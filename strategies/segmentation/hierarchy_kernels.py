"""Compiled dynamic programme for one level of a machine of several: all pairs of nested ideals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from maniple.process.compilation.compiled import kernel
from maniple.strategies.pipeline.ideal_kernels import Index, Ticks, Words
from maniple.strategies.pipeline.pair_kernels import INFINITE
from maniple.strategies.pipeline.sweep_kernels import contains

__all__: list[str] = []

Flags = npt.NDArray[np.bool_]


class LevelCosts(NamedTuple):
    """What stages of one level cost.

    Args:
        inside: whether an ideal is within another, shape (ideals, ideals).
        tables: ticks of the work between two ideals on one member, for each situation, shape (situations, ideals,
            ideals).
        situation: the table of a stage by members after it and replicas - 1, shape (members, replicas).
        synchronization: ticks of each ideal on 1, 2, ... replicas, shape (ideals, replicas).
        transfer: of its cut, same shape.
        added: whether transfers add to the work.
        apart: whether synchronisation adds to the work; else the larger counts.
    """

    inside: Flags
    tables: Ticks
    situation: Index
    synchronization: Ticks
    transfer: Ticks
    added: bool
    apart: bool


@kernel
def nesting(members: Words) -> Flags:
    """Whether each ideal is within each other one."""
    count = members.shape[0]
    inside = np.zeros((count, count), dtype=np.bool_)
    for i in range(count):
        for j in range(i, count):
            inside[i, j] = contains(members[j], members[i])
    return inside


@kernel
def group(costs: LevelCosts, end: int, members: int, first: Index, later: Index, best: Ticks, whole: Ticks) -> None:
    """The best pipelines of one group of members, from every ideal to one end.

    Args:
        costs: see there.
        end: the ideal that the group's last stage reaches.
        members: of the group.
        first: result, shape (ideals, 3): of the group that starts at an ideal, the end of its first stage, that
            stage's replicas and the members after it; -1 where there is none.
        later: result, shape (ideals, members + 1, 2): the end and replicas of the stage after a cut, by members used.
        best: result, shape (ideals, members + 1): the slowest stage after a cut, by members used.
        whole: result, shape (ideals,): the slowest stage of the group that starts at an ideal.
    """
    best[: end + 1] = INFINITE
    whole[: end + 1] = INFINITE
    first[: end + 1] = -1
    best[end, 0] = 0
    whole[end] = 0
    for i in range(end - 1, -1, -1):
        if not costs.inside[i, end]:
            continue
        for k in range(i + 1, end + 1):
            if not (costs.inside[i, k] and costs.inside[k, end]):
                continue
            for m in range(costs.situation.shape[1]):
                synchronization = costs.synchronization[k, m] - costs.synchronization[i, m]
                leaving = costs.transfer[k, m] if k < end else 0
                for after in range(members - m):
                    if best[k, after] == INFINITE:
                        continue
                    work = costs.tables[costs.situation[after, m], i, k]
                    if work == INFINITE:
                        continue
                    work = (work + (m + 1) // 2) // (m + 1)
                    load = work + synchronization if costs.apart else max(work, synchronization)
                    inner = load + leaving if costs.added else max(load, leaving)
                    total = max(inner, best[k, after])
                    if total < whole[i]:
                        whole[i] = total
                        first[i, 0], first[i, 1], first[i, 2] = k, m + 1, after
                    outer = inner + costs.transfer[i, m] if costs.added else max(inner, costs.transfer[i, m])
                    total = max(outer, best[k, after])
                    used = after + m + 1
                    if total < best[i, used]:
                        best[i, used] = total
                        later[i, used, 0], later[i, used, 1] = k, m + 1


@kernel
def groups(costs: LevelCosts, members: int) -> Ticks:
    """The slowest stage of the best pipeline of one group between all pairs of ideals, shape (ideals, ideals)."""
    count = costs.inside.shape[0]
    table = np.full((count, count), INFINITE, dtype=np.int64)
    first = np.empty((count, 3), dtype=np.int32)
    later = np.empty((count, members + 1, 2), dtype=np.int32)
    best, whole = np.empty((count, members + 1), dtype=np.int64), np.empty(count, dtype=np.int64)
    for end in range(count):
        group(costs, end, members, first, later, best, whole)
        for i in range(end + 1):
            table[i, end] = whole[i]
    return table
