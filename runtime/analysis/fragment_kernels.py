"""Compiled rules of fragments: the tables of one from the record of its analysis, and where its items stand by row.

Every row of every table of a fragment has a space of its own: those of the tasks, their boxes, come first, then
those of accesses, transfers and pieces, and those of instances, of one box each:

    ==========  ====================  =================
    spaces of   as many as            boxes
    ==========  ====================  =================
    tasks       tasks                 one each
    accesses    accesses              some of the record
    transfers   transfers             some of the record
    pieces      pieces                some of the record
    instances   instances             one each
    ==========  ====================  =================
"""

# pyright: reportArgumentType=false, reportReturnType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import kernel, leaf
from maniple.regions.columns import storage
from maniple.regions.columns.bit_sets import Column
from maniple.regions.columns.boxes import AXES, HIGH, LOW, WIDTH, Boxes
from maniple.regions.columns.storage import ADDS, Storage, Table
from maniple.regions.columns.validity import MEMORY, READ, reduces

__all__: list[str] = []

Tables = tuple[Table, Table, Table, Table, Table, Column, Boxes, Column, Column, Table]
"""tasks, accesses, transfers, pieces, instances, parts, boxes, the first box of each space and one past the last, ends
of collectives."""


@kernel
def tabulate_record(
    uses: Table, tasks: Table, points: Column, task_boxes: Boxes, memories: int, kept: Storage
) -> Tables:
    """Give the tables of a fragment, as it has them, from what was recorded.

    Args:
        uses: (first task, one past the last, privilege) of each use.
        tasks: (memory, processor, colour) of every task.
        points: the number of each in its launch.
        task_boxes: what each uses.
        memories: how many there are.
        kept: the record.
    """
    instances, boxes, accesses, transfers, pieces, parts, at, place_of, sizes, ends = kept
    count, made, behind = len(tasks), sizes[storage.INSTANCES], len(tasks) + sizes[storage.SPACES]
    spaces = count + sizes[storage.ACCESSES] + sizes[storage.TRANSFERS] + sizes[storage.PIECES]
    first, last = np.empty(spaces + made, dtype=np.int64), np.empty(spaces + made, dtype=np.int64)
    table = np.empty((behind + made, WIDTH), dtype=np.int64)
    table[:count], table[count:behind] = task_boxes, boxes[: sizes[storage.SPACES]]
    table[behind:] = instances[:made]
    found = np.empty((count, 5), dtype=np.int64)
    for use in range(len(uses)):
        for task in range(uses[use, 0], uses[use, 1]):
            # The place of a contribution is behind those of all memories.
            place = memories + task if reduces(uses[use, 2]) else tasks[task, MEMORY]
            found[task, 0], found[task, 1], found[task, 2] = use, points[task], task
            found[task, 3], found[task, 4] = at[place], int(uses[use, 2] != READ)
            if place_of[at[place]] != place:
                found[task, 4] = ADDS
            first[task], last[task] = task, task + 1
    space = count
    used = np.empty((sizes[storage.ACCESSES], 5), dtype=np.int64)
    for row in range(len(used)):
        used[row, 0], used[row, 1] = accesses[row, storage.NODE] - count, space
        used[row, 2], used[row, 3] = accesses[row, storage.INSTANCE], accesses[row, storage.WRITES]
        used[row, 4] = accesses[row, storage.SLOT]
        first[space], last[space] = accesses[row, storage.FIRST] + count, accesses[row, storage.LAST] + count
        space += 1
    pushed = np.empty((sizes[storage.TRANSFERS], 6), dtype=np.int64)
    for row in range(len(pushed)):
        pushed[row, 0], pushed[row, 1] = transfers[row, storage.NODE] - count, space
        pushed[row, 2], pushed[row, 3] = transfers[row, storage.SOURCE], transfers[row, storage.TARGET]
        pushed[row, 4] = pushed[row, 5] = storage.NONE
        first[space], last[space] = transfers[row, storage.FIRST] + count, transfers[row, storage.LAST] + count
        space += 1
    folded = np.empty((sizes[storage.PIECES], 6), dtype=np.int64)
    for row in range(len(folded)):
        folded[row, 0], folded[row, 1] = pieces[row, storage.NODE] - count, space
        folded[row, 2], folded[row, 3] = pieces[row, storage.MEMORY], pieces[row, storage.TARGET]
        folded[row, 4], folded[row, 5] = pieces[row, storage.FIRST_PART], pieces[row, storage.LAST_PART]
        first[space], last[space] = pieces[row, storage.FIRST] + count, pieces[row, storage.LAST] + count
        space += 1
    room = np.empty((made, 4), dtype=np.int64)
    for row in range(made):
        room[row, 0], room[row, 1] = instances[row, 0] // storage.KINDS, instances[row, 0] % storage.KINDS
        room[row, 2], room[row, 3] = space, _volume(instances, row)
        first[space], last[space] = behind + row, behind + row + 1
        space += 1
    parted = _ends(ends, sizes[storage.ENDS], count)
    return found, used, pushed, folded, room, parts[: sizes[storage.PARTS]].copy(), table, first, last, parted


@kernel
def _ends(ends: Table, size: int, count: int) -> Table:
    """What waits for parts of collectives, by moves."""
    parted = np.empty((size, 3), dtype=np.int64)
    for row in range(size):
        parted[row, 0], parted[row, 1], parted[row, 2] = ends[row, 0] - count, ends[row, 1], ends[row, 2]
    return parted


@leaf
def _volume(table: Boxes, row: int) -> int:
    """The elements of a box."""
    volume = 1
    for axis in range(AXES):
        volume *= table[row, HIGH + axis] - table[row, LOW + axis]
    return volume


@kernel
def place_items(rows: Column, items: Table, columns: Column, added: Column, cursor: Column, found: Table) -> None:
    """Put items behind those that their rows have already.

    Args:
        rows: the row of each node.
        items: of nodes, of which the first column is the number.
        columns: which of their columns are wanted.
        added: what is added to each of these.
        cursor: by row, where its next item goes; moved on.
        found: by wanted column and place, what is written.
    """
    for item in range(len(items)):
        row = rows[items[item, 0]]
        for column in range(len(columns)):
            found[column, cursor[row]] = items[item, columns[column]] + added[column]
        cursor[row] += 1


@kernel
def count_items(rows: Column, items: Table, counts: Column) -> None:
    """Add to the number of items of each row, one behind; see `place_items`."""
    for item in range(len(items)):
        counts[rows[items[item, 0]] + 1] += 1
