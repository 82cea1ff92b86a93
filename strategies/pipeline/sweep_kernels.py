"""Compiled sweep of an ideal lattice: whether a bottleneck can be kept, in one pass over the lattice's steps.

A stage from ideal I to ideal J on m devices takes W_m(J) - W_m(I): its work is additive. So of all cuts I below J only
the one with the largest W_m(I) counts, and that maximum is passed along the steps of the lattice instead of being
looked for among all pairs of ideals.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from maniple.process.compilation.compiled import kernel
from maniple.strategies.pipeline.ideal_kernels import Index, Ticks, Words

__all__: list[str] = []

Small = npt.NDArray[np.int16]

NONE = -(1 << 62)
INFINITE = 1 << 61
NEVER = np.iinfo(np.int16).max


@kernel
def sweep(
    first: Index,
    larger: Index,
    work: Ticks,
    transfer: Ticks,
    added: bool,  # noqa: FBT001  (compiled functions take positional arguments)
    devices: int,
    bound: int,
    start: Ticks,
    used: Small,
) -> int:
    """The fewest devices on which each ideal can be computed with no stage above a bound.

    Args:
        first: where the steps from each ideal start in ``larger``.
        larger: the ideals with one node more.
        work: ticks of each ideal on 1, 2, ... replicas, shape (ideals, replicas).
        transfer: ticks that a stage on 1, 2, ... replicas needs for what crosses the ideal's cut, same shape.
        added: whether a stage's transfers add to its work; else the larger counts.
        devices: how many there are.
        bound: ticks that no stage may exceed.
        start: scratch, shape (ideals, pairs of a replica count m and devices 0 .. devices - m before it): the largest
            work at which a stage that is open at the ideal can have started.
        used: result, shape (ideals,): the fewest devices, NEVER where there are not enough.

    Returns:
        The smallest bound above this one that would change a decision; 0 where there is none.
    """
    need = INFINITE
    start[:] = NONE
    for i in range(used.size):
        fewest, wanted = _reach(i, work, transfer, added, devices, bound, start[i])
        used[i] = 0 if i == 0 else fewest
        need = min(need, wanted)
        if used[i] < devices:
            need = min(need, _open(i, work, transfer, added, devices, bound, used[i], start[i]))
        for e in range(first[i], first[i + 1]):
            j = larger[e]
            for c in range(start.shape[1]):
                start[j, c] = max(start[j, c], start[i, c])
    return 0 if need == INFINITE else need


@kernel
def _reach(
    i: int,
    work: Ticks,
    transfer: Ticks,
    added: bool,  # noqa: FBT001
    devices: int,
    bound: int,
    start: Ticks,
) -> tuple[int, int]:
    """The fewest devices on which a stage can end at an ideal, and the least load above the bound.

    What can end no stage any more, here or further up, is struck from ``start``.
    """
    fewest, need, k = NEVER, INFINITE, 0
    for m in range(work.shape[1]):
        for before in range(devices - m):
            if start[k] != NONE:
                load = work[i, m] - start[k]
                total = load + transfer[i, m] if added else max(load, transfer[i, m])
                if total <= bound:
                    fewest = min(fewest, before + m + 1)
                else:
                    need = min(need, total)
                if load > bound:
                    start[k] = NONE
                    need = min(need, load)
            k += 1
    return fewest, need


@kernel
def _open(
    i: int,
    work: Ticks,
    transfer: Ticks,
    added: bool,  # noqa: FBT001
    devices: int,
    bound: int,
    fewest: int,
    start: Ticks,
) -> int:
    """Open stages at an ideal that some devices have reached; the least transfer above the bound."""
    need, k = INFINITE, 0
    for m in range(work.shape[1]):
        for before in range(devices - m):
            if before >= fewest:
                if added:
                    start[k] = max(start[k], work[i, m] - transfer[i, m])
                elif transfer[i, m] <= bound:
                    start[k] = max(start[k], work[i, m])
                else:
                    need = min(need, transfer[i, m])
            k += 1
    return need


@kernel
def previous_cut(
    members: Words,
    work: Ticks,
    transfer: Ticks,
    added: bool,  # noqa: FBT001
    bound: int,
    used: Small,
    end: int,
    budget: int,
) -> tuple[int, int]:
    """Where the stage that ends at an ideal starts, and on how many replicas it runs.

    Of several starts: the fewest replicas, then the least transfer across the start, then the lowest ideal.
    """
    for m in range(work.shape[1]):
        found, least = -1, np.int64(0)
        if budget - m - 1 < 0:
            break
        for i in range(end):
            if used[i] > budget - m - 1:
                continue
            load = work[end, m] - work[i, m]
            if added:
                load += transfer[end, m] + transfer[i, m]
            else:
                load = max(load, transfer[end, m], transfer[i, m])
            if load > bound or (found >= 0 and transfer[i, m] >= least):
                continue
            if contains(members[end], members[i]):
                found, least = i, transfer[i, m]
        if found >= 0:
            return found, m + 1
    return -1, 0


@kernel
def contains(larger: Words, smaller: Words) -> bool:
    """Whether a bit set holds another."""
    for w in range(larger.size):  # noqa: SIM110  (numba compiles no generator)
        if smaller[w] & ~larger[w] != np.uint64(0):
            return False
    return True
