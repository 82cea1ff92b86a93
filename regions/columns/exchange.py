"""Compiled emission of collectives: one row for what all members of a group send each other.

A row that is kept says who pushes what where, in one order for all members: contributions first, then what was folded,
each member to the next one round the ring, then to the one after that.
"""

# pyright: reportArgumentType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import inner
from maniple.regions.columns import block_record, boxes, early_fold, emission, history, row_major, storage, validity
from maniple.regions.columns.bit_sets import Column
from maniple.regions.columns.boxes import WIDTH, Boxes
from maniple.regions.columns.emission import READS, RECORDS, WRITES
from maniple.regions.columns.history import NONE, History, Table
from maniple.regions.columns.storage import BLOCKS, KEPT, PUSHES, Storage
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
    blocks, keeps = len(starts) - 1, kept[8][KEPT]
    volume = waiting = 0
    owned, waits = np.zeros((len(given[4]), 3), dtype=np.int64), np.empty(2 * len(group), dtype=np.int64)
    # Of each block its target and owner; then its run, or of each member the tile that it gives, and what is folded.
    tiles = np.empty((blocks if keeps else 0, 2 + 2 * len(group) if keeps == PUSHES else 3), dtype=np.int64)
    runs, count, last_cell = np.empty((blocks, 2), dtype=np.int64), 0, NONE
    listed, groups = np.empty(0, dtype=np.int64), np.empty((0, 4), dtype=np.int64)
    folded, reduced = early_fold.begin(folds, starts, described, len(given[4])), (folds, starts, described)
    for number in range(blocks):
        block = folds[starts[number] : starts[number + 1]]
        owner, description = block[0, 0] // len(described), block[0, 0] % len(described)
        volume += _own(given, owned, owner, block, len(group))
        based = described[description, 1] != NONE
        alike = described[description, 0] == last_cell and not based
        run = block_record.run_of(runs, count, description) if keeps == BLOCKS and not based else NONE
        if run == NONE and not alike:
            last_cell = described[description, 0]
            listed, groups = validity.parts(given, state, last_cell, described[description, 1])
        # The same contributions as for the block before: nothing is made for it, and all wait for the same.
        if run == NONE and (keeps or not alike):
            if keeps == BLOCKS:
                block_record.begin_run(kept, runs, count, NONE if based else description)
                run, count = count, count + 1
            waits, waiting = _give(
                given, past, kept, use, reduced, folded, number, listed, groups, alike, waits, waiting, tiles
            )
        if keeps:
            tiles[number, 0], tiles[number, 1] = storage.reserve(kept, owner, block), owner
            tiles[number, 2] = run if keeps == BLOCKS else tiles[number, 2]
    pushes = volume * (len(group) - 1) * (2 if kind == ALL_REDUCE else 1)
    node = history.move(past, len(given[0]), use, kind, NONE, pushes)
    _keep_reduction(kept, node, kind == ALL_REDUCE, group, folds, starts, tiles, runs)
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
    tiles: Table,
) -> tuple[Column, int]:
    """Make what members add to a block; the nodes that it waits for, with more room where it was too little."""
    folds, starts, described = reduced
    block = folds[starts[number] : starts[number + 1]]
    owner = block[0, 0] // len(described)
    if waiting + len(groups) > len(waits):
        waits = np.concatenate((waits, np.empty(waiting + len(groups), dtype=np.int64)))
    for part in range(len(groups)):
        node, tile, fresh = early_fold.part(
            given, past, kept, use, block, reduced, folded, number, listed, groups[part], alike
        )
        if fresh:
            waits[waiting] = node
            waiting += 1
        if kept[8][KEPT] == BLOCKS:
            storage.add_part(kept, tile)
        elif kept[8][KEPT]:
            staged = tile if groups[part, 0] == owner else storage.stage(kept, owner, block)
            tiles[number, 2 + 2 * part], tiles[number, 3 + 2 * part] = tile, staged
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
def _keep_reduction(
    kept: Storage,
    node: int,
    spreads: bool,  # noqa: FBT001
    group: Column,
    folds: Boxes,
    starts: Column,
    tiles: Table,
    runs: Table,
) -> None:
    """Keep what a reduction reads, folds and writes, and who pushes which block where, or else its blocks.

    Args:
        kept: the record.
        node: the row.
        spreads: whether every block goes on to all members.
        group: the members.
        folds: the blocks' boxes.
        starts: where each block's boxes begin.
        tiles: of each block its target and owner, and for each member the tile that it gives and what is folded; where
            blocks are kept, their runs.
        runs: those; see `block_record`.
    """
    if kept[8][KEPT] == BLOCKS:
        block_record.keep_reduction(kept, node, spreads, group, folds, starts, tiles, runs)
    if kept[8][KEPT] != PUSHES:
        return
    blocks, members = len(starts) - 1, len(group)
    spaces, events = np.empty(blocks, dtype=np.int64), np.empty((blocks * (members + 1), 3), dtype=np.int64)
    for block in range(blocks):
        spaces[block] = storage.space(kept, folds[starts[block] : starts[block + 1]])
        parts = storage.add_parts(kept, tiles[block, 3::2])
        storage.piece(
            kept, node, tiles[block, 1], spaces[block], spaces[block] + starts[block + 1] - starts[block],
            tiles[block, 0], parts, parts + members,
        )  # fmt: skip
        for member in range(members):
            event = block * (members + 1) + member
            events[event, 0], events[event, 1], events[event, 2] = tiles[block, 2 + 2 * member], READS, block
        event = block * (members + 1) + members
        events[event, 0], events[event, 1], events[event, 2] = tiles[block, 0], WRITES, block
    order, first = _by_owner(group, tiles[:, 1])
    mains = _targets(kept, group, folds, starts, order, first) if spreads else np.empty(0, dtype=np.int64)
    pushes = np.empty((2 * blocks * (members - 1), 5), dtype=np.int64)
    count = 0
    for phase in range(2 if spreads else 1):
        for distance in range(1, members):
            for source in range(members):
                target = (source + distance) % members
                owner = source if phase else target
                for place in range(first[owner], first[owner + 1]):
                    block = order[place]
                    pushes[count, 0] = tiles[block, 0] if phase else tiles[block, 2 + 2 * source]
                    pushes[count, 1] = mains[target] if phase else tiles[block, 3 + 2 * source]
                    pushes[count, 2] = block
                    pushes[count, 3], pushes[count, 4] = (NONE, block) if phase else (block, NONE)
                    count += 1
    _keep_pushes(kept, node, pushes[:count], events, folds, starts, spaces)


@inner
def _by_owner(group: Column, owners: Column) -> tuple[Column, Column]:
    """The blocks by the place of their owner in the group, and where those of each begin."""
    first = np.zeros(len(group) + 1, dtype=np.int64)
    order = np.empty(len(owners), dtype=np.int64)
    count = 0
    for place in range(len(group)):
        for block in range(len(owners)):
            if owners[block] == group[place]:
                order[count] = block
                count += 1
        first[place + 1] = count
    return order, first


@inner
def _targets(kept: Storage, group: Column, folds: Boxes, starts: Column, order: Column, first: Column) -> Column:
    """The instances that each member gets blocks in, made where one has none yet: by the place of what comes there."""
    members = len(group)
    sent = np.empty((len(folds), WIDTH), dtype=np.int64)
    count = 0
    for owner in range(members):
        for place in range(first[owner], first[owner + 1]):
            for row in range(starts[order[place]], starts[order[place] + 1]):
                boxes.put(sent, count, folds, row)
                sent[count, 0] = owner
                count += 1
    return spread(kept, group, sent[:count])


@inner
def spread(kept: Storage, group: Column, sent: Boxes) -> Column:
    """The instance of every member of a group, with room for what the others send: boxes by ascending place in it."""
    labels = sent[:, 0].copy()
    hulls = boxes.hulls(sent, labels, len(group))
    order = boxes.order_rows(hulls)
    for row in order:
        source = hulls[row, 0]
        for member in range(len(group)):
            if member != source:
                storage.reserve(kept, group[source], hulls[row : row + 1])
                storage.reserve(kept, group[member], hulls[row : row + 1])
    result = np.empty(len(group), dtype=np.int64)
    for member in range(len(group)):
        result[member] = storage.held(kept, group[member])
    return result


@inner
def _keep_pushes(
    kept: Storage, node: int, pushes: Table, events: Table, table: Boxes, starts: Column, spaces: Column
) -> None:
    """Keep pushes (source, target, block, block fed, block sent on), and the accesses of these and of given events.

    Args:
        kept: the record.
        node: the row.
        pushes: in the order in which they are made.
        events: (instance, whether it is written, block) of what is used besides.
        table: the blocks' boxes.
        starts: where each block's boxes begin.
        spaces: the space of each block.
    """
    count = len(events)
    whole = np.empty((count + 2 * len(pushes), 3), dtype=np.int64)
    # A loop: numba would compile an assignment with all that puts its error into words.
    for number in range(count):
        whole[number, 0], whole[number, 1], whole[number, 2] = events[number, 0], events[number, 1], events[number, 2]
    for number in range(len(pushes)):
        source, target, block = pushes[number, 0], pushes[number, 1], pushes[number, 2]
        last = spaces[block] + starts[block + 1] - starts[block]
        storage.transfer(kept, node, source, target, spaces[block], last, pushes[number, 3], pushes[number, 4])
        whole[count, 0], whole[count, 1], whole[count, 2] = source, READS, block
        whole[count + 1, 0], whole[count + 1, 1], whole[count + 1, 2] = target, WRITES, block
        count += 2
    _keep_accesses(kept, node, whole, table, starts)


@inner
def _keep_accesses(kept: Storage, node: int, events: Table, table: Boxes, starts: Column) -> None:
    """Keep accesses (instance, whether it is written, block), as few as say the same, by their first ones."""
    groups, first, order = _alike(events)
    union = np.empty((len(table), WIDTH), dtype=np.int64)
    taken = np.full(len(starts), NONE)
    for group in range(len(first) - 1):
        count = 0
        for place in range(first[group], first[group + 1]):
            block = events[order[place], 2]
            if taken[block] != group:
                taken[block] = group
                for row in range(starts[block], starts[block + 1]):
                    boxes.put(union, count, table, row)
                    union[count, 0] = 0
                    count += 1
        joined = boxes.merge(union[:count])
        space = storage.space(kept, joined)
        instance, writes = events[groups[group], 0], events[groups[group], 1] == 1
        for row in range(space, space + len(joined)):
            storage.access(kept, node, instance, row, row + 1, writes, 0 if writes else 1)


@inner
def _alike(events: Table) -> tuple[Column, Column, Column]:
    """Events of one instance and kind together: the first event of each group, where groups begin, and the events."""
    most = 0
    for event in range(len(events)):
        most = max(most, 2 * events[event, 0] + 1)
    number = np.full(most + 1, NONE)
    groups, first = np.empty(len(events), dtype=np.int64), np.zeros(len(events) + 2, dtype=np.int64)
    count = 0
    for event in range(len(events)):
        key = 2 * events[event, 0] + events[event, 1]
        if number[key] == NONE:
            number[key], groups[count] = count, event
            count += 1
        first[number[key] + 1] += 1
    for group in range(count):
        first[group + 1] += first[group]
    order, at = np.empty(len(events), dtype=np.int64), first[:count].copy()
    for event in range(len(events)):
        group = number[2 * events[event, 0] + events[event, 1]]
        order[at[group]] = event
        at[group] += 1
    return groups[:count], first[: count + 1], order


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
    if kept[8][KEPT] == BLOCKS:
        block_record.keep_distribution(kept, node, group, mine, starts, whole)
    elif kept[8][KEPT]:
        _keep_distribution(kept, node, group, mine, starts)
    for place in range(len(group)):
        own = mine[starts[place] : starts[place + 1]]
        history.touch(past, node, group[place], own, READS, RECORDS)
        # What a member sends it has, so it reads that and writes the rest: readers of its own part need not wait.
        history.touch(past, node, group[place], boxes.subtract(whole, own), WRITES, RECORDS)


@inner
def _keep_distribution(kept: Storage, node: int, group: Column, mine: Boxes, starts: Column) -> None:
    """Keep what an all-gather or broadcast pushes: the block of each member that has one to all others."""
    members = len(group)
    sent, spaces = mine.copy(), np.empty(members, dtype=np.int64)
    for place in range(members):
        spaces[place] = storage.space(kept, mine[starts[place] : starts[place + 1]])
        for row in range(starts[place], starts[place + 1]):
            sent[row, 0] = place
    mains = spread(kept, group, sent)
    pushes = np.empty((members * members, 5), dtype=np.int64)
    count = 0
    for distance in range(1, members):
        for source in range(members):
            if starts[source] < starts[source + 1]:
                pushes[count, 0], pushes[count, 1] = mains[source], mains[(source + distance) % members]
                pushes[count, 2], pushes[count, 3], pushes[count, 4] = source, NONE, NONE
                count += 1
    _keep_pushes(kept, node, pushes[:count], np.empty((0, 3), dtype=np.int64), mine, starts, spaces)
