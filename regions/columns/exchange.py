"""Compiled emission of collectives: one row for what all members of a group send each other.

A row that is kept lists its blocks (see `block_record`): who pushes what where follows from these and a movement plan.
"""

# pyright: reportArgumentType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import inner
from maniple.regions.columns import block_record, boxes, early_fold, emission, history, row_major, storage, validity
from maniple.regions.columns.bit_sets import Column
from maniple.regions.columns.boxes import Boxes
from maniple.regions.columns.emission import READS, RECORDS, WRITES
from maniple.regions.columns.history import NONE, History, Table
from maniple.regions.columns.storage import KEPT, Storage
from maniple.regions.columns.validity import ALL_REDUCE, Given, State


@inner
def reduction(
    given: Given,
    state: State,
    past: History,
    kept: Storage,
    use: int,
    kind: int,
    group: Column,
    folds: Boxes,
    starts: Column,
    described: Table,
) -> None:
    """Emit an all-reduce or reduce-scatter: every block is folded by its owner, and then copied to all others."""
    blocks, keeps = len(starts) - 1, kept[8][KEPT] == 1
    volume = waiting = 0
    owned, waits = np.zeros((len(given[4]), 3), dtype=np.int64), np.empty(2 * len(group), dtype=np.int64)
    # Of each block its target, its owner and its run; and of each run what is folded and its first part.
    tiles = np.empty((blocks if keeps else 0, 3), dtype=np.int64)
    runs, count, last_cell = np.empty((blocks, 2), dtype=np.int64), 0, NONE
    listed, groups = np.empty(0, dtype=np.int64), np.empty((0, 4), dtype=np.int64)
    folded, reduced = early_fold.begin(folds, starts, described, len(given[4])), (folds, starts, described)
    for number in range(blocks):
        block = folds[starts[number] : starts[number + 1]]
        owner, description = block[0, 0] // len(described), block[0, 0] % len(described)
        volume += _own(given, owned, owner, block, len(group))
        based = described[description, 1] != NONE
        alike = described[description, 0] == last_cell and not based
        run = block_record.run_of(runs, count, description) if keeps and not based else NONE
        if run == NONE and not alike:
            last_cell = described[description, 0]
            listed, groups = validity.parts(given, state, last_cell, described[description, 1])
        # The same contributions as for the block before: nothing is made for it, and all wait for the same.
        if run == NONE and (keeps or not alike):
            if keeps:
                block_record.begin_run(kept, runs, count, NONE if based else description)
                run, count = count, count + 1
            waits, waiting = _give(
                given, past, kept, use, reduced, folded, number, listed, groups, alike, waits, waiting
            )
        if keeps:
            tiles[number, 0], tiles[number, 1], tiles[number, 2] = storage.reserve(kept, owner, block), owner, run
    pushes = volume * (len(group) - 1) * (2 if kind == ALL_REDUCE else 1)
    node = history.move(past, len(given[0]), use, kind, NONE, pushes)
    if keeps:
        block_record.keep_reduction(kept, node, kind == ALL_REDUCE, group, folds, starts, tiles, runs)
    _touch_reduction(given, past, kept, node, kind, group, folds, len(described), waits[:waiting])
    for memory in group:
        history.member(past, memory, owned[memory, 0], owned[memory, 1], owned[memory, 2])


@inner
def _own(given: Given, owned: Table, owner: int, block: Boxes, members: int) -> int:
    """Count a block as its owner's, who gets the tiles of all others; its elements."""
    elements, bounding = boxes.volume_of(block), boxes.bounding_volume(block)
    owned[owner, 0] += elements
    owned[owner, 1] += row_major.touched_bytes(block, given[6])
    owned[owner, 2] += bounding
    given[5][owner] += bounding * (members - 1)
    return elements


@inner
def _give(
    given: Given,
    past: History,
    kept: Storage,
    use: int,
    reduced: tuple[Boxes, Column, Table],
    folded: early_fold.Folded,
    number: int,
    listed: Column,
    groups: Table,
    alike: bool,  # noqa: FBT001
    waits: Column,
    waiting: int,
) -> tuple[Column, int]:
    """Make what members add to a block; the nodes that it waits for, with more room where it was too little."""
    folds, starts, _ = reduced
    block = folds[starts[number] : starts[number + 1]]
    if waiting + len(groups) > len(waits):
        waits = np.concatenate((waits, np.empty(waiting + len(groups), dtype=np.int64)))
    for part in range(len(groups)):
        node, tile, fresh = early_fold.part(
            given, past, kept, use, block, reduced, folded, number, listed, groups[part], alike
        )
        if fresh:
            waits[waiting] = node
            waiting += 1
        if kept[8][KEPT]:
            storage.add_part(kept, tile)
    return waits, waiting


@inner
def _touch_reduction(
    given: Given,
    past: History,
    kept: Storage,
    node: int,
    kind: int,
    group: Column,
    folds: Boxes,
    descriptions: int,
    waits: Column,
) -> None:
    """Let a reduction wait for what it folds, and write its blocks: everywhere, or each at its owner."""
    whole = folds.copy()
    for row in range(len(whole)):
        # Labels decide what may be joined: of an all-reduce all blocks, of a reduce-scatter those of one owner.
        whole[row, 0] = 0 if kind == ALL_REDUCE else folds[row, 0] // descriptions
    whole = boxes.merge(whole)
    emission.after(
        given, past, kept, waits, len(waits), node, whole if kind == ALL_REDUCE else block_record.unlabelled(whole)
    )
    first = last = 0
    for memory in group:
        # Both ascend by memory.
        first = 0 if kind == ALL_REDUCE else last
        last = len(whole) if kind == ALL_REDUCE else first
        while last < len(whole) and whole[last, 0] == memory:
            last += 1
        history.touch(past, node, memory, whole[first:last], WRITES, RECORDS)


@inner
def distribution(
    given: Given, past: History, kept: Storage, use: int, kind: int, group: Column, pieces: Boxes, sources: Column
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
    whole = block_record.unlabelled(mine)
    node = history.move(past, len(given[0]), use, kind, NONE, volume * (len(group) - 1))
    starts = np.zeros(len(group) + 1, dtype=np.int64)
    for place in range(len(group)):
        row = starts[place]
        # Both ascend by memory.
        while row < len(mine) and mine[row, 0] == group[place]:
            row += 1
        starts[place + 1] = row
        own = mine[starts[place] : row]
        history.member(past, group[place], boxes.volume_of(own), row_major.touched_bytes(own, given[6]), 0)
    if kept[8][KEPT]:
        block_record.keep_distribution(kept, node, group, mine, starts, whole)
    for place in range(len(group)):
        own = mine[starts[place] : starts[place + 1]]
        history.touch(past, node, group[place], own, READS, RECORDS)
        # What a member sends it has, so it reads that and writes the rest: readers of its own part need not wait.
        history.touch(past, node, group[place], boxes.subtract(whole, own), WRITES, RECORDS)
