"""The tables of a simulated step: rows, what they hold and who waits for them as integers, and the times of rows.

A row is a task, a fold or a movement. It *holds* lanes (processors, links) from its start, each for a span of its own:
a task its processor until it ends, a transfer each link of its route for as long as that link needs for the bytes. A
lane takes rows first come, first served: by ready time, then by key. Times are integer nanoseconds.
"""

from __future__ import annotations

import numpy as np

from maniple.strategies.simulation.kernel import inner, kernel

Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Column = np.ndarray[tuple[int], np.dtype[np.int64]]
Spans = np.ndarray[tuple[int, int], np.dtype[np.int32]]
Numbers = np.ndarray[tuple[int], np.dtype[np.int32]]
Links = tuple[Spans, Numbers, Numbers, Numbers]
"""Spans, targets, heads and degrees."""

# Columns of `rows`; HOLD is (first hold << HOLD_BITS) + number of holds.
DURATION, HOLD = range(2)
HOLD_BITS = 24
HOLD_MASK = (1 << HOLD_BITS) - 1

# Columns of `times`; READY is DEAD where a row is not in the graph.
READY, END = range(2)
DEAD = -2

# Columns of `spans`: some successors of a row are `targets[FIRST:FIRST + COUNT]`, more are in the span that comes NEXT.
# A span of no ROW is not in the graph. `heads` has the first span of each row, `degrees` how many rows it waits for.
ROW, NEXT, FIRST, COUNT = range(4)
NONE = -1

LANE_BITS = 20
LANE_MASK = (1 << LANE_BITS) - 1
"""A hold is (span << LANE_BITS) + lane."""

NUMBER_BITS = 32
NUMBER_MASK = (1 << NUMBER_BITS) - 1
"""Rows are numbered within their use or launch; its base makes the number a key."""


@kernel
def add_rows(
    tables: tuple[Column, Table, Column, Column, Links],
    first: int,
    columns: Table,
    first_hold: int,
    held: Table,
    bases: Column,
) -> None:
    """Write rows where nothing is, and add what they hold to the load of the lanes; see `RowBlock`."""
    keys, rows, holds, load, (_, _, heads, degrees) = tables
    at = first_hold
    for number in range(len(columns)):
        row, key = first + number, columns[number, 0]
        keys[row] = bases[key >> NUMBER_BITS] + (key & NUMBER_MASK)
        rows[row, DURATION] = columns[number, 1]
        rows[row, HOLD] = (at << HOLD_BITS) | columns[number, 2]
        heads[row], degrees[row] = NONE, 0
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
def add_spans(links: Links, places: tuple[int, int], edges: Table, tasks: Table, first: Column, moves: int) -> None:
    """Write a region's edges where nothing is; a task does not wait for itself.

    Args:
        links: the tables.
        places: where the spans and their targets begin.
        edges: (node, node that waits), by ascending node: node t < tasks is task t, any other is movement t - tasks.
        tasks: (use, point) of each task.
        first: by use, the row of its launch's first point.
        moves: the row of the first movement.
    """
    spans, targets, heads, degrees = links
    span, at = places
    span -= 1
    last = row = NONE
    for edge in range(len(edges)):
        if edges[edge, 0] != last:
            last = edges[edge, 0]
            row = _row(last, tasks, first, moves)
            span += 1
            spans[span, ROW], spans[span, FIRST], spans[span, COUNT] = row, at, 0
            spans[span, NEXT] = heads[row]
            heads[row] = span
        target = _row(edges[edge, 1], tasks, first, moves)
        if target != row:
            targets[at] = target
            spans[span, COUNT] += 1
            degrees[target] += 1
            at += 1


@inner
def _row(node: int, tasks: Table, first: Column, moves: int) -> int:
    """The row of a node."""
    return first[tasks[node, 0]] + tasks[node, 1] if node < len(tasks) else moves + node - len(tasks)


@kernel
def take_out(links: Links, blocks: Table) -> None:
    """Take (first, number) of spans out of the graph."""
    spans, targets, heads, degrees = links
    for block in range(len(blocks)):
        for span in range(blocks[block, 0], blocks[block, 0] + blocks[block, 1]):
            row = spans[span, ROW]
            if heads[row] == span:
                heads[row] = spans[span, NEXT]
            else:
                before = heads[row]
                while spans[before, NEXT] != span:
                    before = spans[before, NEXT]
                spans[before, NEXT] = spans[span, NEXT]
            for at in range(spans[span, FIRST], spans[span, FIRST] + spans[span, COUNT]):
                degrees[targets[at]] -= 1


@kernel
def put_back(links: Links, blocks: Table) -> None:
    """Put (first, number) of spans that were taken out into the graph again."""
    spans, targets, heads, degrees = links
    for block in range(len(blocks)):
        for span in range(blocks[block, 0], blocks[block, 0] + blocks[block, 1]):
            row = spans[span, ROW]
            spans[span, NEXT] = heads[row]
            heads[row] = span
            for at in range(spans[span, FIRST], spans[span, FIRST] + spans[span, COUNT]):
                degrees[targets[at]] += 1


@kernel
def clear(spans: Spans, blocks: Table) -> None:
    """Let (first, number) of spans be of no row."""
    for block in range(len(blocks)):
        for span in range(blocks[block, 0], blocks[block, 0] + blocks[block, 1]):
            spans[span, ROW] = NONE
