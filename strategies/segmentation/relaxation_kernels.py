"""Compiled sweep of an ideal lattice for groups of devices: whether any pipeline may keep a bottleneck."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from maniple.process.compilation.compiled import kernel
from maniple.strategies.pipeline.ideal_kernels import Index, Ticks

__all__: list[str] = []

Floats = npt.NDArray[np.float64]

NONE = -(1 << 62)


class Stages(NamedTuple):
    """The stages that there may be: where they start in the slots, and what they cost.

    Args:
        begin: the slot at which it starts.
        replicas: the slots that it takes.
        last: the slot after its group.
        kind: its column in the table of works.
        inside: ticks per byte that crosses a cut inside a group, by kind.
        outside: ticks per byte that crosses a cut between groups, by kind.
        group: the column of its group in the table of groups' works.
    """

    begin: Index
    replicas: Index
    last: Index
    kind: Index
    inside: Floats
    outside: Floats
    group: Index


class Ideals(NamedTuple):
    """The ideals of a graph in order of size, and what their nodes cost.

    Args:
        first: where the steps from each ideal start in ``larger``.
        larger: the ideals with one node more.
        work: ticks of each ideal by kind of stage, shape (ideals, kinds).
        shared: ticks of each ideal by replicas of a group, all devices of which share it evenly, (ideals, groups).
        crossing: bytes over the cut of each ideal.
    """

    first: Index
    larger: Index
    work: Ticks
    shared: Ticks
    crossing: Floats


class Here(NamedTuple):
    """What is known at one ideal.

    Args:
        work: its ticks by kind of stage.
        shared: its ticks by replicas of a group.
        crossing: bytes over its cut.
        start: of each stage that is open, the most work that it can have had behind it; written.
        began: the same of its group; written.
        reached: of each number of slots that are used, the most work that their last group can have begun after;
            written.
    """

    work: Ticks
    shared: Ticks
    crossing: float
    start: Ticks
    began: Ticks
    reached: Ticks


@kernel
def keeps(ideals: Ideals, stages: Stages, slots: int, bound: int) -> bool:
    """Whether the whole graph can be computed with no stage above a bound.

    Args:
        ideals: of the graph.
        stages: see there.
        slots: how many there are.
        bound: ticks that no stage may exceed.
    """
    first, larger, count = ideals.first, ideals.larger, ideals.crossing.size
    # Steps lead to ideals of the next size only, which are near by: rows are used again.
    rows = 1
    for i in range(count):
        for e in range(first[i], first[i + 1]):
            rows = max(rows, larger[e] - i + 1)
    # Where the open stages began, and where their groups did: the most work that they can have had behind them.
    start = np.full((rows, stages.begin.size), NONE, dtype=np.int64)
    began = np.full((rows, stages.begin.size), NONE, dtype=np.int64)
    reached = np.empty(slots + 1, dtype=np.int64)
    for i in range(count):
        reached[:] = NONE
        if i == 0:
            reached[0] = 0
        row = i % rows
        here = Here(ideals.work[i], ideals.shared[i], ideals.crossing[i], start[row], began[row], reached)
        _end(here, stages, bound)
        if i == count - 1:
            return bool(reached[slots] != NONE)
        _open(here, stages, bound)
        for e in range(first[i], first[i + 1]):
            there = larger[e] % rows
            for c in range(start.shape[1]):
                start[there, c] = max(start[there, c], here.start[c])
                began[there, c] = max(began[there, c], here.began[c])
        here.start[:] = NONE
        here.began[:] = NONE
    return False


@kernel
def _end(here: Here, stages: Stages, bound: int) -> None:
    """End stages at an ideal; a group may leave devices idle, and so may the machine."""
    start, began, reached = here.start, here.began, here.reached
    for c in range(start.size):
        kind = stages.kind[c]
        if start[c] == NONE:
            continue
        if here.work[kind] - start[c] > bound or here.shared[stages.group[c]] - began[c] > bound:
            start[c] = NONE
            continue
        after = stages.begin[c] + stages.replicas[c]
        if after < stages.last[c] and here.crossing * stages.inside[kind] <= bound + 1:
            reached[after] = max(reached[after], began[c])
        if here.crossing * stages.outside[kind] <= bound + 1:
            reached[stages.last[c]] = 0
    size = stages.last[0]
    for c in range(start.size):
        begin, last = stages.begin[c], stages.last[c]
        if reached[begin] == NONE:
            continue
        if begin == last - size:
            reached[last] = 0
        elif begin + 1 < last:
            reached[begin + 1] = max(reached[begin + 1], reached[begin])


@kernel
def _open(here: Here, stages: Stages, bound: int) -> None:
    """Open stages at an ideal that some slots have reached."""
    start, began, reached = here.start, here.began, here.reached
    size = stages.last[0]
    for c in range(start.size):
        kind, begin = stages.kind[c], stages.begin[c]
        leads = begin == stages.last[c] - size
        per_byte = stages.outside[kind] if leads else stages.inside[kind]
        if reached[begin] != NONE and here.crossing * per_byte <= bound + 1:
            start[c] = max(start[c], here.work[kind])
            began[c] = max(began[c], here.shared[stages.group[c]] if leads else reached[begin])
