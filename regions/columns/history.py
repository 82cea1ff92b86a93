"""Compiled record of one region's rows: what was moved, who waits for whom, and who used which memory last.

The record is written into tables that are made once for many regions. Where one of them is too small the record is
marked as full and is of no use; whoever made the tables makes larger ones. So nothing that is written to has to be
handed back, and nothing is allocated for a row.

What used an instance last stands in two lists, those that wrote and those that read, of the boxes that they used; a box
that many read is there once. So a use that reads looks at writes alone, and looks at a box once however many use it.
"""

# pyright: reportArgumentType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import inner, leaf
from maniple.regions.columns import boxes
from maniple.regions.columns.bit_sets import Column
from maniple.regions.columns.boxes import AXES, HIGH, LOW, WIDTH, Boxes
from maniple.regions.columns.room import next_entry

# Columns of `moves`; how many of each table are used stands in `sizes`, the number of tasks, and whether one was full.
USE, KIND, BY, ELEMENTS, FROM, TO, GROUP, GROUP_SIZE, TOUCHED = range(9)
MOVES, MEMBERS, EDGES, PLACES, TOUCHES, FULL = range(6)
# Columns of `places`: the place after it in its list, its box, and the last touch of it; and of `touches`.
NEXT, LAST = 0, WIDTH
NODE, BEFORE = 0, 1
NONE = -1

Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]
History = tuple[Table, Table, Table, Boxes, Table, Column, Column, Column]
"""moves, members, edges, places, touches, the first place that was read and the first that was written in each memory
and then in each task's contribution, marks by node, sizes."""


def room(entries: int) -> History:
    """Room for a record: so many movements, marks and (by two) heads, four times as many members, edges and touches."""
    moves, heads, marks, sizes = ((entries, 9), (2 * entries,), (entries,), (6,))
    members, edges, places, touches = ((4 * entries, 4), (4 * entries, 2), (4 * entries, WIDTH + 1), (4 * entries, 2))
    shapes = (moves, members, edges, places, touches, heads, marks, sizes)
    return tuple(np.zeros(shape, dtype=np.int64) for shape in shapes)  # type: ignore[return-value]


@inner
def begin(history: History, tasks: int, memories: int) -> bool:
    """Begin a record, before the first use. Returns whether there is room for the tasks."""
    heads, marks, sizes = history[5], history[6], history[7]
    sizes[:] = 0
    if 2 * (memories + tasks) > len(heads) or tasks >= len(marks):
        sizes[FULL] = 1
        return False
    heads[: 2 * (memories + tasks)] = NONE
    marks[:tasks] = NONE
    return True


@leaf
def move(history: History, tasks: int, use: int, kind: int, by: int, elements: int) -> int:
    """Add a movement; returns its node."""
    moves, marks, sizes = history[0], history[6], history[7]
    number = next_entry(sizes, MOVES, min(len(moves), len(marks) - tasks), FULL)
    for column in range(9):
        moves[number, column] = NONE
    moves[number, USE], moves[number, KIND], moves[number, BY], moves[number, ELEMENTS] = use, kind, by, elements
    marks[tasks + number] = NONE
    return tasks + number


@leaf
def member(history: History, memory: int, elements: int, touched: int, staged: int) -> None:
    """Add a member to the group of the last movement.

    Args:
        history: the record.
        memory: the member.
        elements: those that it owns: that it folds, or sends.
        touched: the bytes touched to read them.
        staged: the elements of a tile with room for them, on its way to a fold.
    """
    moves, members, sizes = history[0], history[1], history[7]
    number, last = next_entry(sizes, MEMBERS, len(members), FULL), sizes[MOVES] - 1
    members[number, 0], members[number, 1] = memory, elements
    members[number, 2], members[number, 3] = touched, staged
    if moves[last, GROUP] == NONE:
        moves[last, GROUP], moves[last, GROUP_SIZE] = number, 0
    moves[last, GROUP_SIZE] += 1


@leaf
def edge(edges: Table, marks: Column, sizes: Column, before: int, node: int) -> None:
    """Let a node wait for another; said twice in a row, it counts once."""
    # A node's edges are said one after another, so it is enough to know which node waited for `before` last.
    if marks[before] != node:
        marks[before] = node
        number = next_entry(sizes, EDGES, len(edges), FULL)
        edges[number, 0], edges[number, 1] = before, node


@leaf
def after(history: History, before: int, node: int) -> None:
    """Let a node wait for a movement."""
    edge(history[2], history[6], history[7], before, node)


@leaf
def contributions(
    history: History,
    memories: int,
    listed: Column,
    first: int,
    last: int,
    node: int,
    table: Boxes,
    records: bool,  # noqa: FBT001
) -> None:
    """Let a node that folds some boxes of the listed tasks' contributions wait for them, and for merges into them."""
    _, _, edges, places, touches, heads, marks, sizes = history
    for item in range(first, last):
        task = memories + listed[item]
        place = heads[2 * task + 1]
        if records or places[place, NEXT] != NONE:
            touch(history, node, task, table, False, records)
        else:
            # What it folds the task wrote, and nobody else wrote any of it.
            edge(edges, marks, sizes, touches[places[place, LAST], NODE], node)


@leaf
def touch(history: History, node: int, memory: int, table: Boxes, writes: bool, records: bool) -> None:  # noqa: FBT001
    """Let a node wait for conflicting uses of some boxes in a memory, and remember its own."""
    for row in range(len(table)):
        depend(history, node, memory, table, row, writes)
        if records:
            record(history, node, memory, table, row, writes)


@leaf
def depend(history: History, node: int, memory: int, table: Boxes, row: int, writes: bool) -> None:  # noqa: FBT001
    """Let a node wait for every earlier use of a box in a memory that conflicts with its own."""
    _, _, edges, places, touches, heads, marks, sizes = history
    # The list of reads stands first, that of writes second: reads do not conflict with reads.
    for kind in range(0 if writes else 1, 2):
        place = heads[2 * memory + kind]
        while place != NONE:
            if boxes.overlap(places, place, table, row):
                touch = places[place, LAST]
                while touch != NONE:
                    # A node with several boxes does not wait for itself.
                    if touches[touch, NODE] != node:
                        edge(edges, marks, sizes, touches[touch, NODE], node)
                    touch = touches[touch, BEFORE]
            place = places[place, NEXT]


@leaf
def record(history: History, node: int, memory: int, table: Boxes, row: int, writes: bool) -> None:  # noqa: FBT001
    """Remember a use of a box; a write hides the earlier ones of its points, for it waits for them."""
    places, touches, heads, sizes = history[3], history[4], history[5], history[7]
    head = 2 * memory + writes
    place = NONE
    if writes:
        hide(history, head - 1, table, row)
        hide(history, head, table, row)
    else:
        # One place for all that read the same box, with a chain of who they were, the last one first.
        place = heads[head]
        while place != NONE and not boxes.same(places, place, table, row):
            place = places[place, NEXT]
    if place == NONE:
        place = next_entry(sizes, PLACES, len(places), FULL)
        boxes.put(places, place, table, row)
        places[place, NEXT], places[place, LAST] = heads[head], NONE
        heads[head] = place
    touch = next_entry(sizes, TOUCHES, len(touches), FULL)
    touches[touch, NODE], touches[touch, BEFORE] = node, places[place, LAST]
    places[place, LAST] = touch
    if sizes[FULL]:
        heads[head], places[place, LAST] = NONE, NONE  # an entry was overwritten: a list through it might be a circle


@inner
def order_edges(history: History, nodes: int) -> tuple[Table, int]:
    """The edges by ascending node that is waited for, and how many nodes are (a counting sort)."""
    edges, count = history[2], history[7][EDGES]
    starts = np.zeros(nodes + 1, dtype=np.int64)
    sources = 0
    for number in range(count):
        starts[edges[number, 0] + 1] += 1
    for node in range(nodes):
        sources += starts[node + 1] > 0
        starts[node + 1] += starts[node]
    result = np.empty((count, 2), dtype=np.int64)
    for number in range(count):
        place = starts[edges[number, 0]]
        result[place, 0], result[place, 1] = edges[number, 0], edges[number, 1]
        # Where each node's edges begin has become where the next one of it goes.
        starts[edges[number, 0]] += 1
    return result, sources


@leaf
def hide(history: History, head: int, table: Boxes, row: int) -> None:
    """Forget the uses of one list of a box: of what reaches beyond it, the rest stays."""
    places, heads, sizes = history[3], history[5], history[7]
    before, place = NONE, heads[head]
    while place != NONE:
        later = places[place, NEXT]
        if boxes.overlap(places, place, table, row):
            _link(places, heads, head, before, later)
            before = _cut(history, head, before, place, table, row)
            if sizes[FULL]:
                heads[head] = NONE  # an entry was overwritten: a list through it might be a circle
                return
        else:
            before = place
        place = later


@leaf
def _link(places: Boxes, heads: Column, head: int, before: int, place: int) -> None:
    """Let a place follow another, or be the first of its list."""
    if before == NONE:
        heads[head] = place
    else:
        places[before, NEXT] = place


@leaf
def _cut(history: History, head: int, before: int, place: int, table: Boxes, row: int) -> int:
    """Put what a hole leaves of a box behind a place of its list; returns the last place that was put there."""
    places, heads, sizes = history[3], history[5], history[7]
    later = heads[head] if before == NONE else places[before, NEXT]
    for axis in range(AXES):
        low, high = LOW + axis, HIGH + axis
        for side in range(2):
            if side == 0 and places[place, low] >= table[row, low]:
                continue
            if side == 1 and places[place, high] <= table[row, high]:
                continue
            slab = next_entry(sizes, PLACES, len(places), FULL)
            boxes.put(places, slab, places, place)
            # Who used it is a chain that only grows at its head, so slabs may share it.
            places[slab, LAST], places[slab, NEXT] = places[place, LAST], later
            if side == 0:
                places[slab, high] = table[row, low]
            else:
                places[slab, low] = table[row, high]
            _link(places, heads, head, before, slab)
            before = slab
        # The box is what is left to cut on the next axes; after the last one it lies within the hole.
        places[place, low] = max(places[place, low], table[row, low])
        places[place, high] = min(places[place, high], table[row, high])
    return before
