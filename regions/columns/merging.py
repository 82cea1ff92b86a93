"""Compiled merges: where many contributions of one memory wait for an element, they are folded into the first.

The rule of `MovementPlan.merge`: a use that contributes to elements for which MOST_PENDING contributions of its memory
wait already has these folded into the first of them, which then waits alone.
"""

# pyright: reportArgumentType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import inner, leaf
from maniple.regions.columns import bit_sets, boxes, history, storage, validity
from maniple.regions.columns.bit_sets import Bits, Column
from maniple.regions.columns.boxes import WIDTH, Boxes
from maniple.regions.columns.history import NONE, History
from maniple.regions.columns.storage import KEPT, Storage
from maniple.regions.columns.validity import FOLD, MEMORY, PROCESSOR, Given, State

MOST_PENDING = 16
"""As `regions/movement_plan.py` has it; compiled code sees no change of another layer's number."""


@inner
def merge(given: Given, state: State, past: History, kept: Storage, use: int) -> None:
    """Merge what waits in many parts in memories that contribute to the cells that `state` says are needed.

    Args:
        given: the region's uses.
        state: its cells; needed are those to which the use contributes, in the memories of its tasks.
        past: the rows so far.
        kept: their storage.
        use: the use.
    """
    waiting, pending = state[1], state[3]
    table, own = np.empty((0, WIDTH), dtype=np.int64), np.empty((0, waiting.shape[1]), dtype=np.int64)
    for memory in range(len(pending)):
        # `pending` is a bound from above, raised by uses without a look at cells: only here it is found out exactly.
        if pending[memory] >= MOST_PENDING:
            labels, found = _labels(given, state, memory)
            if len(found):
                pieces = validity.pieces(given, labels)
                # Labels of this memory come after those of the memories before: equal boxes of two must not be joined.
                pieces[:, 0] += len(own)
                table, own = np.concatenate((table, pieces)), np.concatenate((own, found))
    if len(table) == 0:
        return
    table, starts = boxes.group(table)
    for number in range(len(starts) - 1):
        _emit(given, past, kept, use, table[starts[number] : starts[number + 1]], own)


@leaf
def is_due(state: State) -> bool:
    """Whether so many contributions of one memory may wait for one element that a use that adds to them merges them."""
    for memory in range(len(state[3])):
        if state[3][memory] >= MOST_PENDING:
            return True
    return False


@inner
def _labels(given: Given, state: State, memory: int) -> tuple[Column, Bits]:
    """The cells where a memory merges, numbered by what it merges, of which the first alone waits; what it merges."""
    waiting, need = state[1], state[2]
    labels, mine = np.full(len(waiting), NONE), np.zeros((1, waiting.shape[1]), dtype=np.int64)
    # The sets have room for tasks up to the last one that contributes; later ones cannot wait.
    for task in range(min(len(given[0]), 32 * waiting.shape[1])):
        if given[0][task, MEMORY] == memory:
            bit_sets.add(mine, 0, task)
    found = np.empty((len(waiting), waiting.shape[1]), dtype=np.int64)
    count = most = 0
    for cell in range(len(waiting)):
        # The row behind those found serves as room: what is new there stays, what is not is written over next time.
        size = _take_waiting(found, count, waiting, cell, mine)
        if size < MOST_PENDING or not bit_sets.has(need, cell, memory):
            most = max(most, size)
            continue
        _keep_first(waiting, cell, found, count)
        # It is equal to itself at the latest, and then it is a new one.
        for other in range(count + 1):
            if bit_sets.equal(found, other, found, count):
                labels[cell] = other
                count += other == count
                break
    # Where it merged, one waits.
    state[3][memory] = max(most, 1)
    return labels, found[:count]


@leaf
def _take_waiting(found: Bits, row: int, waiting: Bits, cell: int, mine: Bits) -> int:
    """Put those that wait for a cell and are one memory's into a set; how many they are."""
    size = 0
    for word in range(found.shape[1]):
        left = waiting[cell, word] & mine[0, word]
        found[row, word] = left
        while left:
            left &= left - 1
            size += 1
    return size


@leaf
def _keep_first(waiting: Bits, cell: int, merged: Bits, row: int) -> None:
    """Let only the first of merged contributions wait."""
    first = True
    for word in range(merged.shape[1]):
        left = merged[row, word]
        if left and first:
            # The lowest bit of the first word is the earliest contribution in program order: what is folded into it,
            # from the left, has the bits of a fold of all.
            left &= left - 1
            first = False
        waiting[cell, word] &= ~left


@inner
def _emit(given: Given, past: History, kept: Storage, use: int, table: Boxes, own: Bits) -> None:
    """Emit the fold of some contributions into the first of them."""
    merged, memories = bit_sets.members(own, table[0, 0]), len(given[4])
    touched = boxes.volume_of(table) * (len(merged) + 1)
    node = history.move(past, len(given[0]), use, FOLD, given[0][merged[0], PROCESSOR], touched)
    tiles = np.empty_like(merged)
    for number in range(len(merged)):
        tiles[number] = storage.held(kept, memories + merged[number])
    storage.fold(kept, node, tiles[0], tiles, len(tiles), table)
    history.contributions(past, memories, merged, 0, len(merged), node, table, kept[8][KEPT] == 1)
    for row in range(len(table)):
        history.record(past, node, memories + merged[0], table, row, True)
