"""The tables of a simulated step: rows, what they hold and who waits for them as integers, and the times of rows.

A row is a task, a fold or a movement. It *holds* lanes (processors, links) from its start, each for a span of its own:
a task its processor until it ends, a transfer each link of its route for as long as that link needs for the bytes. A
lane takes rows first come, first served: by ready time, then by key. Times are integer nanoseconds.
"""

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import kernel, leaf

Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Column = np.ndarray[tuple[int], np.dtype[np.int64]]
Spans = np.ndarray[tuple[int, int], np.dtype[np.int32]]
Numbers = np.ndarray[tuple[int], np.dtype[np.int32]]
Tables = tuple[Table, Column, Spans, Numbers]
"""Rows, holds, spans and targets."""

# Columns of `rows`: what a simulation touches of a row is one line of a processor's cache. HOLD is
# (first hold << HOLD_BITS) + number of holds, LINK is (number of rows that it waits for << LINK_BITS) + 1 + its first
# span, without one 0. READY is NEVER where a row has no times yet. The last two are the times that a settlement is
# finding: DUE what READY will be, WAITS for how many rows it still waits, and once there are none what END will be.
KEY, DURATION, HOLD, LINK, READY, END, DUE, WAITS = range(8)
WIDTH = 8
HOLD_BITS = 24
HOLD_MASK = (1 << HOLD_BITS) - 1
LINK_BITS = 32
LINK_MASK = (1 << LINK_BITS) - 1
NEVER = np.iinfo(np.int64).max

# Columns of `spans`: some successors of a row are `targets[FIRST:FIRST + COUNT]`, more are in the span that comes NEXT.
# A span of no ROW is not in the graph.
ROW, NEXT, FIRST, COUNT = range(4)
NONE = -1

LANE_BITS = 20
LANE_MASK = (1 << LANE_BITS) - 1
"""A hold is (span << LANE_BITS) + lane."""
LONGEST = (1 << 63 - LANE_BITS) - 1
"""The longest span that fits: nearly two and a half hours."""

NUMBER_BITS = 32
NUMBER_MASK = (1 << NUMBER_BITS) - 1
"""Rows are numbered within their use or launch; its base makes the number a key."""


def empty_rows(count: int) -> Table:
    """Room for rows, each in one line of a processor's cache."""
    room = np.zeros((count + 1) * WIDTH, dtype=np.int64)
    first = -(room.ctypes.data // room.itemsize) % WIDTH
    return room[first : first + count * WIDTH].reshape(count, WIDTH)


@kernel
def add_rows(
    tables: Tables, load: Column, first: int, columns: Table, first_hold: int, held: Table, bases: Column
) -> None:
    """Write rows where nothing is, and add what they hold to the load of the lanes; see `RowBlock`."""
    rows, holds, _, _ = tables
    at = first_hold
    for number in range(len(columns)):
        row, key = first + number, columns[number, 0]
        rows[row, KEY] = bases[key >> NUMBER_BITS] + (key & NUMBER_MASK)
        rows[row, DURATION] = columns[number, 1]
        rows[row, HOLD] = (at << HOLD_BITS) | columns[number, 2]
        rows[row, LINK], rows[row, READY], rows[row, END] = 0, NEVER, 0
        at += columns[number, 2]
    for number in range(len(held)):
        lane, span = held[number, 0], held[number, 1]
        holds[first_hold + number] = (span << LANE_BITS) | lane
        load[lane] += span


@kernel
def lighten(holds: Column, load: Column, blocks: Table, sign: int) -> None:
    """Take what (first, number) of holds weigh from the load of the lanes; with a sign of -1, put it back."""
    for block in range(len(blocks)):
        for hold in range(blocks[block, 0], blocks[block, 0] + blocks[block, 1]):
            load[holds[hold] & LANE_MASK] -= sign * (holds[hold] >> LANE_BITS)


@kernel
def add_spans(tables: Tables, places: tuple[int, int], edges: Table, tasks: Table, first: Column, moves: int) -> None:
    """Write a region's edges where nothing is; a task does not wait for itself.

    Args:
        tables: the tables.
        places: where the spans and their targets begin.
        edges: (node, node that waits), by ascending node: node t < tasks is task t, any other is movement t - tasks.
        tasks: (use, point) of each task.
        first: by use, the row of its launch's first point.
        moves: the row of the first movement.
    """
    rows, _, spans, targets = tables
    span, at = places
    span -= 1
    last = row = NONE
    for edge in range(len(edges)):
        if edges[edge, 0] != last:
            last = edges[edge, 0]
            row = _row(last, tasks, first, moves)
            span += 1
            spans[span, ROW], spans[span, FIRST], spans[span, COUNT] = row, at, 0
            spans[span, NEXT] = head(rows, row)
            set_head(rows, row, span)
        target = _row(edges[edge, 1], tasks, first, moves)
        if target != row:
            targets[at] = target
            spans[span, COUNT] += 1
            rows[target, LINK] += 1 << LINK_BITS
            at += 1


@leaf
def head(rows: Table, row: int) -> int:
    """The first span of a row, or none."""
    return int((rows[row, LINK] & LINK_MASK) - 1)


@leaf
def set_head(rows: Table, row: int, span: int) -> None:
    """Let a span be the first of a row."""
    rows[row, LINK] += span - head(rows, row)


@leaf
def _row(node: int, tasks: Table, first: Column, moves: int) -> int:
    """The row of a node."""
    return first[tasks[node, 0]] + tasks[node, 1] if node < len(tasks) else moves + node - len(tasks)


@kernel
def take_out(tables: Tables, blocks: Table) -> None:
    """Take (first, number) of spans out of the graph."""
    rows, _, spans, targets = tables
    for block in range(len(blocks)):
        for span in range(blocks[block, 0], blocks[block, 0] + blocks[block, 1]):
            row = spans[span, ROW]
            before = head(rows, row)
            if before == span:
                set_head(rows, row, spans[span, NEXT])
            else:
                while spans[before, NEXT] != span:
                    before = spans[before, NEXT]
                spans[before, NEXT] = spans[span, NEXT]
            for at in range(spans[span, FIRST], spans[span, FIRST] + spans[span, COUNT]):
                rows[targets[at], LINK] -= 1 << LINK_BITS


@kernel
def put_back(tables: Tables, blocks: Table) -> None:
    """Put (first, number) of spans that were taken out into the graph again."""
    rows, _, spans, targets = tables
    for block in range(len(blocks)):
        for span in range(blocks[block, 0], blocks[block, 0] + blocks[block, 1]):
            row = spans[span, ROW]
            spans[span, NEXT] = head(rows, row)
            set_head(rows, row, span)
            for at in range(spans[span, FIRST], spans[span, FIRST] + spans[span, COUNT]):
                rows[targets[at], LINK] += 1 << LINK_BITS


@kernel
def clear(spans: Spans, blocks: Table) -> None:
    """Let (first, number) of spans be of no row."""
    for block in range(len(blocks)):
        for span in range(blocks[block, 0], blocks[block, 0] + blocks[block, 1]):
            spans[span, ROW] = NONE
