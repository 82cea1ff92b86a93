"""Compiled dynamic programmes over pairs of nested ideals, for costs that do not pass along a lattice's steps.

Suffixes are solved from the last ideal back, so that a stage knows how many devices come after it, and with that how
many batches it holds in flight.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from maniple.process.compilation.compiled import kernel
from maniple.strategies.pipeline.ideal_kernels import Index, Ticks, Words
from maniple.strategies.pipeline.sweep_kernels import contains

__all__: list[str] = []

Floats = npt.NDArray[np.float64]

INFINITE = 1 << 61


class Holdings(NamedTuple):
    """What stages hold in memory.

    Args:
        parameters: bytes of weights of each ideal.
        stored: bytes that its nodes keep for backward.
        crossing: bytes that cross its cut.
        copies: bytes held per byte of weights, shape (devices after the stage, replicas - 1).
        flights: share of a mini-batch whose activations are held, same shape.
        limit: bytes that a stage may hold; negative: no limit.
    """

    parameters: Floats
    stored: Floats
    crossing: Floats
    copies: Floats
    flights: Floats
    limit: float


@kernel
def held_bytes(holdings: Holdings, start: int, end: int, after: int, m: int) -> float:
    """Bytes that each device of a stage holds."""
    weights = holdings.parameters[end] - holdings.parameters[start]
    activations = holdings.stored[end] - holdings.stored[start] + holdings.crossing[start]
    total: float = holdings.copies[after, m] * weights + holdings.flights[after, m] * activations
    return total


@kernel
def _load(work: Ticks, second: Ticks, transfer: Ticks, added: bool, i: int, j: int, m: int) -> int:  # noqa: FBT001
    load: int = max(work[j, m] - work[i, m], second[j, m] - second[i, m])
    if added:
        load += transfer[i, m] + transfer[j, m]
    else:
        load = max(load, transfer[i, m], transfer[j, m])
    return load


@kernel
def least_maximum(
    members: Words,
    work: Ticks,
    second: Ticks,
    transfer: Ticks,
    added: bool,  # noqa: FBT001
    holdings: Holdings,
    devices: int,
    ceiling: int,
) -> tuple[Ticks, Index, npt.NDArray[np.int16]]:
    """For every ideal and number of devices the least slowest stage of what comes after the ideal.

    Args:
        members: the ideals, by size.
        work: ticks of each ideal on 1, 2, ... replicas, shape (ideals, replicas).
        second: another such table, of which stages take the larger.
        transfer: ticks of transfers over its cut, same shape.
        added: whether transfers add to the work.
        holdings: what stages hold.
        devices: how many there are.
        ceiling: only stages below it count.

    Returns:
        Ticks of the slowest stage when exactly 0, 1, ... devices are used after the ideal, shape (ideals,
        devices + 1); the end of the first stage after it; its replicas.
    """
    count = members.shape[0]
    best = np.full((count, devices + 1), INFINITE, dtype=np.int64)
    ends = np.full((count, devices + 1), -1, dtype=np.int32)
    replicas = np.zeros((count, devices + 1), dtype=np.int16)
    best[count - 1, 0] = 0
    fewest = np.full(count, devices + 1, dtype=np.int64)
    fewest[count - 1] = 0
    for i in range(count - 2, -1, -1):
        for j in range(i + 1, count):
            if fewest[j] >= devices:
                continue
            if work[j, work.shape[1] - 1] - work[i, work.shape[1] - 1] >= ceiling and work.shape[1] == 1:
                continue
            if not contains(members[j], members[i]):
                continue
            for m in range(work.shape[1]):
                load = _load(work, second, transfer, added, i, j, m)
                if load >= ceiling:
                    continue
                for after in range(fewest[j], devices - m):
                    total = max(load, best[j, after])
                    used = after + m + 1
                    if total >= ceiling or total >= best[i, used]:
                        continue
                    if holdings.limit >= 0 and held_bytes(holdings, i, j, after, m) > holdings.limit:
                        continue
                    best[i, used], ends[i, used], replicas[i, used] = total, j, m + 1
                    fewest[i] = min(fewest[i], used)
    return best, ends, replicas


class Fill(NamedTuple):
    """What one mini-batch of several micro-batches costs, all in ticks.

    Args:
        first: of each ideal on 1, 2, ... replicas, the work of one micro-batch, shape (ideals, replicas): forward and
            backward together (1F1B), or forward (GPipe).
        second: backward (GPipe), or zero.
        synchronization: once per mini-batch.
        transfer: of one micro-batch over an ideal's cut, both directions.
        halves: in how many phases the directions are used: 1 together, 2 one after the other.
        added: whether a stage's transfers add to its work.
    """

    first: Ticks
    second: Ticks
    synchronization: Ticks
    transfer: Ticks
    halves: int
    added: bool


@kernel
def slots(fill: Fill, i: int, j: int, m: int) -> tuple[int, int, int]:
    """The time between a stage's micro-batches in each of its two phases, and its synchronisation."""
    a, b = fill.first[j, m] - fill.first[i, m], fill.second[j, m] - fill.second[i, m]
    before, after = fill.transfer[i, m] // fill.halves, fill.transfer[j, m] // fill.halves
    if fill.added:
        a += before + after
        b = b + before + after if fill.halves == 2 else b
    else:
        a = max(a, before, after)
        b = max(b, before, after) if fill.halves == 2 else b
    return a, b, fill.synchronization[j, m] - fill.synchronization[i, m]


@kernel
def _holds(members: Words, outer: int, inner: int) -> bool:
    """Whether one ideal holds another: as `contains`, without views of their rows, which take as long to make."""
    for word in range(members.shape[1]):  # noqa: SIM110  (numba compiles no generators)
        if members[inner, word] & ~members[outer, word]:
            return False
    return True


@kernel
def least_sum(
    members: Words,
    fill: Fill,
    holdings: Holdings,
    devices: int,
    bounds: Ticks,
) -> tuple[Ticks, Index, npt.NDArray[np.int16]]:
    """As ``least_maximum``: the least sum of the stages' fill times with no slot above its bound.

    Args:
        members: the ideals, by size.
        fill: what stages cost.
        holdings: what stages hold.
        devices: how many there are.
        bounds: of the two slots and of synchronisation, shape (3,).
    """
    count = members.shape[0]
    best = np.full((count, devices + 1), INFINITE, dtype=np.int64)
    ends = np.full((count, devices + 1), -1, dtype=np.int32)
    replicas = np.zeros((count, devices + 1), dtype=np.int16)
    best[count - 1, 0] = 0
    reached = np.zeros(count, dtype=np.bool_)
    reached[count - 1] = True
    most = fill.first.shape[1] - 1
    # By what is done on the most replicas, no stage of which is longer on fewer; of equals the smaller ideal first.
    order = np.argsort(fill.first[:, most], kind="mergesort")
    rank = np.empty(count, dtype=np.int64)
    rank[order] = np.arange(count)
    for i in range(count - 2, -1, -1):
        for place in range(rank[i] + 1, count):
            j = order[place]
            if fill.first[j, most] - fill.first[i, most] > bounds[0]:
                break  # and so are all after it
            if not reached[j] or not _holds(members, j, i):
                continue
            for m in range(most + 1):
                a, b, s = slots(fill, i, j, m)
                if a > bounds[0] or b > bounds[1] or s > bounds[2]:
                    continue
                passing = fill.first[j, m] - fill.first[i, m] + fill.second[j, m] - fill.second[i, m]
                # Each end of a cut is charged half of its transfer.
                passing += (fill.transfer[i, m] + fill.transfer[j, m]) // 2
                for after in range(devices - m):
                    if best[j, after] == INFINITE:
                        continue
                    total, used = passing + best[j, after], after + m + 1
                    if total >= best[i, used]:
                        continue
                    if holdings.limit >= 0 and held_bytes(holdings, i, j, after, m) > holdings.limit:
                        continue
                    best[i, used], ends[i, used], replicas[i, used] = total, j, m + 1
                    reached[i] = True
    return best, ends, replicas
