"""Memory plans: where instances that live within a run lie in a block, in turn where never alive together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maniple.runtime.schedule.memory.lifetime import Lifetimes

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
    from maniple.runtime.schedule.memory.packing import pack

    rows = np.asarray([row for row, number in enumerate(lifetimes.numbers) if number in sizes], np.int64)
    numbers = [lifetimes.numbers[row] for row in rows]
    taken = np.asarray([-(-sizes[number] // ALIGNMENT) * ALIGNMENT for number in numbers], np.int64)
    order = np.argsort(-taken, kind="stable")  # equal ones by number
    sharing, apart = order[:SHARING], order[SHARING:]
    offsets = np.zeros(len(rows), np.int64)
    offsets[sharing] = pack(taken[sharing], lifetimes.clashes(rows[sharing]))
    top = int((offsets + taken)[sharing].max(initial=0))
    offsets[apart] = top + np.cumsum(taken[apart]) - taken[apart]
    size = top + int(taken[apart].sum())
    return MemoryPlan(
        dict(zip(numbers, offsets.tolist(), strict=True)), size, int(taken.sum()), lifetimes.peak(rows, taken)
    )
