"""Memory plans: where instances that live within a run lie in a block, in turn where never alive together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from maniple.runtime.schedule.lifetime import Lifetimes

__all__: list[str] = []

ALIGNMENT = 64
"""Bytes of a cache line: no two instances share one."""
SHARING = 4096
"""How many instances of a memory share places, the largest; the others have places of their own."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Where the instances of one memory lie.

    Args:
        offsets: by instance, in bytes from the start of the block.
        size: bytes of the block.
        unshared: bytes that a place for each would take.
        bound: bytes that are alive at once in one order of the steps: no block can be smaller.
    """

    offsets: Mapping[int, int]
    size: int
    unshared: int
    bound: int


def plan_memory(lifetimes: Lifetimes, sizes: Mapping[int, int]) -> MemoryPlan:
    """Plan one memory.

    Args:
        lifetimes: of its instances and perhaps of others.
        sizes: bytes of each instance of the memory.
    """
    rows = [row for row, number in enumerate(lifetimes.numbers) if number in sizes]
    numbers = [lifetimes.numbers[row] for row in rows]
    taken = [-(-sizes[number] // ALIGNMENT) * ALIGNMENT for number in numbers]
    if len(rows) < 2:
        found = [0] * len(rows)
        bound = sum(taken)
    else:
        found = pack(taken, lambda one, others: lifetimes.clashes(rows[one], [rows[other] for other in others]))
        by_row = dict(zip(rows, taken, strict=True))
        bound = lifetimes.peak([by_row.get(row, 0) for row in range(len(lifetimes.numbers))])
    size = max((offset + length for offset, length in zip(found, taken, strict=True)), default=0)
    return MemoryPlan(dict(zip(numbers, found, strict=True)), size, sum(taken), bound)


def pack(sizes: Sequence[int], clashes: Callable[[int, Sequence[int]], npt.NDArray[np.bool_]]) -> list[int]:
    """Give offsets so that no two that clash overlap: largest first, each into the smallest gap that holds it.

    This is greedy by size with best fit (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net
    Inference", 2020), on any clashes, not on those of intervals alone. A clashes with B and C, which take turns:

        =====  ====  ======
        which  size  offset
        =====  ====  ======
        A      4     0
        B      3     4
        C      2     4
        =====  ====  ======

    Args:
        sizes: of each; equal ones go by number.
        clashes: says which of some others one clashes with.
    """
    order = sorted(range(len(sizes)), key=lambda one: (-sizes[one], one))
    offsets, ends = np.zeros(len(sizes), np.int64), np.zeros(len(sizes), np.int64)
    placed: list[int] = []
    for one in order[:SHARING]:
        if placed:
            near = np.asarray(placed)[clashes(one, placed)]
            offsets[one] = _gap(offsets[near], ends[near], sizes[one])
        ends[one] = offsets[one] + sizes[one]
        placed.append(one)
    top = int(ends.max(initial=0))
    for one in order[SHARING:]:
        offsets[one] = top
        top += sizes[one]
    return [int(offset) for offset in offsets]


def _gap(starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], size: int) -> int:
    """Find the smallest gap between blocks, which may overlap, that holds so many bytes; else the end of them."""
    if not len(starts):
        return 0
    order = np.argsort(starts, kind="stable")
    # A gap begins where all before it have ended, and lasts until the next begins.
    begins = np.concatenate(([0], np.maximum.accumulate(ends[order])))
    room = starts[order] - begins[:-1]
    fits = np.flatnonzero(room >= size)
    return int(begins[fits[np.argmin(room[fits])]] if len(fits) else begins[-1])
