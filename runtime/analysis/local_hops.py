"""Compiled hops of some members: of a collective's blocks and a plan, the pushes and folds in which they have a part.

A member knows of each block whom it sends to and who sends to it (`movement_plan.parent`, `children`), and so what it
pushes, gets and folds, without the hops of all others; what all push is what is found if all are asked for. Of a ring
of four, what member 1 knows of the block of 0:

    ======  =======================  ==============
    known   pushes                   folds
    ======  =======================  ==============
    1       1 -> 2, back 2 -> 1      none
    2       1 -> 2 and 2 -> 3, back  1 with 2, at 2
    ======  =======================  ==============
"""

# pyright: reportArgumentType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import inner, kernel, leaf
from maniple.runtime.schedule import movement_plan

__all__: list[str] = []

NONE = -1
OWNER, SPACE, KEPT, PARTS_OF_BLOCK = range(4)
"""Columns of a table of blocks: the place of the owner, the elements, the instance there, the first of the tiles that
are given to it."""
TURN, PIECE, DISTANCE, BY, OF, BLOCK, PART, SOURCE, TARGET, FEEDS, AFTER, BRINGS, FOLLOWS = range(13)
"""Columns of a table of pushes: the order (phase and piece, piece, places from sender to receiver, sender, owner,
block); the space of the piece, source and target, the folds that it feeds and sends on; what it brings and follows."""
PUSHES, PARTS, OWN_FOLDS, FURTHER, TILES, USES = range(6)
"""What is counted: of folds those at owners, and those at others."""
FURTHER_FOLD = 1 << 40
"""Added to the number of a fold that is not at an owner, until it is known how many are."""
PARENT, PHASE, LANDED, SENDS, FOLD, ONWARDS = range(6)
"""Of each member, while a block is looked at: whom it sends to, when, the tile that this lands in, the tile that it
sends, its first fold, and the last block that it has sent on."""

Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]
Column = np.ndarray[tuple[int], np.dtype[np.int64]]
Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Tables = tuple[Table, Column, Table, Table, Table, Table]
"""Pushes; parts; folds at owners, and at others (space, member, target, first part, one past the last); (member, block)
of tiles that are made; (block, instance, is it written) of uses."""


@kernel
def local_hops(
    plan: int, places: tuple[Column, Column], known: Flags, blocks: Table, given: Column, staged: Table,
    mains: Column, cuts: Column, spaces: Column, tiles: int, reduces: bool, spreads: bool,  # noqa: FBT001
) -> Tables:  # fmt: skip
    """The pushes and folds in which some members have a part, by a plan.

    Args:
        plan: its number.
        places: the host of each member, and its place in the tour.
        known: the members that are asked for.
        blocks: owner, space, instance and first given tile of each.
        given: the tiles.
        staged: by block and member the tile that what it sends lands in, whose use is told already; of no block where
            these are to be made.
        mains: by member its instance of valid values.
        cuts: where the pieces of each block begin.
        spaces: of each piece.
        tiles: the number of the next instance that is made.
        reduces: whether blocks are reduced.
        spreads: whether they are spread.

    Returns:
        See `Tables`.
    """
    rows = movement_plan.stand(places[0], places[1])
    phases = movement_plan.phases_within(plan, rows[5]), movement_plan.phases(plan, rows[5])
    state, senders = np.full((len(mains), 6), NONE), np.empty(len(mains), dtype=np.int64)
    found, counts = np.empty(len(mains), dtype=np.int64), np.zeros(6, dtype=np.int64)
    tables = _tables(plan, rows, known, blocks, cuts)
    for block in range(len(blocks)):
        owner = blocks[block, OWNER]
        count = _senders(plan, rows, known, owner, found, senders)
        for place in range(count):
            member = senders[place]
            state[member, PARENT], state[member, PHASE] = movement_plan.parent(plan, rows, phases[0], owner, member)
        state[owner, FOLD] = NONE
        if reduces:
            _fold(
                plan, rows, known, blocks, block, given, staged, cuts, spaces, tiles, senders[:count], found, state,
                tables, counts,
            )  # fmt: skip
        _push(
            phases[1], known, blocks, block, mains, cuts, spaces, senders[:count], state, tables, counts, reduces,
            spreads,
        )  # fmt: skip
    return _used(tables, counts)


@inner
def _used(tables: Tables, counts: Column) -> Tables:
    """What of the tables is used; now that it is known how many folds are at owners, all have their numbers."""
    pushes = tables[0]
    for number in range(counts[PUSHES]):
        for column in (FEEDS, AFTER):
            if pushes[number, column] >= FURTHER_FOLD:
                pushes[number, column] += counts[OWN_FOLDS] - FURTHER_FOLD
    return (
        pushes[: counts[PUSHES]], tables[1][: counts[PARTS]], tables[2][: counts[OWN_FOLDS]],
        tables[3][: counts[FURTHER]], tables[4][: counts[TILES]], tables[5][: counts[USES]],
    )  # fmt: skip


@inner
def _tables(plan: int, rows: movement_plan.Rows, known: Flags, blocks: Table, cuts: Column) -> Tables:
    """Room for what known members and those next to them push, fold, make and use."""
    pieces, every = _room(plan, rows, known, blocks, cuts)
    return (
        np.empty((2 * pieces, 13), dtype=np.int64),
        np.empty(2 * every, dtype=np.int64),
        np.empty((pieces, 5), dtype=np.int64),
        np.empty((pieces, 5), dtype=np.int64),
        np.empty((3 * every, 2), dtype=np.int64),
        np.empty((5 * every, 3), dtype=np.int64),
    )


@inner
def _room(plan: int, rows: movement_plan.Rows, known: Flags, blocks: Table, cuts: Column) -> tuple[int, int]:
    """How many pieces all known members and those next to them push at most, and how many members that is."""
    found, pieces, every = np.empty(len(known), dtype=np.int64), 0, 0
    for block in range(len(blocks)):
        count = 0
        for member in range(len(known)):
            if known[member]:
                count += 1 + movement_plan.children(plan, rows, blocks[block, OWNER], member, found)
        pieces += count * (cuts[block + 1] - cuts[block])
        every += count
    return pieces, every


@leaf
def _senders(plan: int, rows: movement_plan.Rows, known: Flags, owner: int, found: Column, senders: Column) -> int:
    """List those who send their part of a block and are known, or send to one who is; how many they are."""
    count = 0
    for member in range(len(known)):
        if not known[member]:
            continue
        if member != owner:
            senders[count] = member
            count += 1
        for number in range(movement_plan.children(plan, rows, owner, member, found)):
            if not known[found[number]]:
                senders[count] = found[number]
                count += 1
    return count


@leaf
def _fold(
    plan: int, rows: movement_plan.Rows, known: Flags, blocks: Table, block: int, given: Column, staged: Table,
    cuts: Column, spaces: Column, tiles: int, senders: Column, found: Column, state: Table, tables: Tables,
    counts: Column,
) -> None:  # fmt: skip
    """Add the folds of a block at those who are known, and say what everybody sends then; see `local_hops`."""
    _, parts, folds, further, _, uses = tables
    owner, first = blocks[block, OWNER], blocks[block, PARTS_OF_BLOCK]
    for place in range(len(senders)):
        member = senders[place]
        state[member, SENDS], state[member, FOLD] = given[first + member], NONE
        if len(staged):
            state[member, LANDED] = staged[block, member]
            continue
        state[member, LANDED] = _make(tables, counts, state[member, PARENT], block, tiles)
        if known[state[member, PARENT]]:
            _use(uses, counts, block, state[member, LANDED], 1)
        if not known[member] and movement_plan.children(plan, rows, owner, member, found):
            state[member, SENDS] = _make(tables, counts, member, block, tiles)
    for member in range(len(known)):
        count = movement_plan.children(plan, rows, owner, member, found) if known[member] else 0
        if count == 0:
            continue
        begin = counts[PARTS]
        inside = False
        for number in range(count):
            if found[number] > member and not inside:
                parts[counts[PARTS]], inside = given[first + member], True
                counts[PARTS] += 1
            parts[counts[PARTS]] = state[found[number], LANDED]
            counts[PARTS] += 1
        if not inside:
            parts[counts[PARTS]] = given[first + member]
            counts[PARTS] += 1
        if member == owner:
            state[member, FOLD] = counts[OWN_FOLDS]
            _fold_pieces(folds, counts, OWN_FOLDS, cuts, spaces, block, member, blocks[block, KEPT], begin)
            continue
        state[member, FOLD], state[member, SENDS] = (
            FURTHER_FOLD + counts[FURTHER],
            _make(tables, counts, member, block, tiles),
        )
        _use(uses, counts, block, state[member, SENDS], 1)
        _use(uses, counts, block, state[member, SENDS], 0)
        _fold_pieces(further, counts, FURTHER, cuts, spaces, block, member, state[member, SENDS], begin)


@leaf
def _fold_pieces(
    table: Table, counts: Column, at: int, cuts: Column, spaces: Column, block: int, member: int, target: int,
    first: int,
) -> None:  # fmt: skip
    """Add the folds of the pieces of a block at a member, of the last parts that were listed."""
    for piece in range(cuts[block], cuts[block + 1]):
        table[counts[at], 0], table[counts[at], 1], table[counts[at], 2] = spaces[piece], member, target
        table[counts[at], 3], table[counts[at], 4] = first, counts[PARTS]
        counts[at] += 1


@leaf
def _push(
    phases: int, known: Flags, blocks: Table, block: int, mains: Column, cuts: Column, spaces: Column, senders: Column,
    state: Table, tables: Tables, counts: Column, reduces: bool, spreads: bool,  # noqa: FBT001
) -> None:  # fmt: skip
    """Add the pushes of a block up its tree and down again, one for each of its pieces; see `local_hops`."""
    pushes, uses = tables[0], tables[5]
    members, owner = len(mains), blocks[block, OWNER]
    for down in range(0 if reduces else 1, 2 if spreads else 1):
        for member in senders:
            other, phase = state[member, PARENT], state[member, PHASE]
            source, target = (other, member) if down else (member, other)
            for piece in range(cuts[block], cuts[block + 1]):
                at, after = counts[PUSHES], piece - cuts[block]
                counts[PUSHES] += 1
                turn = (2 if reduces else 1) * phases - 1 - phase if down else phase
                pushes[at, TURN], pushes[at, PIECE] = turn + after, after
                pushes[at, DISTANCE], pushes[at, BY] = (target - source) % members, source
                pushes[at, OF], pushes[at, BLOCK], pushes[at, PART] = owner, block, spaces[piece]
                pushes[at, FEEDS] = pushes[at, AFTER] = pushes[at, BRINGS] = pushes[at, FOLLOWS] = NONE
                if down:
                    pushes[at, SOURCE] = blocks[block, KEPT] if source == owner else mains[source]
                    pushes[at, TARGET], pushes[at, BRINGS] = mains[target], piece * members + target
                    if source == owner and state[owner, FOLD] != NONE:
                        pushes[at, AFTER] = state[owner, FOLD] + after
                    elif source != owner:
                        pushes[at, FOLLOWS] = piece * members + source
                    continue
                pushes[at, SOURCE], pushes[at, TARGET] = state[member, SENDS], state[member, LANDED]
                if known[other]:
                    pushes[at, FEEDS] = state[other, FOLD] + after
                if state[member, FOLD] != NONE:
                    pushes[at, AFTER] = state[member, FOLD] + after
    for member in senders:
        state[state[member, PARENT], ONWARDS] = block
    for place in range(members if spreads else 0):
        if known[place] and place != owner and state[place, ONWARDS] == block:
            _use(uses, counts, block, mains[place], 0)


@leaf
def _make(tables: Tables, counts: Column, member: int, block: int, tiles: int) -> int:
    """Make a tile for a block at a member; its number."""
    made, number = tables[4], counts[TILES]
    made[number, 0], made[number, 1] = member, block
    counts[TILES] += 1
    return int(tiles + number)


@leaf
def _use(uses: Table, counts: Column, block: int, instance: int, writes: int) -> None:
    """Add a use of an instance for a block."""
    at = counts[USES]
    uses[at, 0], uses[at, 1], uses[at, 2] = block, instance, writes
    counts[USES] += 1
