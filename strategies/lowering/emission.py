"""Compiled emission of movements: copies, folds and collectives become rows with the dependences that they have."""

# pyright: reportArgumentType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.strategies.lowering import boxes, history, row_major, validity
from maniple.strategies.lowering.bit_sets import Column
from maniple.strategies.lowering.boxes import Boxes
from maniple.strategies.lowering.compiled import inner, leaf
from maniple.strategies.lowering.history import FROM, NONE, TO, TOUCHED, History, Table
from maniple.strategies.lowering.validity import ALL_REDUCE, COPY, FOLD, MEMORY, PROCESSOR, Given, State

READS, WRITES = False, True
RECORDS = True


@leaf
def copies(given: Given, past: History, use: int, table: Boxes, starts: Column) -> None:
    """Emit a copy for each group of boxes labelled source * memories + target."""
    memories = len(given[4])
    for number in range(len(starts) - 1):
        first, last = starts[number], starts[number + 1]
        source, target = table[first, 0] // memories, table[first, 0] % memories
        node = _copy(given, past, use, source, target, table[first:last])
        for row in range(first, last):
            history.depend(past, node, source, table, row, READS)
            history.depend(past, node, target, table, row, WRITES)
            history.record(past, node, source, table, row, READS)
            history.record(past, node, target, table, row, WRITES)


@leaf
def _copy(given: Given, past: History, use: int, source: int, target: int, table: Boxes) -> int:
    """Add a copy between two memories; returns its node."""
    moves, count = past[0], len(given[0])
    node = history.move(past, count, use, COPY, NONE, boxes.volume_of(table))
    moves[node - count, FROM], moves[node - count, TO] = source, target
    moves[node - count, TOUCHED] = row_major.touched_bytes(table, given[6])
    return node


@leaf
def _part(given: Given, past: History, use: int, table: Boxes, listed: Column, group: Column) -> int:
    """Give the node whose result one memory adds to a fold: a contribution, or a fold of several; none for a base."""
    first, last, has_base = group[1], group[2], group[3]
    # One contribution, or the base, is what it is; several are folded into one tile first, so that one leaves.
    if last - first + has_base == 1:
        return NONE if has_base else int(listed[first])
    by = given[0][listed[first], PROCESSOR]
    touched = boxes.volume_of(table) * (last - first + has_base + 1)
    node = history.move(past, len(given[0]), use, FOLD, by, touched)
    # An instance of its own for the tile, of the size of the bounds as every instance.
    given[5][group[0]] += boxes.bounding_volume(table)
    history.contributions(past, len(given[4]), listed, first, last, node, table)
    if has_base:
        history.touch(past, node, group[0], table, READS, RECORDS)
    return node


@leaf
def _after(given: Given, past: History, sources: Column, items: int, node: int, table: Boxes) -> None:
    """Let a node wait for the first items that give it boxes: tasks that contribute, or movements."""
    for item in range(items):
        if sources[item] < len(given[0]):
            history.contributions(past, len(given[4]), sources, item, item + 1, node, table)
        else:
            history.after(past, sources[item], node)


@leaf
def _folding(given: Given, use_tasks: Column, memory: int, table: Boxes) -> int:
    """Choose who folds in a memory: the first task there that needs some of the boxes, or else the first there."""
    tasks, task_boxes = given[0], given[1]
    fallback = NONE
    for task in use_tasks:
        if tasks[task, MEMORY] == memory:
            for row in range(len(table)):
                if boxes.overlap(task_boxes, task, table, row):
                    return int(tasks[task, PROCESSOR])
            if fallback == NONE:
                fallback = tasks[task, PROCESSOR]
    return fallback


@inner
def fold(
    given: Given, state: State, past: History, use: int, use_tasks: Column, folds: Boxes, described: Table
) -> None:
    """Emit a fold of boxes and what it needs first: a fold of several contributions and a copy for each far memory."""
    owner, description = folds[0, 0] // len(described), folds[0, 0] % len(described)
    listed, groups = validity.parts(given, state, described[description, 0], described[description, 1])
    size = boxes.volume_of(folds)
    waits = np.empty(len(listed) + len(groups), dtype=np.int64)
    items = near = 0
    for number in range(len(groups)):
        memory = groups[number, 0]
        if memory == owner:
            for place in range(groups[number, 1], groups[number, 2]):
                waits[items] = listed[place]
                items += 1
            near += groups[number, 3]
            continue
        source = _part(given, past, use, folds, listed, groups[number])
        # Two things in one entry: first who makes the tile that the copy takes, so that it is behind that; then, below,
        # the copy itself, which the fold is behind.
        waits[items] = source
        node = _copy(given, past, use, memory, owner, folds)
        given[5][owner] += boxes.bounding_volume(folds)
        if source == NONE:
            history.touch(past, node, memory, folds, READS, RECORDS)
        else:
            _after(given, past, waits[items:], 1, node, folds)
        waits[items] = node
        items += 1
    # The owner's own contributions need no copy, and its base is where the result goes: it is read in place.
    by = _folding(given, use_tasks, owner, folds)
    # Each part is read once, and the result is written.
    node = history.move(past, len(given[0]), use, FOLD, by, size * (items + near + 1))
    _after(given, past, waits, items, node, folds)
    history.touch(past, node, owner, folds, WRITES, RECORDS)


@inner
def reduction(
    given: Given,
    state: State,
    past: History,
    use: int,
    kind: int,
    group: Column,
    folds: Boxes,
    starts: Column,
    described: Table,
) -> None:
    """Emit an all-reduce or reduce-scatter: every block is folded by its owner, and then copied to all others."""
    volume = waiting = 0
    owned = np.zeros((len(given[4]), 2), dtype=np.int64)
    waits = np.empty(len(starts) * len(group), dtype=np.int64)
    last_cell = NONE
    listed, groups = np.empty(0, dtype=np.int64), np.empty((0, 4), dtype=np.int64)
    for number in range(len(starts) - 1):
        block = folds[starts[number] : starts[number + 1]]
        owner, description = block[0, 0] // len(described), block[0, 0] % len(described)
        volume += boxes.volume_of(block)
        owned[owner, 0] += boxes.volume_of(block)
        owned[owner, 1] += row_major.touched_bytes(block, given[6])
        given[5][owner] += boxes.bounding_volume(block) * (len(group) - 1)
        if described[description, 0] != last_cell or described[description, 1] != NONE:
            last_cell = described[description, 0]
            listed, groups = validity.parts(given, state, last_cell, described[description, 1])
        elif len(listed) == len(groups):
            # The same contributions as for the block before, and one a memory: nothing is made for a block, and all
            # wait for the same tasks. Where memories have several, `_part` folds them block by block.
            continue
        for part in range(len(groups)):
            waits[waiting] = _part(given, past, use, block, listed, groups[part])
            waiting += 1
    pushes = volume * (len(group) - 1) * (2 if kind == ALL_REDUCE else 1)
    node = history.move(past, len(given[0]), use, kind, NONE, pushes)
    _after(given, past, waits, waiting, node, folds)
    for memory in group:
        history.member(past, memory, owned[memory, 0], owned[memory, 1])
    _write_reduction(past, node, kind, group, folds, len(described))


@inner
def _write_reduction(past: History, node: int, kind: int, group: Column, folds: Boxes, descriptions: int) -> None:
    """Let a reduction write its blocks: everywhere, or each at its owner."""
    whole = folds.copy()
    for row in range(len(whole)):
        # Labels decide what may be joined: of an all-reduce all blocks, of a reduce-scatter those of one owner.
        whole[row, 0] = 0 if kind == ALL_REDUCE else folds[row, 0] // descriptions
    whole = boxes.merge(whole)
    for memory in group:
        for row in range(len(whole)):
            if kind == ALL_REDUCE or memory == whole[row, 0]:
                history.depend(past, node, memory, whole, row, WRITES)
                history.record(past, node, memory, whole, row, WRITES)


@inner
def distribution(
    given: Given, past: History, use: int, kind: int, group: Column, pieces: Boxes, sources: Column
) -> None:
    """Emit an all-gather or broadcast: each source reads its own boxes, each member writes what all others send."""
    mine = np.empty_like(pieces)
    count = volume = 0
    for piece in range(len(pieces)):
        # Pieces that nobody needs from elsewhere have no source and take no part.
        if sources[pieces[piece, 0]] != NONE:
            boxes.put(mine, count, pieces, piece)
            mine[count, 0] = sources[pieces[piece, 0]]
            volume += boxes.volume(pieces, piece)
            count += 1
    mine = boxes.merge(mine[:count])
    whole = mine.copy()
    for row in range(len(whole)):
        whole[row, 0] = 0
    whole = boxes.merge(whole)
    node = history.move(past, len(given[0]), use, kind, NONE, volume * (len(group) - 1))
    starts = np.zeros(len(group) + 1, dtype=np.int64)
    for place in range(len(group)):
        row = starts[place]
        # Both ascend by memory.
        while row < len(mine) and mine[row, 0] == group[place]:
            row += 1
        starts[place + 1] = row
        own = mine[starts[place] : row]
        history.member(past, group[place], boxes.volume_of(own), row_major.touched_bytes(own, given[6]))
    for place in range(len(group)):
        own = mine[starts[place] : starts[place + 1]]
        history.touch(past, node, group[place], own, READS, RECORDS)
        # What a member sends it has, so it reads that and writes the rest: readers of its own part need not wait.
        history.touch(past, node, group[place], boxes.subtract(whole, own), WRITES, RECORDS)
