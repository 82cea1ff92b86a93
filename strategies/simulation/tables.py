"""The tables of a simulated step: rows, edges, holds and lanes as integers, with a log that takes changes back.

A row is a task, a fold or a movement. It *holds* lanes (processors, links) from its start, each for a span of its own:
a task its processor until it ends, a transfer each link of its route for as long as that link needs for the bytes. A
lane takes rows first come, first served: by ready time, then by key. Times are integer nanoseconds.
"""

from __future__ import annotations

import numba
import numpy as np

Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Log = np.ndarray[tuple[int, int], np.dtype[np.int64]]

# Columns of `rows`. READY is UNPLACED while a row has no time, ABSENT where there is no row. WAIT counts predecessors
# without a time, TOP is the one that ends last. IN and OUT are the first edge of each list, HOLD is
# (first hold << HOLD_BITS) + number of holds.
KEY, DURATION, READY, END, IN, OUT, WAIT, HOLD, TOP = range(9)
UNPLACED, ABSENT = -1, -2
HOLD_BITS = 24
HOLD_MASK = (1 << HOLD_BITS) - 1

# Columns of `edges`; each edge is in the list of its target's predecessors and of its source's successors.
SOURCE, TARGET, NEXT_IN, PREVIOUS_IN, NEXT_OUT, PREVIOUS_OUT = range(6)

# Columns of `holds`; the holds of a lane are a list in the order in which it takes them.
ROW, LANE, SPAN, PREVIOUS, NEXT = range(5)

# Columns of `lanes`. In the sweep with number STAMP, CURSOR is a hold that is not later than what is swept.
FIRST, LAST, CURSOR, STAMP = range(4)

ROWS, EDGES, HOLDS, LANES = range(4)
NONE = -1


@numba.njit(cache=True, inline="always")
def put(table: Table, which: int, log: Log, place: int, column: int, value: int) -> None:
    """Write one number; the log (its length in the last entry) remembers the old one."""
    length = log[-1, 0]
    log[length, 0] = (which << 56) | (place << 8) | column
    log[length, 1] = table[place, column]
    log[-1, 0] = length + 1
    table[place, column] = value


@numba.njit(cache=True)
def roll_back(rows: Table, edges: Table, holds: Table, lanes: Table, log: Log) -> None:
    """Undo every write in the log, latest first."""
    for entry in range(log[-1, 0] - 1, -1, -1):
        where, old = log[entry, 0], log[entry, 1]
        which, place, column = where >> 56, (where >> 8) & ((1 << 48) - 1), where & 255
        if which == ROWS:
            rows[place, column] = old
        elif which == EDGES:
            edges[place, column] = old
        elif which == HOLDS:
            holds[place, column] = old
        else:
            lanes[place, column] = old
    log[-1, 0] = 0


@numba.njit(cache=True)
def add_rows(
    rows: Table, holds: Table, log: Log, first: int, columns: Table, first_hold: int, held: Table
) -> None:
    """Add rows without a time.

    Args:
        rows: the table.
        holds: the table.
        log: the log.
        first: where in `rows` the new ones go.
        columns: (key, duration, number of holds) of each.
        first_hold: where in `holds` theirs go.
        held: (lane, span) of each hold, row by row.
    """
    at = first_hold
    for number in range(len(columns)):
        row, count = first + number, columns[number, 2]
        values = (columns[number, 0], columns[number, 1], UNPLACED, NONE, NONE, NONE, 0, (at << HOLD_BITS) | count, NONE)
        for column, value in enumerate(values):
            put(rows, ROWS, log, row, column, value)
        for hold in range(at, at + count):
            source = hold - first_hold
            for column, value in enumerate((row, held[source, 0], held[source, 1], NONE, NONE)):
                put(holds, HOLDS, log, hold, column, value)
        at += count


@numba.njit(cache=True)
def add_edges(rows: Table, edges: Table, log: Log, first: int, ends: Table) -> None:
    """Add (source, target) edges from place `first` of the table."""
    for number in range(len(ends)):
        edge, source, target = first + number, ends[number, 0], ends[number, 1]
        after_in, after_out = rows[target, IN], rows[source, OUT]
        for column, value in enumerate((source, target, after_in, NONE, after_out, NONE)):
            put(edges, EDGES, log, edge, column, value)
        if after_in != NONE:
            put(edges, EDGES, log, after_in, PREVIOUS_IN, edge)
        if after_out != NONE:
            put(edges, EDGES, log, after_out, PREVIOUS_OUT, edge)
        put(rows, ROWS, log, target, IN, edge)
        put(rows, ROWS, log, source, OUT, edge)
        if rows[source, READY] == UNPLACED:
            put(rows, ROWS, log, target, WAIT, rows[target, WAIT] + 1)


@numba.njit(cache=True)
def remove_edges(rows: Table, edges: Table, log: Log, first: int, count: int) -> None:
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
        if rows[source, READY] == UNPLACED:
            put(rows, ROWS, log, target, WAIT, rows[target, WAIT] - 1)
