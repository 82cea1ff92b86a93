"""Compiled emission of copies and folds: they become rows, with the dependences and the storage that they have."""

# pyright: reportArgumentType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import inner, leaf
from maniple.regions.columns import boxes, history, row_major, storage, validity
from maniple.regions.columns.bit_sets import Column
from maniple.regions.columns.boxes import Boxes
from maniple.regions.columns.history import FROM, NONE, TO, TOUCHED, History, Table
from maniple.regions.columns.storage import KEPT, STAGING, Storage
from maniple.regions.columns.validity import COPY, FOLD, MEMORY, PROCESSOR, Given, State

READS, WRITES = False, True
RECORDS = True


@leaf
def copies(given: Given, past: History, kept: Storage, use: int, table: Boxes, starts: Column) -> None:
    """Emit a copy for each group of boxes labelled source * memories + target."""
    memories = len(given[4])
    for number in range(len(starts) - 1):
        group = table[starts[number] : starts[number + 1]]
        source, target = group[0, 0] // memories, group[0, 0] % memories
        ends = storage.reserve(kept, source, group), storage.reserve(kept, target, group)
        node = _copy(given, past, use, source, target, group)
        storage.copy(kept, node, ends[0], ends[1], group)
        history.touch(past, node, source, group, READS, RECORDS)
        history.touch(past, node, target, group, WRITES, RECORDS)


@leaf
def _copy(given: Given, past: History, use: int, source: int, target: int, table: Boxes) -> int:
    """Add a copy between two memories; returns its node."""
    moves, count = past[0], len(given[0])
    node = history.move(past, count, use, COPY, NONE, boxes.volume_of(table))
    moves[node - count, FROM], moves[node - count, TO] = source, target
    moves[node - count, TOUCHED] = row_major.touched_bytes(table, given[6])
    return node


@leaf
def part(
    given: Given, past: History, kept: Storage, use: int, table: Boxes, listed: Column, group: Column
) -> tuple[int, int]:
    """What one memory adds to a fold: a contribution, the base, or a fold of several.

    Returns:
        The node that makes it, none for a base; and its instance.
    """
    first, last, has_base, memories = group[1], group[2], group[3], len(given[4])
    # One contribution, or the base, is what it is; several are folded into one tile first, so that one leaves.
    if last - first + has_base == 1:
        if has_base:
            return NONE, storage.reserve(kept, group[0], table)
        return int(listed[first]), storage.held(kept, memories + listed[first])
    by = given[0][listed[first], PROCESSOR]
    touched = boxes.volume_of(table) * (last - first + has_base + 1)
    node = history.move(past, len(given[0]), use, FOLD, by, touched)
    # An instance of its own for the tile, of the size of the bounds as every instance.
    given[5][group[0]] += boxes.bounding_volume(table)
    instance = _keep_part(memories, kept, node, table, listed, group) if kept[8][KEPT] else NONE
    history.contributions(past, memories, listed, first, last, node, table, kept[8][KEPT] == 1)
    if has_base:
        history.touch(past, node, group[0], table, READS, RECORDS)
    return node, instance


@leaf
def _keep_part(memories: int, kept: Storage, node: int, table: Boxes, listed: Column, group: Column) -> int:
    """Keep what a fold of one memory's part folds, and into what; returns that instance."""
    base = storage.reserve(kept, group[0], table) if group[3] else NONE
    instance = storage.make(kept, group[0], STAGING, NONE, table)
    first = storage.space(kept, table)
    last, slot = first + len(table), 1
    storage.access(kept, node, instance, first, last, WRITES, 0)
    if group[3]:
        storage.access(kept, node, base, first, last, READS, slot)
        slot += 1
    for place in range(group[1], group[2]):
        storage.access(kept, node, storage.held(kept, memories + listed[place]), first, last, READS, slot)
        slot += 1
    return instance


@leaf
def after(given: Given, past: History, kept: Storage, sources: Column, items: int, node: int, table: Boxes) -> None:
    """Let a node wait for the first items that give it boxes: tasks that contribute, or movements."""
    for item in range(items):
        if sources[item] < len(given[0]):
            records = kept[8][KEPT] == 1
            history.contributions(past, len(given[4]), sources, item, item + 1, node, table, records)
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
    given: Given,
    state: State,
    past: History,
    kept: Storage,
    use: int,
    use_tasks: Column,
    folds: Boxes,
    described: Table,
) -> None:
    """Emit a fold of boxes and what it needs first: a fold of several contributions and a copy for each far memory."""
    owner, description = folds[0, 0] // len(described), folds[0, 0] % len(described)
    listed, groups = validity.parts(given, state, described[description, 0], described[description, 1])
    memories, size = len(given[4]), boxes.volume_of(folds)
    waits = np.empty(len(listed) + len(groups), dtype=np.int64)
    tiles = np.empty(len(listed) + len(groups), dtype=np.int64)
    items = count = 0
    for number in range(len(groups)):
        memory = groups[number, 0]
        if memory == owner:
            # The owner's own contributions need no copy, and its base is where the result goes: it is read in place.
            if groups[number, 3]:
                tiles[count] = storage.reserve(kept, memory, folds)
                count += 1
            for place in range(groups[number, 1], groups[number, 2]):
                waits[items], tiles[count] = listed[place], storage.held(kept, memories + listed[place])
                items, count = items + 1, count + 1
            continue
        waits[items], start = part(given, past, kept, use, folds, listed, groups[number])
        # Two things in one entry: first who makes the tile that the copy takes, so that it is behind that; then, below,
        # the copy itself, which the fold is behind.
        tiles[count] = storage.stage(kept, owner, folds)
        node = _copy(given, past, use, memory, owner, folds)
        given[5][owner] += boxes.bounding_volume(folds)
        storage.copy(kept, node, start, tiles[count], folds)
        if waits[items] == NONE:
            history.touch(past, node, memory, folds, READS, RECORDS)
        else:
            after(given, past, kept, waits[items:], 1, node, folds)
        waits[items] = node
        items, count = items + 1, count + 1
    by = _folding(given, use_tasks, owner, folds)
    target = storage.reserve(kept, owner, folds)
    # Each part is read once, and the result is written.
    node = history.move(past, len(given[0]), use, FOLD, by, size * (count + 1))
    storage.fold(kept, node, target, tiles, count, folds)
    after(given, past, kept, waits, items, node, folds)
    history.touch(past, node, owner, folds, WRITES, RECORDS)
