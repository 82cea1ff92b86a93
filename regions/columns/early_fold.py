"""Compiled early folds: what members of a reduction fold of their own contributions before they send anything.

A member with several contributions to the same blocks folds them once, for all these blocks, and sends what it owes to
each owner of that. Of two contributions to two blocks, 0 and 1 their owners:

    ==========  ==============================  =============================
    row         reads                           what leaves the member then
    ==========  ==============================  =============================
    fold        both contributions, both blocks
    reduction   what that has made              block 0 to 0, block 1 to 1
    ==========  ==============================  =============================

So n members that each own a block fold n times, and not n * n times.
"""

# pyright: reportArgumentType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import inner
from maniple.regions.columns import boxes, emission
from maniple.regions.columns.bit_sets import Column
from maniple.regions.columns.boxes import WIDTH, Boxes
from maniple.regions.columns.history import NONE, History, Table
from maniple.regions.columns.storage import Storage
from maniple.regions.columns.validity import Given

Folded = tuple[Column, Column, Boxes, Column, Table]
"""Of a reduction: the kind of cells of each block; by kind whether any has a base, and all its boxes, with where those
of each kind begin; and by kind, whether the base is there, and memory the node and tile of what that has folded."""


@inner
def begin(folds: Boxes, starts: Column, described: Table, memories: int) -> Folded:
    """What the members of a reduction have folded of their own contributions: nothing yet; see `Folded`."""
    kinds, count = np.empty(len(starts) - 1, dtype=np.int64), 0
    numbers = np.full(len(described) // (memories + 1), NONE)
    based = np.zeros(len(numbers), dtype=np.int64)
    whole = folds.copy()
    for block in range(len(kinds)):
        description = folds[starts[block], 0] % len(described)
        kind = description // (memories + 1)
        if numbers[kind] == NONE:
            numbers[kind] = count
            count += 1
        kinds[block] = numbers[kind]
        based[numbers[kind]] |= described[description, 1] != NONE
        for row in range(starts[block], starts[block + 1]):
            whole[row, 0] = kinds[block]
    whole = boxes.merge(whole)
    first = np.zeros(count + 1, dtype=np.int64)
    for row in range(len(whole)):
        first[whole[row, 0] + 1] = row + 1
    return kinds, based, whole, first, np.full((count * 2 * memories, 2), NONE)


@inner
def part(
    given: Given,
    past: History,
    kept: Storage,
    use: int,
    block: Boxes,
    reduced: tuple[Boxes, Column, Table],
    folded: Folded,
    number: int,
    listed: Column,
    group: Column,
    alike: bool,  # noqa: FBT001
) -> tuple[int, int, bool]:
    """What a member adds to a block of some number: the node that makes it, its tile, and whether it is new."""
    if group[2] - group[1] + group[3] == 1:
        node, tile = emission.part(given, past, kept, use, block, listed, group)
        return node, tile, not alike
    return fold(given, past, kept, use, reduced, folded, number, listed, group)


@inner
def fold(
    given: Given,
    past: History,
    kept: Storage,
    use: int,
    reduced: tuple[Boxes, Column, Table],
    folded: Folded,
    number: int,
    listed: Column,
    group: Column,
) -> tuple[int, int, bool]:
    """The fold of what a member adds to a block, its tile, and whether it is new: one for all blocks that it adds to.

    Args:
        given: the region's uses.
        past: the record.
        kept: the record of storage.
        use: the use that needs it.
        reduced: the blocks' boxes, where those of each begin, and what is folded by description.
        folded: what was folded before; added to.
        number: of the block.
        listed: the contributions.
        group: the member's among them; see `validity.parts`.
    """
    kinds, based, whole, first, made = folded
    kind = kinds[number]
    at = (2 * kind + group[3]) * len(given[4]) + group[0]
    fresh = made[at, 0] == NONE
    if fresh:
        table = whole[first[kind] : first[kind + 1]]
        if based[kind]:
            table = _based(reduced, kinds, number, group[0], group[3] == 1)
        made[at, 0], made[at, 1] = emission.part(given, past, kept, use, table, listed, group)
    return int(made[at, 0]), int(made[at, 1]), fresh


@inner
def _based(
    reduced: tuple[Boxes, Column, Table],
    kinds: Column,
    number: int,
    memory: int,
    has_base: bool,  # noqa: FBT001
) -> Boxes:
    """The boxes of all blocks of a block's kind whose base is, or is not, in a memory."""
    folds, starts, described = reduced
    table, count = np.empty((len(folds), WIDTH), dtype=np.int64), 0
    for block in range(number, len(kinds)):
        base = described[folds[starts[block], 0] % len(described), 1]
        if kinds[block] == kinds[number] and (base == memory) == has_base:
            for row in range(starts[block], starts[block + 1]):
                boxes.put(table, count, folds, row)
                table[count, 0] = 0
                count += 1
    return boxes.merge(table[:count])
