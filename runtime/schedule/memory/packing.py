"""Compiled packing: where things lie that may lie in one place if they do not clash.

Imports numba, so it is imported where the memory of a schedule is planned.
"""

# pyright: reportArgumentType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import kernel, leaf
from maniple.runtime.schedule.step_table import Bits, Column

__all__: list[str] = []


@kernel
def pack(sizes: Column, clashes: Bits) -> Column:
    """Give offsets so that no two that clash overlap, one after the other, each into the smallest gap that holds it.

    With the largest first, this is greedy by size with best fit (Pisarchyk and Lee, "Efficient Memory Management for
    Deep Neural Net Inference", 2020), on any clashes, not on those of intervals alone. A clashes with B and C, which
    take turns:

        =====  ====  ======
        which  size  offset
        =====  ====  ======
        A      4     0
        B      3     4
        C      2     4
        =====  ====  ======

    Args:
        sizes: of each, in the order in which they are placed.
        clashes: whether one clashes with another.
    """
    offsets = np.empty(len(sizes), np.int64)
    placed = np.empty(len(sizes), np.int64)  # by ascending offset
    for one in range(len(sizes)):
        offsets[one] = _gap(sizes, offsets, placed[:one], clashes, one)
        place = one
        while place > 0 and offsets[placed[place - 1]] > offsets[one]:
            placed[place] = placed[place - 1]
            place -= 1
        placed[place] = one
    return offsets


@leaf
def _gap(sizes: Column, offsets: Column, placed: Column, clashes: Bits, one: int) -> int:
    """Find the smallest gap between those that clash, which may overlap, that holds so many bytes; else their end."""
    # A gap begins where all before it have ended, and lasts until the next begins.
    found, least, end = -1, 0, 0
    for other in placed:
        if not clashes[one, other]:
            continue
        room = offsets[other] - end
        if room >= sizes[one] and (found < 0 or room < least):
            found, least = end, room
        end = max(end, offsets[other] + sizes[other])
    return end if found < 0 else found
