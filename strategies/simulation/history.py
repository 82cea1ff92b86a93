"""Compiled record of one region's rows: what was moved, who waits for whom, and who used which memory last."""

# pyright: reportArgumentType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.strategies.simulation import boxes
from maniple.strategies.simulation.bits import Column
from maniple.strategies.simulation.boxes import WIDTH, Boxes
from maniple.strategies.simulation.kernel import inner

# Columns of `moves`; how many of each table are used stands in `sizes`, and the number of tasks.
USE, KIND, BY, ELEMENTS, FROM, TO, GROUP, GROUP_SIZE = range(8)
MOVES, MEMBERS, EDGES, TOUCHES, TASKS = range(5)
NONE = -1

Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]
History = tuple[Table, Table, Table, Boxes, Column, Column, Column, Column]
"""moves, members, edges, touches (labelled 2 * node + writes), the touch after each, the first of each memory's values
and then of each task's contribution, marks by node, sizes."""


@inner
def begun(tasks: int, memories: int) -> History:
    """The record before the first use."""
    sizes = np.zeros(5, dtype=np.int64)
    sizes[TASKS] = tasks
    return (
        np.empty((16, 8), dtype=np.int64),
        np.empty((16, 2), dtype=np.int64),
        np.empty((64, 2), dtype=np.int64),
        np.empty((64, WIDTH), dtype=np.int64),
        np.empty(64, dtype=np.int64),
        np.full(memories + tasks, NONE),
        np.full(tasks + 16, NONE),
        sizes,
    )


@inner
def move(history: History, tasks: int, use: int, kind: int, by: int, elements: int) -> tuple[History, int]:
    """Add a movement; returns its node."""
    moves, members, edges, touches, after, heads, marks, sizes = history
    number = sizes[MOVES]
    sizes[MOVES] = number + 1
    moves = boxes.grown(moves, number + 1)
    for column in range(8):
        moves[number, column] = NONE
    moves[number, USE], moves[number, KIND], moves[number, BY], moves[number, ELEMENTS] = use, kind, by, elements
    node = tasks + number
    if node >= len(marks):
        larger = np.full(2 * node + 16, NONE)
        larger[: len(marks)] = marks
        marks = larger
    return (moves, members, edges, touches, after, heads, marks, sizes), node


@inner
def member(history: History, memory: int, elements: int) -> History:
    """Add a member to the group of the last movement."""
    moves, members, edges, touches, after, heads, marks, sizes = history
    number, last = sizes[MEMBERS], sizes[MOVES] - 1
    sizes[MEMBERS] = number + 1
    members = boxes.grown(members, number + 1)
    members[number, 0], members[number, 1] = memory, elements
    if moves[last, GROUP] == NONE:
        moves[last, GROUP], moves[last, GROUP_SIZE] = number, 0
    moves[last, GROUP_SIZE] += 1
    return moves, members, edges, touches, after, heads, marks, sizes


@inner
def edge(history: History, before: int, node: int) -> History:
    """Let a node wait for another; said twice in a row, it counts once."""
    moves, members, edges, touches, after, heads, marks, sizes = history
    if marks[before] != node:
        marks[before] = node
        number = sizes[EDGES]
        sizes[EDGES] = number + 1
        edges = boxes.grown(edges, number + 1)
        edges[number, 0], edges[number, 1] = before, node
    return moves, members, edges, touches, after, heads, marks, sizes


@inner
def contribution(history: History, task: int, node: int, table: Boxes) -> History:
    """Let a node that folds some boxes of a task's contribution wait for the task, and for merges into it."""
    history = edge(history, task, node)
    own = len(history[5]) - history[7][TASKS] + task
    if history[5][own] != NONE:
        for row in range(len(table)):
            history = depend(history, node, own, table, row, False)
    return history


@inner
def depend(history: History, node: int, memory: int, table: Boxes, row: int, writes: bool) -> History:  # noqa: FBT001
    """Let a node wait for every earlier use of a box in a memory that conflicts with its own."""
    touches, after, heads = history[3], history[4], history[5]
    touch = heads[memory]
    while touch != NONE:
        label = touches[touch, 0]
        if (writes or label & 1) and label >> 1 != node and boxes.overlap(touches, touch, table, row):
            history = edge(history, label >> 1, node)
        touch = after[touch]
    return history


@inner
def record(history: History, node: int, memory: int, table: Boxes, row: int, writes: bool) -> History:  # noqa: FBT001
    """Remember a use; a write hides the earlier ones that lie inside it, for it waits for them."""
    moves, members, edges, touches, after, heads, marks, sizes = history
    if writes:
        before, touch = NONE, heads[memory]
        while touch != NONE:
            following = after[touch]
            if touches[touch, 0] >> 1 != node and boxes.contains(table, row, touches, touch):
                if before == NONE:
                    heads[memory] = following
                else:
                    after[before] = following
            else:
                before = touch
            touch = following
    number = sizes[TOUCHES]
    sizes[TOUCHES] = number + 1
    touches = boxes.grown(touches, number + 1)
    if len(after) < len(touches):
        larger = np.empty(len(touches), dtype=np.int64)
        larger[: len(after)] = after
        after = larger
    boxes.put(touches, number, table, row)
    touches[number, 0] = 2 * node + writes
    after[number] = heads[memory]
    heads[memory] = number
    return moves, members, edges, touches, after, heads, marks, sizes
