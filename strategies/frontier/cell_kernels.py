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
    floor: int,
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
        epsilon: points whose place a neighbour takes that needs hardly more memory are left out; see `thin_out`.
        floor: what the whole needs at least that the points are parts of.

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
            kept = thin_out(own_memory, epsilon, floor)
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


@kernel
def unroll(lefts: Column, rights: Column, first: int, count: int, starts: Column) -> Column:
    """What points are the sums of, as [point, operator]: which of the operator's points it is, from its first one on.

    Args:
        lefts: of the points of an arena the first one that each is the sum of; below -1: what it stands for.
        rights: the second one.
        first: the first of the points.
        count: how many there are.
        starts: of each operator the first mark, and one past the last; a point has one mark of each.
    """
    found = np.zeros((count, len(starts) - 1), dtype=np.int64)
    waiting = np.empty(64, dtype=np.int64)
    for place in range(count):
        waiting[0], size = first + place, 1
        while size > 0:
            size -= 1
            point = waiting[size]
            if lefts[point] >= 0:
                if size + 2 > len(waiting):
                    larger = np.empty(2 * len(waiting), dtype=np.int64)
                    larger[:size] = waiting[:size]
                    waiting = larger
                waiting[size], waiting[size + 1] = rights[point], lefts[point]
                size += 2
            elif lefts[point] < -1:
                mark = -2 - lefts[point]
                operator = np.searchsorted(starts, mark, side="right") - 1
                found[place, operator] = mark - starts[operator]
    return found
