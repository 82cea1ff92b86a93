"""Compiled arrangement of hops: of a collective's blocks and a plan's hops, the pushes and folds that these become."""

# pyright: reportArgumentType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import kernel, leaf
from maniple.runtime.schedule.movement_plan import FOLDS, PHASE, RECEIVER, SENDER

__all__: list[str] = []

NONE = -1
OWNER, SPACE, KEPT = range(3)
"""Columns of a table of blocks: the place of the owner, the elements, the instance there."""
TURN, PIECE, DISTANCE, BY, OF, BLOCK, PART, SOURCE, TARGET, FEEDS, AFTER, BRINGS, FOLLOWS = range(13)
"""Columns of a table of pushes: the order (phase and piece, piece, places from sender to receiver, sender, owner,
block); the space of the piece, source and target, the folds that it feeds and sends on; what it brings and follows."""
PUSHES, PARTS, OWN_FOLDS, FURTHER, TILES, USES = range(6)
"""What is counted: of folds those at owners, and those at others."""

Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]
Column = np.ndarray[tuple[int], np.dtype[np.int64]]
Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]


@kernel
def arrange_hops(
    hops: Table, first: Column, blocks: Table, own: Table, staged: Table, mains: Column, cuts: Column, spaces: Column,
    tiles: int,
) -> tuple[Table, Table, Table, Column, Table, Table]:  # fmt: skip
    """The pushes and folds of a plan.

    Args:
        hops: by owner, and of one by ascending phase.
        first: where those of each owner begin.
        blocks: owner, space and instance of each.
        own: by block and member the tile that it gives.
        staged: by block and member the tile that what it sends lands in.
        mains: by member its instance of valid values.
        cuts: where the pieces of each block begin.
        spaces: of each piece.
        tiles: the number of the next instance that is made.

    Returns:
        Pushes; folds at owners, and at others (space, member, target, first part, one past the last); the parts;
        (member, an instance of equal size) of tiles that are made; (space, instance, is it written) of further uses.
    """
    members, every = len(mains), 0
    for block in range(len(blocks)):
        owner = blocks[block, OWNER]
        every += (first[owner + 1] - first[owner]) * (cuts[block + 1] - cuts[block])
    pushes, parts = np.empty((every, 13), dtype=np.int64), np.empty(2 * len(blocks) * members, dtype=np.int64)
    folds, further = np.empty((cuts[-1], 5), dtype=np.int64), np.empty((every, 5), dtype=np.int64)
    made, uses = (
        np.empty((len(blocks) * members, 2), dtype=np.int64),
        np.empty((3 * len(blocks) * members, 3), np.int64),
    )
    counts, sends, fold_of = np.zeros(6, dtype=np.int64), own.copy(), np.empty(members, dtype=np.int64)
    onwards, begins = np.empty(members, dtype=np.bool_), np.zeros(members + 1, dtype=np.int64)
    children, parent = np.empty(members, dtype=np.int64), np.empty(members, dtype=np.int64)
    for block in range(len(blocks)):
        owner, begin, end = blocks[block, OWNER], cuts[block], cuts[block + 1]
        mine = hops[first[owner] : first[owner + 1]]
        _list_children(mine, begins, children, parent)
        _fold_block(
            (parts, folds, further, made, uses), counts, blocks, block, own[block], staged[block], sends[block],
            fold_of, cuts, spaces, (begins, children), tiles,
        )  # fmt: skip
        _push(
            pushes, counts, mine, blocks, block, sends[block], staged[block], mains, begin, spaces[:end], fold_of,
            onwards,
        )  # fmt: skip
        for member in range(members):
            if onwards[member]:
                _use(uses, counts, blocks[block, SPACE], mains[member], 0)
    return (
        pushes[: counts[PUSHES]], folds[: counts[OWN_FOLDS]], further[: counts[FURTHER]], parts[: counts[PARTS]],
        made[: counts[TILES]], uses[: counts[USES]],
    )  # fmt: skip


@leaf
def _fold_block(
    tables: tuple[Column, Table, Table, Table, Table], counts: Column, blocks: Table, block: int, own: Column,
    staged: Column, sends: Column, fold_of: Column, cuts: Column, spaces: Column, trees: tuple[Column, Column],
    tiles: int,
) -> None:  # fmt: skip
    """Add the folds of a block at all who have children, and say what they send then; see `arrange_hops`."""
    parts, folds, further, made, uses = tables
    begins, children = trees
    owner, begin, end, members = blocks[block, OWNER], cuts[block], cuts[block + 1], len(own)
    for member in range(members):
        fold_of[member], last = NONE, counts[PARTS]
        if begins[member] == begins[member + 1]:
            continue
        counts[PARTS] = _list_parts(parts, last, own, staged, member, children, begins)
        if member == owner:
            fold_of[member] = begin
            _fold(folds, counts, OWN_FOLDS, spaces[begin:end], member, blocks[block, KEPT], last)
            continue
        fold_of[member], target = cuts[-1] + counts[FURTHER], tiles + counts[TILES]
        sends[member] = target
        made[counts[TILES], 0], made[counts[TILES], 1] = member, staged[(owner + members - 1) % members]
        counts[TILES] += 1
        _use(uses, counts, blocks[block, SPACE], target, 1)
        _use(uses, counts, blocks[block, SPACE], target, 0)
        _fold(further, counts, FURTHER, spaces[begin:end], member, target, last)


@leaf
def _fold(table: Table, counts: Column, at: int, spaces: Column, member: int, target: int, first: int) -> None:
    """Add the folds of the pieces of a block at a member, of the last parts that were listed."""
    for space in spaces:
        table[counts[at], 0], table[counts[at], 1], table[counts[at], 2] = space, member, target
        table[counts[at], 3], table[counts[at], 4] = first, counts[PARTS]
        counts[at] += 1


@leaf
def _push(
    pushes: Table, counts: Column, hops: Table, blocks: Table, block: int, sends: Column, staged: Column, mains: Column,
    begin: int, spaces: Column, fold_of: Column, onwards: Flags,
) -> None:  # fmt: skip
    """Add the pushes of a block, one for each of its pieces, and say who sends on what it has got.

    Args:
        pushes: are added to.
        counts: of what there is.
        hops: of the block.
        blocks: owner, space and instance of each.
        block: its number.
        sends: by member what it sends up.
        staged: by member the tile that this lands in.
        mains: by member its instance of valid values.
        begin: the first piece of the block.
        spaces: of each piece, up to the block's last.
        fold_of: by member its first fold, or none.
        onwards: by member whether it sends on.
    """
    members, owner = len(mains), blocks[block, OWNER]
    for member in range(members):
        onwards[member] = False
    for hop in range(len(hops)):
        sender, receiver, up = hops[hop, SENDER], hops[hop, RECEIVER], hops[hop, FOLDS] > 0
        onwards[sender] |= not up and sender != owner
        for piece in range(begin, len(spaces)):
            at, after = counts[PUSHES], piece - begin
            counts[PUSHES] += 1
            pushes[at, TURN], pushes[at, PIECE] = hops[hop, PHASE] + after, after
            pushes[at, DISTANCE], pushes[at, BY] = (receiver - sender) % members, sender
            pushes[at, OF], pushes[at, BLOCK], pushes[at, PART] = owner, block, spaces[piece]
            pushes[at, SOURCE] = sends[sender] if up else blocks[block, KEPT] if sender == owner else mains[sender]
            pushes[at, TARGET] = staged[sender] if up else mains[receiver]
            pushes[at, FEEDS] = fold_of[receiver] + after if up else NONE
            folded = (up or sender == owner) and fold_of[sender] >= 0
            pushes[at, AFTER] = fold_of[sender] + after if folded else NONE
            pushes[at, BRINGS] = NONE if up else piece * members + receiver
            pushes[at, FOLLOWS] = NONE if up or sender == owner else piece * members + sender


@leaf
def _list_parts(
    parts: Column, last: int, own: Column, staged: Column, member: int, children: Column, begins: Column
) -> int:
    """List what a member folds, its own tile and those of its children, by place; returns one past the last."""
    inside = False
    for place in range(begins[member], begins[member + 1]):
        if children[place] > member and not inside:
            parts[last], last, inside = own[member], last + 1, True
        parts[last] = staged[children[place]]
        last += 1
    if not inside:
        parts[last] = own[member]
        last += 1
    return last


@leaf
def _list_children(hops: Table, begins: Column, children: Column, parent: Column) -> None:
    """List who sends to each member what it folds, by place: every other member sends its part of a block once."""
    for member in range(len(parent)):
        begins[member + 1], parent[member] = 0, NONE
    for hop in range(len(hops)):
        if hops[hop, FOLDS]:
            parent[hops[hop, SENDER]] = hops[hop, RECEIVER]
            begins[hops[hop, RECEIVER] + 1] += 1
    for member in range(len(parent)):
        begins[member + 1] += begins[member]
    for member in range(len(parent)):
        if parent[member] >= 0:
            children[begins[parent[member]]] = member
            begins[parent[member]] += 1
    for member in range(len(parent), 0, -1):
        begins[member] = begins[member - 1]
    begins[0] = 0


@leaf
def _use(uses: Table, counts: Column, space: int, instance: int, writes: int) -> None:
    """Add a use of an instance."""
    at = counts[USES]
    uses[at, 0], uses[at, 1], uses[at, 2] = space, instance, writes
    counts[USES] += 1
