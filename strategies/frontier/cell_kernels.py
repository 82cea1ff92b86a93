"""Cells of frontiers, compiled: for each cell of a table the union of some products, a cell after the other.

A cell is a range of points of an arena: (first point, how many). The loops are those of `algebra`, without an array for
every cell.
"""

# pyright: reportArgumentType=false, reportReturnType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import kernel
from maniple.strategies.frontier.algebra import Bounds, Column, Weights, thin_out, unite_below

__all__: list[str] = []


@kernel
def unite_cells(
    memory: Column,
    ticks: Column,
    lefts: Column,
    rights: Column,
    limit: int,
    epsilon: float,
    weights: Weights,
    bounds: Bounds,
) -> tuple[Column, Column, Column, Column, Column]:
    """The unions of products of pairs of cells, one for each row of a table of pairs.

    Args:
        memory: of the points of an arena.
        ticks: the same of their ticks.
        lefts: [cell, pair, (first point, how many)] of the left factors.
        rights: the same of the right factors.
        limit: the most memory that a point may need.
        weights: [bound, (of memory, of ticks)].
        bounds: [cell, bound]: the largest weighted sums that a point may have.
        epsilon: points whose place a neighbour takes that needs at most 1 + epsilon times the memory are left out.

    Returns:
        Memory, ticks, left and right factor of the points of all cells, and of each cell how many there are.
    """
    cells, alternatives = lefts.shape[0], lefts.shape[1]
    lengths = np.zeros(cells, dtype=np.int64)
    found = np.empty((4, max(64, cells)), dtype=np.int64)
    count = 0
    pairs = np.empty((alternatives, 4), dtype=np.int64)
    for cell in range(cells):
        used = 0
        for pair in range(alternatives):
            if lefts[cell, pair, 1] > 0 and rights[cell, pair, 1] > 0:
                pairs[used, :2], pairs[used, 2:] = lefts[cell, pair], rights[cell, pair]
                used += 1
        if used == 0:
            continue
        own_memory, own_ticks, left, right = unite_below(memory, ticks, pairs[:used], limit, weights, bounds[cell])
        if epsilon > 0.0:
            kept = thin_out(own_memory, epsilon)
            own_memory, own_ticks, left, right = own_memory[kept], own_ticks[kept], left[kept], right[kept]
        size = len(own_memory)
        if count + size > found.shape[1]:
            larger = np.empty((4, 2 * (count + size)), dtype=np.int64)
            larger[:, :count] = found[:, :count]
            found = larger
        found[0, count : count + size], found[1, count : count + size] = own_memory, own_ticks
        found[2, count : count + size], found[3, count : count + size] = left, right
        lengths[cell] = size
        count += size
    return found[0, :count].copy(), found[1, :count].copy(), found[2, :count].copy(), found[3, :count].copy(), lengths
