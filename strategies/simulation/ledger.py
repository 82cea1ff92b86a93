"""Ledgers: a simulated graph that changes block by block, and can take the last change back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from maniple.regions.error import RunError
from maniple.runtime.schedule import csr
from maniple.strategies.simulation import delta, tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.runtime.schedule import Column
    from maniple.strategies.simulation.tables import Table

    Columns = tuple[Column, tuple[Column, Column, Column], tuple[Column, Column], int]
    """Durations, holds (starts, lanes, spans), successors (starts, rows), number of lanes."""

__all__: list[str] = []

_WIDTHS = (8, 6, 2)
_ROWS, _EDGES, _HOLDS = range(3)
_WRITES = 6
"""At most so many writes per row or edge does one change make."""


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Rows that come and go together.

    Args:
        columns: (base << NUMBER_BITS) + number, duration, and number of holds of each row; durations are at least 1.
        held: (lane, span) of each hold, row by row; no span is longer than its row.
        bases: what is added to the numbers to give the rows' keys, which differ over the graph.
    """

    columns: Table
    held: Table
    bases: Column


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a block is: the first entry and the number of entries in `rows` (with `holds`) or in `edges`."""

    first: int
    count: int
    first_hold: int = 0
    holds: int = 0


class Ledger:
    """The tables of a simulated graph, changed by whole blocks of rows and edges.

    A change is one `remove`, then `add_rows` and `add_edges` in any number, then `settle`; after that `keep` makes it
    lasting or `undo` takes it back, all of it. All edges of removed rows must be removed with them.

    Args:
        lanes: how many lanes there are.
    """

    def __init__(self, lanes: int) -> None:
        self._tables = [np.full((64, width), tables.DEAD, dtype=np.int64) for width in _WIDTHS]
        self._used = [0, 0, 0]
        self._free: list[dict[int, list[int]]] = [{}, {}, {}]
        self._log = np.zeros((1, 2), dtype=np.int64)
        self._lanes = np.zeros(lanes, dtype=np.int64)
        self._waiting = self._ready = np.zeros(0, dtype=np.int64)
        self._heap = np.zeros((0, 2), dtype=np.int64)
        self._sequence, self._length = np.zeros(0, dtype=np.int64), 0
        self._next, self._next_length = np.zeros(0, dtype=np.int64), 0
        self._stamp = 0
        self._earliest = int(delta.NEVER)
        self._dead: list[Placed] = []
        self._gone: list[Placed] = []
        self._rows_added: list[Placed] = []
        self._edges_added: list[Placed] = []
        self.makespan = self._before = 0
        self.retimed = 0
        self._make_room()

    @property
    def rows(self) -> Table:
        """The table of rows."""
        return self._tables[_ROWS]

    def holds(self, row: int) -> Table:
        """The (lane, span) of each hold of a row."""
        packed = int(self.rows[row, tables.HOLD])
        first, count = packed >> tables.HOLD_BITS, packed & tables.HOLD_MASK
        return self._tables[_HOLDS][first : first + count]

    def predecessors(self, row: int) -> list[int]:
        """The rows that a row waits for."""
        edges, found = self._tables[_EDGES], []
        edge = int(self.rows[row, tables.IN])
        while edge != tables.NONE:
            found.append(int(edges[edge, tables.SOURCE]))
            edge = int(edges[edge, tables.NEXT_IN])
        return found

    @property
    def sequence(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The rows by (ready, key), as of the last `keep` or `undo`."""
        return self._sequence[: self._length]

    def columns(self) -> Columns:
        """The settled graph for a full simulation, its rows numbered by key."""
        rows, edges, holds = self._tables
        order = np.argsort(rows[self.sequence, tables.KEY])
        alive = self.sequence[order]
        number = np.full(len(rows), tables.NONE, dtype=np.int64)
        number[alive] = np.arange(len(alive))
        first, count = rows[alive, tables.HOLD] >> tables.HOLD_BITS, rows[alive, tables.HOLD] & tables.HOLD_MASK
        held = np.concatenate([np.arange(a, a + n) for a, n in zip(first, count, strict=True)] or [first])
        starts = np.concatenate([[0], np.cumsum(count)])
        pairs = []
        for row in alive:
            edge = int(rows[row, tables.OUT])
            while edge != tables.NONE:
                pairs.append((int(number[row]), int(number[edges[edge, tables.TARGET]])))
                edge = int(edges[edge, tables.NEXT_OUT])
        columns = starts, holds[held, tables.LANE].copy(), holds[held, tables.SPAN].copy()
        return rows[alive, tables.DURATION].copy(), columns, csr(len(alive), pairs), len(self._lanes)

    def remove(self, row_blocks: Sequence[Placed], edge_blocks: Sequence[Placed]) -> None:
        """Remove blocks: the edges must include all that touch the rows."""
        rows, edges, _ = self._tables
        for block in edge_blocks:
            tables.remove_edges(rows, edges, self._log, block.first, block.count)
        for block in row_blocks:
            self._earliest = min(self._earliest, tables.end_rows(rows, self._log, block.first, block.count))
        self._dead += row_blocks
        self._gone += edge_blocks

    def add_rows(self, block: RowBlock) -> Placed:
        """Add rows; they get times in `settle`."""
        first, first_hold = self._take(_ROWS, len(block.columns)), self._take(_HOLDS, len(block.held))
        rows, _, holds = self._tables
        tables.add_rows(rows, holds, first, block.columns, first_hold, block.held, block.bases)
        placed = Placed(first, len(block.columns), first_hold, len(block.held))
        self._rows_added.append(placed)
        return placed

    def add_edges(self, ends: Table) -> Placed:
        """Add (source, target) edges between rows of the table."""
        first = self._take(_EDGES, len(ends))
        tables.add_edges(self._tables[_ROWS], self._tables[_EDGES], self._log, first, ends)
        self._edges_added.append(Placed(first, len(ends)))
        return self._edges_added[-1]

    def settle(self) -> int:
        """Give every row its times; returns the makespan.

        Raises:
            RunError: the edges form a circle.
        """
        rows, edges, holds = self._tables
        self._stamp += 1
        since, until, pending = self._earliest, 0, 0
        for block in self._dead:
            until = max(until, int(rows[block.first : block.first + block.count, tables.END].max(initial=0)))
        for block in (*self._gone, *self._edges_added):
            earliest, felt, stamped = delta.felt(rows, edges, block.first, block.count, self._stamp)
            since, until, pending = min(since, earliest), max(until, felt), pending + stamped
        for block in self._rows_added:
            since = min(since, delta.first_new(rows, edges, block.first, block.count))
            pending += block.count
        self._make_room()
        fresh = [np.arange(block.first, block.first + block.count) for block in self._rows_added]
        scratch = (self._waiting, self._ready, self._heap, self._lanes)
        old, new = self._sequence[: self._length], self._next
        state = delta.prepare(rows, edges, holds, scratch, old, new, np.concatenate(fresh) if fresh else old[:0], since)
        place, latest, self.retimed = delta.sweep(
            rows, edges, holds, scratch, self._log, new, state, self._stamp, pending, until
        )
        self._next_length, makespan = delta.finish(rows, scratch, old, new, state[0], place, latest)
        gone, come = (sum(block.count for block in blocks) for blocks in (self._dead, self._rows_added))
        if self._next_length != self._length - gone + come:
            raise RunError("simulation: the dependences form a circle; this is a defect of the lowering: report it")
        self._before, self.makespan = self.makespan, int(makespan)
        return self.makespan

    def keep(self) -> None:
        """Make the last change lasting."""
        self._log[-1, 0] = 0
        self._sequence, self._next = self._next, self._sequence
        self._length = self._next_length
        self._release(self._dead, self._gone)

    def undo(self) -> None:
        """Take the last change back."""
        tables.roll_back(self._tables[_ROWS], self._tables[_EDGES], self._log)
        for block in self._rows_added:
            self._tables[_ROWS][block.first : block.first + block.count, tables.READY] = tables.DEAD
        self.makespan = self._before
        self._release(self._rows_added, self._edges_added)

    def _release(self, rows: Sequence[Placed], edges: Sequence[Placed]) -> None:
        for block in rows:
            self._give(_ROWS, block.first, block.count)
            self._give(_HOLDS, block.first_hold, block.holds)
        for block in edges:
            self._give(_EDGES, block.first, block.count)
        for blocks in (self._dead, self._gone, self._rows_added, self._edges_added):
            blocks.clear()
        self._earliest = int(delta.NEVER)

    def _take(self, which: int, count: int) -> int:
        """Find room for consecutive entries."""
        room = _room(count)
        free = self._free[which].get(room)
        if free:
            return free.pop()
        first = self._used[which]
        self._used[which] = first + room
        if first + room > len(self._tables[which]):
            table = self._tables[which]
            grown = np.full((2 * (first + room), table.shape[1]), tables.DEAD, dtype=np.int64)
            grown[: len(table)] = table
            self._tables[which] = grown
            self._make_room()
        return first

    def _give(self, which: int, first: int, count: int) -> None:
        self._free[which].setdefault(_room(count), []).append(first)

    def _make_room(self) -> None:
        """Let the log and what the sweep works with keep up with the tables."""
        rows = len(self._tables[_ROWS])
        if len(self._waiting) < rows:
            self._waiting, self._ready = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64)
            self._heap, self._next = np.zeros((rows, 2), dtype=np.int64), np.zeros(rows, dtype=np.int64)
            sequence = np.zeros(rows, dtype=np.int64)
            sequence[: self._length] = self._sequence[: self._length]
            self._sequence = sequence
        need = _WRITES * (rows + len(self._tables[_EDGES])) + 1
        if len(self._log) < need:
            used = int(self._log[-1, 0])
            grown = np.empty((2 * need, 2), dtype=np.int64)
            grown[:used] = self._log[:used]
            grown[-1, 0] = used
            self._log = grown


def _room(count: int) -> int:
    """The size of the room for that many entries: powers of two, so that rooms are used again."""
    return 1 << max(0, count - 1).bit_length()
