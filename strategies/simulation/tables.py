"""The tables of a simulated step: rows, edges and holds as integers, with a log that takes changes back.

A row is a task, a fold or a movement. It *holds* lanes (processors, links) from its start, each for a span of its own:
a task its processor until it ends, a transfer each link of its route for as long as that link needs for the bytes. A
lane takes rows first come, first served: by ready time, then by key. Times are integer nanoseconds.
"""

from __future__ import annotations

import numpy as np

from maniple.strategies.simulation.kernel import inner, kernel

Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Column = np.ndarray[tuple[int], np.dtype[np.int64]]

# Columns of `rows`, 64 bytes in all. READY is NEW while a row has no time, DEAD once it has left the graph. IN and OUT
# are the first edge of each list. HOLD is (first hold << HOLD_BITS) + number of holds. STAMP is the sweep's.
KEY, DURATION, READY, END, IN, OUT, HOLD, STAMP = range(8)
NEW, DEAD = -1, -2
HOLD_BITS = 24
HOLD_MASK = (1 << HOLD_BITS) - 1

# Columns of `edges`; each edge is in the list of its target's predecessors and of its source's successors.
SOURCE, TARGET, NEXT_IN, PREVIOUS_IN, NEXT_OUT, PREVIOUS_OUT = range(6)

# Columns of `holds`.
LANE, SPAN = range(2)

NUMBER_BITS = 32
NUMBER_MASK = (1 << NUMBER_BITS) - 1
"""Rows are numbered within their use or launch; its base makes the number a key."""

ROWS, EDGES = range(2)
NONE = -1


@inner
def put(table: Table, which: int, log: Table, place: int, column: int, value: int) -> None:
    """Write one number; the log (its length in the last entry) remembers the old one."""
    length = log[-1, 0]
    log[length, 0] = (which << 56) | (place << 8) | column
    log[length, 1] = table[place, column]
    log[-1, 0] = length + 1
    table[place, column] = value


@kernel
def roll_back(rows: Table, edges: Table, log: Table) -> None:
    """Undo every write in the log, latest first."""
    for entry in range(log[-1, 0] - 1, -1, -1):
        where, old = log[entry, 0], log[entry, 1]
        place, column = (where >> 8) & ((1 << 48) - 1), where & 255
        if where >> 56 == ROWS:
            rows[place, column] = old
        else:
            edges[place, column] = old
    log[-1, 0] = 0


@kernel
def add_rows(
    rows: Table, holds: Table, first: int, columns: Table, first_hold: int, held: Table, bases: Column
) -> None:
    """Write rows without a time where nothing is; see `RowBlock`."""
    at = first_hold
    for number in range(len(columns)):
        row, key = first + number, columns[number, 0]
        rows[row, KEY] = bases[key >> NUMBER_BITS] + (key & NUMBER_MASK)
        rows[row, DURATION] = columns[number, 1]
        rows[row, READY] = rows[row, END] = NEW
        rows[row, IN] = rows[row, OUT] = rows[row, STAMP] = NONE
        rows[row, HOLD] = (at << HOLD_BITS) | columns[number, 2]
        at += columns[number, 2]
    for number in range(len(held)):
        holds[first_hold + number, LANE], holds[first_hold + number, SPAN] = held[number, 0], held[number, 1]


@kernel
def end_rows(rows: Table, log: Table, first: int, count: int) -> int:
    """Let rows leave the graph; returns the earliest time at which one was ready."""
    earliest = rows[first, READY] if count else np.iinfo(np.int64).max
    for row in range(first, first + count):
        earliest = min(earliest, rows[row, READY])
        put(rows, ROWS, log, row, READY, DEAD)
    return earliest


@kernel
def add_edges(rows: Table, edges: Table, log: Table, first: int, ends: Table) -> None:
    """Add (source, target) edges from place `first` of the table."""
    for number in range(len(ends)):
        edge, source, target = first + number, ends[number, 0], ends[number, 1]
        after_in, after_out = rows[target, IN], rows[source, OUT]
        edges[edge, SOURCE], edges[edge, TARGET] = source, target
        edges[edge, NEXT_IN], edges[edge, PREVIOUS_IN] = after_in, NONE
        edges[edge, NEXT_OUT], edges[edge, PREVIOUS_OUT] = after_out, NONE
        if after_in != NONE:
            put(edges, EDGES, log, after_in, PREVIOUS_IN, edge)
        if after_out != NONE:
            put(edges, EDGES, log, after_out, PREVIOUS_OUT, edge)
        put(rows, ROWS, log, target, IN, edge)
        put(rows, ROWS, log, source, OUT, edge)


@kernel
def remove_edges(rows: Table, edges: Table, log: Table, first: int, count: int) -> None:
    """Take edges out of the lists of their ends."""
    for edge in range(first, first + count):
        source, target = edges[edge, SOURCE], edges[edge, TARGET]
        before, after = edges[edge, PREVIOUS_IN], edges[edge, NEXT_IN]
        if before == NONE:
            put(rows, ROWS, log, target, IN, after)
        else:
            put(edges, EDGES, log, before, NEXT_IN, after)
        if after != NONE:
            put(edges, EDGES, log, after, PREVIOUS_IN, before)
        before, after = edges[edge, PREVIOUS_OUT], edges[edge, NEXT_OUT]
        if before == NONE:
            put(rows, ROWS, log, source, OUT, after)
        else:
            put(edges, EDGES, log, before, NEXT_OUT, after)
        if after != NONE:
            put(edges, EDGES, log, after, PREVIOUS_OUT, before)


@kernel
def edge_ends(edges: Table, tasks: Table, first: Column, moves: int) -> Table:
    """The rows at both ends of a region's edges; a task does not wait for itself."""
    result = np.empty_like(edges)
    count = 0
    for edge in range(len(edges)):
        for end in range(2):
            node = edges[edge, end]
            if node < len(tasks):
                result[count, end] = first[tasks[node, 0]] + tasks[node, 1]
            else:
                result[count, end] = moves + node - len(tasks)
        count += result[count, 0] != result[count, 1]
    return result[:count]
