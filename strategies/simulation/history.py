"""Compiled record of one region's rows: what was moved, who waits for whom, and who used which memory last.

The record is written into tables that are made once for many regions. Where one of them is too small the record is
marked as full and is of no use; whoever made the tables makes larger ones. So nothing that is written to has to be
handed back, and nothing is allocated for a row.
"""

# pyright: reportArgumentType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.strategies.simulation import boxes
from maniple.strategies.simulation.bits import Column
from maniple.strategies.simulation.boxes import WIDTH, Boxes
from maniple.strategies.simulation.kernel import inner

# Columns of `moves`; how many of each table are used stands in `sizes`, the number of tasks, and whether one was full.
USE, KIND, BY, ELEMENTS, FROM, TO, GROUP, GROUP_SIZE = range(8)
MOVES, MEMBERS, EDGES, TOUCHES, TASKS, FULL = range(6)
NONE = -1

Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]
History = tuple[Table, Table, Table, Boxes, Column, Column, Column, Column]
"""moves, members, edges, touches (labelled 2 * node + writes), the touch after each, the first of each memory's values
and then of each task's contribution, marks by node, sizes."""


def room(entries: int) -> History:
    """Room for a record: so many movements, heads and marks, and four times as many members, edges and touches."""
    moves, heads, marks, sizes = ((entries, 8), (entries,), (entries,), (6,))
    members, edges, touches, after = ((4 * entries, 2), (4 * entries, 2), (4 * entries, WIDTH), (4 * entries,))
    shapes = (moves, members, edges, touches, after, heads, marks, sizes)
    return tuple(np.empty(shape, dtype=np.int64) for shape in shapes)  # type: ignore[return-value]


@inner
def begin(history: History, tasks: int, memories: int) -> bool:
    """Begin a record, before the first use. Returns whether there is room for the tasks."""
    heads, marks, sizes = history[5], history[6], history[7]
    sizes[:] = 0
    sizes[TASKS] = tasks
    if memories + tasks > len(heads):
        sizes[FULL] = 1
        return False
    heads[: memories + tasks] = NONE
    marks[:tasks] = NONE
    return True


@inner
def _next(sizes: Column, table: int, room: int) -> int:
    """The next entry of a table; where there is none, the record is full and the last entry is overwritten."""
    number = sizes[table]
    if number >= room:
        sizes[FULL] = 1
        return room - 1
    sizes[table] = number + 1
    return int(number)


@inner
def move(history: History, tasks: int, use: int, kind: int, by: int, elements: int) -> int:
    """Add a movement; returns its node."""
    moves, marks, sizes = history[0], history[6], history[7]
    number = _next(sizes, MOVES, min(len(moves), len(marks) - tasks))
    for column in range(8):
        moves[number, column] = NONE
    moves[number, USE], moves[number, KIND], moves[number, BY], moves[number, ELEMENTS] = use, kind, by, elements
    marks[tasks + number] = NONE
    return tasks + number


@inner
def member(history: History, memory: int, elements: int) -> None:
    """Add a member to the group of the last movement."""
    moves, members, sizes = history[0], history[1], history[7]
    number, last = _next(sizes, MEMBERS, len(members)), sizes[MOVES] - 1
    members[number, 0], members[number, 1] = memory, elements
    if moves[last, GROUP] == NONE:
        moves[last, GROUP], moves[last, GROUP_SIZE] = number, 0
    moves[last, GROUP_SIZE] += 1


@inner
def edge(edges: Table, marks: Column, sizes: Column, before: int, node: int) -> None:
    """Let a node wait for another; said twice in a row, it counts once."""
    if marks[before] != node:
        marks[before] = node
        number = _next(sizes, EDGES, len(edges))
        edges[number, 0], edges[number, 1] = before, node


@inner
def after(history: History, before: int, node: int) -> None:
    """Let a node wait for a movement."""
    edge(history[2], history[6], history[7], before, node)


@inner
def contribution(history: History, memories: int, task: int, node: int, table: Boxes) -> None:
    """Let a node that folds some boxes of a task's contribution wait for the task, and for merges into it."""
    after(history, task, node)
    if history[5][memories + task] != NONE:
        depend(history, node, memories + task, table, False)


@inner
def depend(history: History, node: int, memory: int, table: Boxes, writes: bool) -> None:  # noqa: FBT001
    """Let a node wait for every earlier use of some boxes in a memory that conflicts with its own."""
    _, _, edges, touches, following, heads, marks, sizes = history
    for row in range(len(table)):
        touch = heads[memory]
        while touch != NONE:
            label = touches[touch, 0]
            if (writes or label & 1) and label >> 1 != node and boxes.overlap(touches, touch, table, row):
                edge(edges, marks, sizes, label >> 1, node)
            touch = following[touch]


@inner
def record(history: History, node: int, memory: int, table: Boxes, writes: bool) -> None:  # noqa: FBT001
    """Remember a use of some boxes; a write hides the earlier ones that lie inside it, for it waits for them."""
    _, _, _, touches, following, heads, _, sizes = history
    for row in range(len(table)):
        if writes:
            _hide(touches, following, heads, node, memory, table, row)
        number = _next(sizes, TOUCHES, len(touches))
        boxes.put(touches, number, table, row)
        touches[number, 0] = 2 * node + writes
        following[number] = heads[memory]
        heads[memory] = number
        if sizes[FULL]:
            heads[memory] = NONE  # the last entry was overwritten: a list through it might be a circle


@inner
def _hide(touches: Boxes, following: Column, heads: Column, node: int, memory: int, table: Boxes, row: int) -> None:
    """Forget the uses in a memory that lie inside a box and are not the node's own."""
    before, touch = NONE, heads[memory]
    while touch != NONE:
        later = following[touch]
        if touches[touch, 0] >> 1 != node and boxes.contains(table, row, touches, touch):
            if before == NONE:
                heads[memory] = later
            else:
                following[before] = later
        else:
            before = touch
        touch = later
