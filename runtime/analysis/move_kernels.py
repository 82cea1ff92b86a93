"""Compiled rules of `move_table`: who moves how much, from the tables of a fragment."""

# pyright: reportArgumentType=false, reportReturnType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import inner, kernel, leaf
from maniple.regions.columns.bit_sets import Column
from maniple.regions.columns.boxes import LOW, Boxes, bounding_volume
from maniple.regions.columns.history import BY, ELEMENTS, FROM, GROUP, GROUP_SIZE, KIND, NONE, TO, TOUCHED, USE, Table
from maniple.regions.columns.row_major import touched_bytes
from maniple.runtime.analysis import fragment as columns
from maniple.runtime.schedule.schedule import RowKind

__all__: list[str] = []

Moves = tuple[Column, Column, Column, Column]
"""The use that needs each movement, its kind, who folds, the elements that it sends."""
Tables = tuple[Table, Table, Table, Table, Table]
"""accesses, transfers, pieces, instances, ends: of a fragment, each but the instances by movement."""
Spaces = tuple[Boxes, Column, Column]
"""Boxes, and of each space the first of its boxes and one past the last."""

FOLD, COPY = int(RowKind.FOLD), int(RowKind.COPY)


@kernel
def tabulate_moves(described: Moves, tables: Tables, spaces: Spaces, layout: Column) -> tuple[Table, Table]:
    """Give the movements of a fragment, and the members of their groups; see `move_table.tabulate`.

    Args:
        described: by movement.
        tables: what they use, send and fold.
        spaces: what of it.
        layout: the region's extents, the bytes of an element and of a cache line.
    """
    serves, kinds, processors, elements = described
    accesses, transfers, pieces, instances, ends = tables
    moves = np.full((len(kinds), TOUCHED + 1), NONE, dtype=np.int64)
    members = np.empty((2 * len(transfers) + len(ends), 4), dtype=np.int64)
    memories = _memories(instances, ends)
    # Of each memory its place in the group of a movement, and to whom it sends first there.
    place, first = np.full(memories, NONE), np.full(memories, NONE)
    count = push = piece = access = part = 0
    for move in range(len(kinds)):
        moves[move, USE], moves[move, KIND], moves[move, BY] = serves[move], kinds[move], processors[move]
        moves[move, ELEMENTS] = 0 if kinds[move] == FOLD else elements[move]
        while access < len(accesses) and accesses[access, columns.NODE] == move:
            if kinds[move] == FOLD:
                moves[move, ELEMENTS] += _volume(spaces, accesses[access, columns.SPACE])
            access += 1
        begin, fold = push, piece
        while push < len(transfers) and transfers[push, columns.NODE] == move:
            push += 1
        while piece < len(pieces) and pieces[piece, columns.NODE] == move:
            piece += 1
        member = part
        while part < len(ends) and ends[part, columns.NODE] == move:
            part += 1
        if part > member:
            end = _listed_group(ends[member:part], pieces[fold:piece], members, count, place, spaces, layout)
            moves[move, GROUP], moves[move, GROUP_SIZE], count = count, end - count, end
        elif kinds[move] == COPY:
            for row in range(begin, push):
                moves[move, FROM] = instances[transfers[row, columns.SOURCE], 0]
                moves[move, TO] = instances[transfers[row, columns.TARGET], 0]
                moves[move, TOUCHED] = _touched(spaces, transfers[row, columns.SPACE], layout)
        elif push > begin:
            end = _group(
                transfers[begin:push], pieces[fold:piece], instances, members, count, place, first, spaces, layout
            )
            moves[move, GROUP], moves[move, GROUP_SIZE], count = count, end - count, end
    return moves, members[:count].copy()


@leaf
def _memories(instances: Table, ends: Table) -> int:
    """One past the last memory that anything is in."""
    memories = 1
    for row in range(len(instances)):
        memories = max(memories, instances[row, 0] + 1)
    for row in range(len(ends)):
        memories = max(memories, ends[row, columns.MEMORY_OF_END] + 1)
    return memories


@inner
def _listed_group(
    ends: Table, blocks: Table, members: Table, count: int, place: Column, spaces: Spaces, layout: Column
) -> int:
    """Add the group of a movement whose blocks are listed, and what each member owns; one past the last member."""
    for row in range(len(ends)):
        members[count, 0], members[count, 1], members[count, 2], members[count, 3] = ends[row, 1], 0, 0, 0
        place[ends[row, columns.MEMORY_OF_END]] = count
        count += 1
    for row in range(len(blocks)):
        member, space = place[blocks[row, columns.MEMORY]], blocks[row, columns.SPACE]
        _own(members, member, spaces, space, layout)
        if blocks[row, columns.FIRST] < blocks[row, columns.LAST]:
            boxes, first, last = spaces
            members[member, 3] += bounding_volume(boxes[first[space] : last[space]])
    for row in range(len(ends)):
        place[ends[row, columns.MEMORY_OF_END]] = NONE
    return count


@inner
def _group(
    pushes: Table,
    pieces: Table,
    instances: Table,
    members: Table,
    count: int,
    place: Column,
    first: Column,
    spaces: Spaces,
    layout: Column,
) -> int:
    """Add the group of a movement, and what each member owns: what it folds, or else what it sends."""
    end = _gather(pushes, instances, members, count, place, first)
    for row in range(len(pieces)):
        _own(members, place[pieces[row, columns.MEMORY]], spaces, pieces[row, columns.SPACE], layout)
    if len(pieces) == 0:
        _own_sent(pushes, instances, members, place, first, spaces, layout)
    _stage(pushes, instances, members, place)
    for row in range(count, end):
        place[members[row, 0]] = first[members[row, 0]] = NONE
        # All other members send what an owner folds to tiles of one size.
        members[row, 3] //= max(1, end - count - 1)
    return end


@leaf
def _gather(pushes: Table, instances: Table, members: Table, count: int, place: Column, first: Column) -> int:
    """Add the memories that a movement's pushes link, by number; one past the last member."""
    for row in range(len(pushes)):
        source = instances[pushes[row, columns.SOURCE], 0]
        target = instances[pushes[row, columns.TARGET], 0]
        place[source] = place[target] = 0
        if first[source] == NONE:
            first[source] = target
    for memory in range(len(place)):
        if place[memory] != NONE:
            members[count, 0], members[count, 1], members[count, 2], members[count, 3] = memory, 0, 0, 0
            place[memory] = count
            count += 1
    return count


@leaf
def _stage(pushes: Table, instances: Table, members: Table, place: Column) -> None:
    """Add the tiles in which what an owner folds arrives."""
    for row in range(len(pushes)):
        if pushes[row, columns.FEEDS] != NONE:
            tile = pushes[row, columns.TARGET]
            members[place[instances[tile, 0]], 3] += instances[tile, 3]


@inner
def _own_sent(
    pushes: Table, instances: Table, members: Table, place: Column, first: Column, spaces: Spaces, layout: Column
) -> None:
    """Where nothing is folded, who sends a tile owns it: it is counted as sent to whomever it goes to first."""
    for row in range(len(pushes)):
        source = instances[pushes[row, columns.SOURCE], 0]
        if first[source] == instances[pushes[row, columns.TARGET], 0]:
            _own(members, place[source], spaces, pushes[row, columns.SPACE], layout)


@inner
def _own(members: Table, member: int, spaces: Spaces, space: int, layout: Column) -> None:
    """Add a space to what a member owns."""
    members[member, 1] += _volume(spaces, space)
    members[member, 2] += _touched(spaces, space, layout)


@leaf
def _volume(spaces: Spaces, space: int) -> int:
    """The elements of a space."""
    boxes, first, last = spaces
    axes, total = (boxes.shape[1] - LOW) // 2, 0
    for box in range(first[space], last[space]):
        volume = 1
        for axis in range(axes):
            volume *= boxes[box, LOW + axes + axis] - boxes[box, LOW + axis]
        total += volume
    return total


@inner
def _touched(spaces: Spaces, space: int, layout: Column) -> int:
    """The bytes that a processor touches to read a space."""
    boxes, first, last = spaces
    return int(touched_bytes(boxes[first[space] : last[space]], layout))
