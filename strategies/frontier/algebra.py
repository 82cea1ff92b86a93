"""The algebra of frontiers: sets of (memory, ticks) of which no point is beaten in both, under union and product.

A point beats another that has at least its memory and at least its ticks. `reduce` keeps what is beaten by no other;
the *union* of two sets is a choice between them, the *product* is both at once, and sums memory and ticks:

    F           G           F u G       F x G
    (1, 9)      (2, 4)      (1, 9)      (3, 13)    (1, 9) + (2, 4)
    (4, 3)      (5, 1)      (2, 4)      (6, 7)     (4, 3) + (2, 4)
                            (4, 3)      (9, 4)     (4, 3) + (5, 1)
                            (5, 1)                 (1, 9) + (5, 1) = (6, 10) is beaten by (6, 7)

With the empty set as zero and {(0, 0)} as one this is a commutative semiring whose sum is idempotent, so a best choice
for each part of a graph can be found by eliminating operators one by one (Z. Cai et al., TensorOpt: Exploring the
Tradeoffs in Distributed DNN Training with Auto-Parallelism, arXiv 2004.10856, section 3).

A frontier is two columns: memory ascending, ticks descending, both strictly. Both are whole numbers, so sums are exact
in whatever order they are made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from maniple.process.compilation.compiled import inner, kernel

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []

Column = npt.NDArray[np.int64]
Columns = tuple[Column, Column]
Weights = npt.NDArray[np.float64]
Bounds = npt.NDArray[np.float64]

UNLIMITED = np.iinfo(np.int64).max
"""No limit of memory."""


def reduce(memory: Column, ticks: Column) -> Column:
    """Which of some points are their frontier: their places, memory ascending; of equal points the first.

    Args:
        memory: of each point.
        ticks: of each point.
    """
    order = np.lexsort((ticks, memory))
    falling = np.minimum.accumulate(ticks[order])
    kept = np.ones(len(order), dtype=bool)
    kept[1:] = falling[1:] < falling[:-1]
    places: Column = order[kept]
    return places


@kernel
def unite(memory: Column, ticks: Column, pairs: Column, limit: int) -> tuple[Column, Column, Column, Column]:
    """The union of the products of pairs of frontiers, memory above a limit left out; see ``unite_below``."""
    return unite_below(memory, ticks, pairs, limit, np.empty((0, 2)), np.empty(0))


@kernel
def unite_below(
    memory: Column, ticks: Column, pairs: Column, limit: int, weights: Weights, bounds: Bounds
) -> tuple[Column, Column, Column, Column]:
    """The union of the products of pairs of frontiers, without what is above a limit of memory or a bound.

    Each point of the left frontier of a pair makes a row of sums with the right one, of which memory ascends. The rows
    are merged by a heap; a row skips what the least ticks so far beat, so of the sums few are looked at.

    Args:
        memory: of the points of all frontiers, one after the other.
        ticks: the same of their ticks.
        pairs: [pair, (first point of the left, its points, first of the right, its points)].
        limit: the most memory that a point may need.
        weights: [bound, (of memory, of ticks)].
        bounds: the largest weighted sums that a point may have.

    Returns:
        Memory and ticks of the union, and of each point the two that it is the sum of: of several with the same sum
        the one of the first pair, and of its first left point.
    """
    heap, ends, size = _rows(memory, ticks, pairs, weights, bounds)
    found = np.empty((16, 4), dtype=np.int64)
    count = 0
    least = UNLIMITED
    while size > 0 and heap[0, 0] <= limit:
        total, sum_ticks, row, left, right = heap[0, 0], heap[0, 1], heap[0, 2], heap[0, 3], heap[0, 4]
        if sum_ticks < least:
            # What a point above the bounds beats is above them, too.
            least = sum_ticks
            if _is_below(total, sum_ticks, weights, bounds):
                if count == len(found):
                    larger = np.empty((2 * count, 4), dtype=np.int64)
                    larger[:count] = found
                    found = larger
                found[count, 0], found[count, 1], found[count, 2], found[count, 3] = total, sum_ticks, left, right
                count += 1
        following = _first_below(ticks, int(right) + 1, int(ends[row]), int(least - ticks[left]))
        if following < ends[row]:
            _sink(heap, size, memory[left] + memory[following], ticks[left] + ticks[following], row, left, following)
        else:
            size -= 1
            if size > 0:
                last = heap[size].copy()
                _sink(heap, size, last[0], last[1], last[2], last[3], last[4])
    kept = found[:count]
    return kept[:, 0].copy(), kept[:, 1].copy(), kept[:, 2].copy(), kept[:, 3].copy()


@inner
def _rows(memory: Column, ticks: Column, pairs: Column, weights: Weights, bounds: Bounds) -> tuple[Column, Column, int]:
    """The heap of the first sums of all rows, where each row ends among the right points, and how many there are."""
    rows = 0
    for pair in range(len(pairs)):
        if pairs[pair, 3] > 0:
            rows += pairs[pair, 1]
    heap = np.empty((rows, 5), dtype=np.int64)  # memory, ticks, number of the row, left point, right point
    ends = np.empty(rows, dtype=np.int64)
    size = number = 0
    for pair in range(len(pairs)):
        start, length = pairs[pair, 2], pairs[pair, 3]
        if length == 0:
            continue
        fewest = ticks[start + length - 1]
        for left in range(pairs[pair, 0], pairs[pair, 0] + pairs[pair, 1]):
            # No sum of the row has less memory than its first one, nor fewer ticks than its last one.
            if _is_below(memory[left] + memory[start], ticks[left] + fewest, weights, bounds):
                ends[number] = start + length
                _push(heap, size, memory[left] + memory[start], ticks[left] + ticks[start], number, left, start)
                size += 1
                number += 1
    return heap, ends, size


@inner
def _is_below(memory: int, ticks: int, weights: Weights, bounds: Bounds) -> bool:
    """Whether no weighted sum of a point is above its bound."""
    for number in range(len(bounds)):
        if weights[number, 0] * memory + weights[number, 1] * ticks > bounds[number]:
            return False
    return True


@inner
def _first_below(ticks: Column, begin: int, end: int, bound: int) -> int:
    """The first place from `begin` on whose ticks, which fall, are below a bound; `end` if there is none."""
    step = 1
    low = begin
    high = begin
    while high < end and ticks[high] >= bound:  # by doubling steps: mostly it is near
        low = high + 1
        high += step
        step *= 2
    high = min(high, end)
    while low < high:
        middle = (low + high) // 2
        if ticks[middle] < bound:
            high = middle
        else:
            low = middle + 1
    return low


@inner
def _before(heap: Column, place: int, memory: int, ticks: int, row: int) -> bool:
    """Whether an entry of the heap comes before a sum: by memory, then ticks, then the number of its row."""
    if heap[place, 0] != memory:
        return bool(heap[place, 0] < memory)
    if heap[place, 1] != ticks:
        return bool(heap[place, 1] < ticks)
    return bool(heap[place, 2] < row)


@inner
def _push(heap: Column, size: int, memory: int, ticks: int, row: int, left: int, right: int) -> None:
    """Put an entry at the end of the heap, and move it up to its place."""
    place = size
    while place > 0 and not _before(heap, (place - 1) // 2, memory, ticks, row):
        heap[place] = heap[(place - 1) // 2]
        place = (place - 1) // 2
    _put(heap, place, memory, ticks, row, left, right)


@inner
def _sink(heap: Column, size: int, memory: int, ticks: int, row: int, left: int, right: int) -> None:
    """Put an entry in place of the first one, and move it down to its place."""
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _before(heap, child + 1, heap[child, 0], heap[child, 1], heap[child, 2]):
            child += 1
        if not _before(heap, child, memory, ticks, row):
            break
        heap[place] = heap[child]
        place = child
    _put(heap, place, memory, ticks, row, left, right)


@inner
def _put(heap: Column, place: int, memory: int, ticks: int, row: int, left: int, right: int) -> None:
    heap[place, 0], heap[place, 1], heap[place, 2] = memory, ticks, row
    heap[place, 3], heap[place, 4] = left, right


@kernel
def thin_out(memory: Column, epsilon: float, floor: int) -> Column:
    """Which points of a frontier stand for all: their places, the first and the last always among them.

    Each point is kept, or the next one that is kept, which has fewer ticks, needs at most epsilon times its own memory
    more, or epsilon times `floor` where that is more; no choice of fewer places does that for the points between the
    first and the last. Sums keep it: where the whole of a sum needs at least `floor`, and at least what its part does,
    it needs at most 1 + epsilon times as much. Thinning what was thinned before multiplies the ratios.

    Args:
        memory: of the points, ascending, at least 0.
        epsilon: at least 0.
        floor: what the whole needs at least that the points are parts of.
    """
    count = len(memory)
    kept = np.empty(count, dtype=np.int64)
    size = 0
    place = 0
    while place < count:
        stands = place
        if place > 0:  # the first point stays, whatever is near
            allowed = memory[place] + epsilon * max(memory[place], floor)
            while stands + 1 < count and memory[stands + 1] <= allowed:
                stands += 1
        kept[size] = stands
        size += 1
        place = stands + 1
    return kept[:size].copy()


def union(*frontiers: Columns) -> Columns:
    """The frontier of a choice between some frontiers; of none the empty one."""
    memory = np.concatenate([np.empty(0, dtype=np.int64), *(memory for memory, _ in frontiers)])
    ticks = np.concatenate([np.empty(0, dtype=np.int64), *(ticks for _, ticks in frontiers)])
    kept = reduce(memory, ticks)
    return memory[kept], ticks[kept]


def product(*frontiers: Columns) -> Columns:
    """The frontier of what some frontiers need together; of none {(0, 0)}."""
    whole = one()
    for frontier in frontiers:
        whole = _product(whole, frontier)
    return whole


def maxima(left: Columns, right: Columns) -> tuple[Column, Column]:
    """The frontier of two at once that share nothing, so that the larger memory and the larger ticks count.

    Of each memory that a point of either has, the fastest points of both that need no more: as many are looked at as
    both have, and not as many as there are pairs.

    Args:
        left: a frontier.
        right: another.

    Returns:
        The places of its points in the left frontier, and in the right one.
    """
    if not len(left[0]) or not len(right[0]):
        nothing: Column = np.empty(0, dtype=np.int64)
        return nothing, nothing
    levels = np.union1d(left[0], right[0])
    levels = levels[levels >= max(left[0][0], right[0][0])]
    mine, other = (np.searchsorted(side[0], levels, "right") - 1 for side in (left, right))
    kept = reduce(levels, np.maximum(left[1][mine], right[1][other]))
    return mine[kept], other[kept]


def one() -> Columns:
    """The frontier of what needs nothing."""
    return np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)


def _product(left: Columns, right: Columns) -> Columns:
    parts: Sequence[int] = (0, len(left[0]), len(left[0]), len(right[0]))
    memory, ticks = np.concatenate((left[0], right[0])), np.concatenate((left[1], right[1]))
    found = unite(memory, ticks, np.array([parts], dtype=np.int64), UNLIMITED)
    return found[0], found[1]
