"""Compiled dependences of a step on the one before, which moves and uses the same."""

# pyright: reportArgumentType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import inner, leaf
from maniple.regions.columns import history
from maniple.regions.columns.bit_sets import Column
from maniple.regions.columns.boxes import Boxes
from maniple.regions.columns.history import EDGES, MOVES, NONE, USE, History, Table
from maniple.regions.columns.storage import ACCESSES, FIRST, INSTANCE, INSTANCES, LAST, NODE, WRITES, Storage
from maniple.regions.columns.validity import ACCUMULATE, MEMORY, READ, Given, reduces


@inner
def carry(given: Given, past: History, kept: Storage, uses: Table) -> Table:
    """What the rows of the next step wait for; that a row waits for its own run before goes without saying.

    Args:
        given: the region's uses.
        past: who used what last in the step before; used up.
        kept: what every row uses.
        uses: (first task, one past the last, privilege) of each use.
    """
    tasks, task_boxes = given[0], given[1]
    moves, marks, sizes, accesses = past[0], past[6], past[7], kept[2]
    sizes[EDGES] = 0
    marks[: len(tasks) + sizes[MOVES]] = NONE
    readers = _readers(kept)
    number = at = 0
    for use in range(len(uses)):
        while number < sizes[MOVES] and moves[number, USE] == use:
            while at < kept[8][ACCESSES] and accesses[at, NODE] == len(tasks) + number:
                _follow(past, kept, readers, at)
                at += 1
            number += 1
        first, last, privilege = uses[use]
        for task in range(first, last):
            place = _place(given, kept, task, privilege)
            history.depend(past, task, place, task_boxes, task, privilege != READ)
            if privilege == ACCUMULATE:
                _hide(past, place, task_boxes, task)  # who adds to what the task made waits for the task
        if privilege != READ:
            for task in range(first, last):
                _hide(past, _place(given, kept, task, privilege), task_boxes, task)
    return past[2][: sizes[EDGES]].copy()


@leaf
def _place(given: Given, kept: Storage, task: int, privilege: int) -> int:
    """The place of the instance that a task uses: of a contribution to which it adds, that of who made it."""
    if not reduces(privilege):
        return int(given[0][task, MEMORY])
    return int(kept[7][kept[6][len(given[4]) + task]])


@inner
def _readers(kept: Storage) -> Column:
    """The row that reads each instance that has no place: a tile on its way has one."""
    accesses, place_of, sizes = kept[2], kept[7], kept[8]
    readers = np.full(sizes[INSTANCES], NONE)
    for number in range(sizes[ACCESSES]):
        instance = accesses[number, INSTANCE]
        if place_of[instance] == NONE and not accesses[number, WRITES]:
            readers[instance] = accesses[number, NODE]
    return readers


@leaf
def _follow(past: History, kept: Storage, readers: Column, number: int) -> None:
    """Let a row of the next step wait for what conflicts with one of its accesses, and forget what that hides."""
    spaces, accesses, place_of = kept[1], kept[2], kept[7]
    node, instance, writes = accesses[number, NODE], accesses[number, INSTANCE], accesses[number, WRITES] == 1
    place = place_of[instance]
    if place == NONE:
        if writes and readers[instance] not in (NONE, node):
            history.after(past, readers[instance], node)
        return
    for row in range(accesses[number, FIRST], accesses[number, LAST]):
        history.depend(past, node, place, spaces, row, writes)
        if writes:
            _hide(past, place, spaces, row)


@leaf
def _hide(past: History, place: int, table: Boxes, row: int) -> None:
    """Forget who used a box: whoever comes later waits for the row that writes it now."""
    history.hide(past, 2 * place, table, row)
    history.hide(past, 2 * place + 1, table, row)
