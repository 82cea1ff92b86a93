"""Compiled record of blocks: what the members of a collective own, give and use, which grows as the members do.

Who pushes what where grows as the square of the members. It follows from the blocks and from a movement plan, so it is
made for those who ask, of the part that they ask for (`runtime/analysis/arrangement.py`). Kept are of an all-reduce by
n members that own a block each and give one tile each, and of an all-gather of their blocks:

    ==========  ====================  ==========  ============
    table       what                  all-reduce  all-gather
    ==========  ====================  ==========  ============
    ends        who takes part        n           n
    pieces      the blocks            n           n
    parts       the tiles given       n           0
    accesses    tiles that are read   n           0
                mains that are read   n           n
                mains that are        n           1 or 2 for
                written                           each
    ==========  ====================  ==========  ============

Blocks that are folded of the same contributions share their parts, which are then told once.
"""

# pyright: reportArgumentType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

from maniple.process.compilation.compiled import inner, leaf
from maniple.regions.columns import boxes, storage
from maniple.regions.columns.bit_sets import Column
from maniple.regions.columns.boxes import Boxes
from maniple.regions.columns.storage import FULL, NONE, PARTS, Storage, Table

READS, WRITES = False, True
TARGET, OWNER, RUN = range(3)
"""Columns of a table of blocks: the instance that is folded into, where, and the number of the parts."""
DESCRIPTION, FIRST_PART = range(2)
"""Columns of a table of runs: what is folded, none where a base is among it; and the first of the parts."""


@leaf
def run_of(runs: Table, count: int, description: int) -> int:
    """The number of the parts of blocks of which this is folded; none where it was not met yet."""
    for run in range(count):
        if runs[run, DESCRIPTION] == description:
            return run
    return NONE


@leaf
def begin_run(kept: Storage, runs: Table, count: int, description: int) -> None:
    """Begin the parts of blocks of which this is folded."""
    runs[count, DESCRIPTION], runs[count, FIRST_PART] = description, kept[8][PARTS]


@inner
def unlabelled(table: Boxes) -> Boxes:
    """Boxes of any label joined."""
    whole = table.copy()
    for row in range(len(whole)):
        whole[row, 0] = 0
    return boxes.merge(whole)


@inner
def keep_reduction(
    kept: Storage,
    node: int,
    spreads: bool,  # noqa: FBT001
    group: Column,
    folds: Boxes,
    starts: Column,
    tiles: Table,
    runs: Table,
) -> None:
    """Keep the blocks of a reduction, and what its members use.

    Args:
        kept: the record.
        node: the row.
        spreads: whether every block goes on to all members.
        group: the members.
        folds: the blocks' boxes.
        starts: where each block's boxes begin.
        tiles: of each block its target, owner and run.
        runs: the parts.
    """
    whole = unlabelled(folds)
    _keep_ends(kept, node, spreads, group, whole)
    of_run, of_owner = folds.copy(), folds.copy()
    for block in range(len(starts) - 1):
        owner, first = tiles[block, OWNER], runs[tiles[block, RUN], FIRST_PART]
        space = storage.space(kept, folds[starts[block] : starts[block + 1]])
        last = space + starts[block + 1] - starts[block]
        storage.piece(kept, node, owner, space, last, tiles[block, TARGET], first, first + len(group))
        for row in range(starts[block], starts[block + 1]):
            of_run[row, 0], of_owner[row, 0] = tiles[block, RUN], owner
    if kept[8][FULL]:
        return
    of_run, of_owner = boxes.merge(of_run), boxes.merge(of_owner)
    row = 0
    while row < len(of_run):
        last = _last_alike(of_run, row)
        space, first = storage.space(kept, of_run[row:last]), runs[of_run[row, 0], FIRST_PART]
        for member in range(len(group)):
            _use(kept, node, kept[5][first + member], space, space + last - row, READS)
        row = last
    row = 0
    while row < len(of_owner):
        last = _last_alike(of_owner, row)
        space = storage.space(kept, of_owner[row:last])
        _use(kept, node, storage.held(kept, of_owner[row, 0]), space, space + last - row, not spreads)
        row = last
    if spreads:
        space = storage.space(kept, whole)
        for place in range(len(group)):
            _use(kept, node, storage.held(kept, group[place]), space, space + len(whole), WRITES)


@inner
def keep_distribution(kept: Storage, node: int, group: Column, mine: Boxes, starts: Column, whole: Boxes) -> None:
    """Keep the blocks of an all-gather or broadcast, and what its members use.

    Args:
        kept: the record.
        node: the row.
        group: the members.
        mine: the boxes that members send.
        starts: where those of each begin.
        whole: all of them.
    """
    _keep_ends(kept, node, True, group, whole)
    every = storage.space(kept, whole)
    for place in range(len(group)):
        own, main = mine[starts[place] : starts[place + 1]], storage.held(kept, group[place])
        if len(own) == 0:
            _use(kept, node, main, every, every + len(whole), WRITES)
            continue
        space = storage.space(kept, own)
        storage.piece(kept, node, group[place], space, space + len(own), main, 0, 0)
        _use(kept, node, main, space, space + len(own), READS)
        others = boxes.subtract(whole, own)
        space = storage.space(kept, others)
        _use(kept, node, main, space, space + len(others), WRITES)


@inner
def _keep_ends(kept: Storage, node: int, gets: bool, group: Column, whole: Boxes) -> None:  # noqa: FBT001
    """Keep who takes part; where all get all that is moved, their instances have room for it."""
    for place in range(len(group)):
        main = storage.reserve(kept, group[place], whole) if gets else NONE
        storage.end(kept, node, group[place], main)


@leaf
def _last_alike(table: Boxes, row: int) -> int:
    """One past the last of the boxes from one on that have its label."""
    last = row + 1
    while last < len(table) and table[last, 0] == table[row, 0]:
        last += 1
    return last


@leaf
def _use(kept: Storage, node: int, instance: int, first: int, last: int, writes: bool) -> None:  # noqa: FBT001
    """Keep a use of some boxes, each by itself."""
    for row in range(first, last):
        storage.access(kept, node, instance, row, row + 1, writes, 0 if writes else 1)
