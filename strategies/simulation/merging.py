"""Compiled merges: where many contributions of one memory wait for an element, they are folded into the first.

The rule of `MovementPlan.merge`: a use that contributes to elements for which MOST_PENDING contributions of its memory
wait already has these folded into the first of them, which then waits alone.
"""

# pyright: reportArgumentType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.strategies.simulation import bits, boxes, history, region
from maniple.strategies.simulation.bits import Bits, Column
from maniple.strategies.simulation.boxes import WIDTH, Boxes
from maniple.strategies.simulation.history import NONE, History
from maniple.strategies.simulation.kernel import inner
from maniple.strategies.simulation.region import FOLD, MEMORY, PROCESSOR, Given, State

MOST_PENDING = 16
"""As `regions/movement_plan.py` has it; compiled code sees no change of another layer's number."""


@inner
def merge(given: Given, state: State, past: History, use: int) -> None:
    """Merge what waits in many parts in memories that contribute to the cells that `state` says are needed.

    Args:
        given: the region's uses.
        state: its cells; needed are those to which the use contributes, in the memories of its tasks.
        past: the rows so far.
        use: the use.
    """
    waiting, need = state[1], state[2]
    memories = len(given[4])
    table, own = np.empty((0, WIDTH), dtype=np.int64), bits.empty(0, len(given[0]))
    for memory in range(memories):
        labels, found = _labels(given, waiting, need, memory)
        if len(found):
            pieces = region.pieces(given, labels)
            pieces[:, 0] += len(own)
            table, own = np.concatenate((table, pieces)), np.concatenate((own, found))
    if len(table) == 0:
        return
    table, starts = boxes.grouped(table)
    for number in range(len(starts) - 1):
        _emit(given, past, use, table[starts[number] : starts[number + 1]], own)
    for cell in range(len(waiting)):
        _forget(given, waiting, need, cell)


@inner
def _waiting_in(given: Given, waiting: Bits, cell: int, memory: int) -> Column:
    """The contributions of a memory that wait for a cell, first ones first."""
    found = bits.members(waiting, cell)
    count = 0
    for task in found:
        if given[0][task, MEMORY] == memory:
            found[count] = task
            count += 1
    return found[:count]


@inner
def _labels(given: Given, waiting: Bits, need: Bits, memory: int) -> tuple[Column, Bits]:
    """The cells where a memory merges, numbered by what it merges; and these contributions as sets."""
    labels, found = np.full(len(waiting), NONE), bits.empty(len(waiting), len(given[0]))
    count = 0
    for cell in range(len(waiting)):
        if not bits.has(need, cell, memory):
            continue
        own = _waiting_in(given, waiting, cell, memory)
        if len(own) < MOST_PENDING:
            continue
        for word in range(found.shape[1]):
            found[count, word] = 0
        for place in range(len(own)):
            bits.add(found, count, own[place])
        for other in range(count + 1):
            if bits.equal(found, other, found, count):
                labels[cell] = other
                count += other == count
                break
    return labels, found[:count]


@inner
def _emit(given: Given, past: History, use: int, table: Boxes, own: Bits) -> None:
    """Emit the fold of some contributions into the first of them."""
    merged = bits.members(own, table[0, 0])
    touched = boxes.volume_of(table) * (len(merged) + 1)
    node = history.move(past, len(given[0]), use, FOLD, given[0][merged[0], PROCESSOR], touched)
    for place in range(len(merged)):
        history.contribution(past, len(given[4]), merged[place], node, table)
    history.record(past, node, len(given[4]) + merged[0], table, True)


@inner
def _forget(given: Given, waiting: Bits, need: Bits, cell: int) -> None:
    """Let only the first of merged contributions wait."""
    memories = bits.members(need, cell)
    for place in range(len(memories)):
        own = _waiting_in(given, waiting, cell, memories[place])
        if len(own) >= MOST_PENDING:
            for task in own[1:]:
                waiting[cell, task >> 5] &= ~(1 << (task & 31))
