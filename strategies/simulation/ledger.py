"""Ledgers: a simulated graph that changes block by block, and can take the last changes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from maniple.strategies.simulation import delta, tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.strategies.simulation.tables import Table

__all__: list[str] = []

_WIDTHS = (9, 6, 5, 4)
_WRITES = 24
"""At most so many writes per entry of a table does one change make: each row leaves and enters once."""


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Rows that come and go together.

    Args:
        columns: (key, duration, number of holds) of each row; durations are at least 1, keys differ over the graph.
        held: (lane, span) of each hold, row by row.
    """

    columns: Table
    held: Table


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a block is: the first entry and the number of entries in `rows`, `holds` or `edges`."""

    first: int
    count: int
    first_hold: int = 0
    holds: int = 0


class Ledger:
    """The tables of a simulated graph, changed by whole blocks of rows and edges.

    A change is `remove` and `add` in any number, then `settle`; after that `keep` makes it lasting or `undo` takes it
    back, all of it. Edges of removed rows must be removed with them.

    Args:
        lanes: how many lanes there are.
    """

    def __init__(self, lanes: int) -> None:
        self._tables = [np.full((64, width), tables.ABSENT, dtype=np.int64) for width in _WIDTHS]
        self._tables[tables.LANES] = np.full((lanes, 4), tables.NONE, dtype=np.int64)
        self._used = [0, 0, 0, lanes]
        self._free: list[dict[int, list[int]]] = [{}, {}, {}, {}]
        self._heap = np.zeros((1024, 2), dtype=np.int64)
        self._log = np.zeros((1, 2), dtype=np.int64)
        self._grow_log()
        self._stamp = 0
        self._added: list[tuple[int, int, int]] = []
        self._removed: list[tuple[int, int, int]] = []
        self._dead: list[Placed] = []
        self._gone: list[Placed] = []
        self._new: list[tuple[Placed, bool]] = []
        self.makespan = 0
        self._before = 0
        self.settled = 0

    @property
    def rows(self) -> Table:
        """The table of rows."""
        return self._tables[tables.ROWS]

    def add_rows(self, block: RowBlock) -> Placed:
        """Add rows; they get times in `settle`."""
        first, first_hold = self._take(tables.ROWS, len(block.columns)), self._take(tables.HOLDS, len(block.held))
        rows, _, holds, _ = self._tables
        tables.add_rows(rows, holds, self._log, first, block.columns, first_hold, block.held)
        placed = Placed(first, len(block.columns), first_hold, len(block.held))
        self._new.append((placed, True))
        return placed

    def add_edges(self, ends: Table) -> Placed:
        """Add (source, target) edges between rows of the table."""
        first = self._take(tables.EDGES, len(ends))
        rows, edges, _, _ = self._tables
        tables.add_edges(rows, edges, self._log, first, ends)
        placed = Placed(first, len(ends))
        self._new.append((placed, False))
        return placed

    def remove(self, row_blocks: Sequence[Placed], edge_blocks: Sequence[Placed]) -> None:
        """Remove blocks: the edges must include all that touch the rows. Before anything is added."""
        rows, edges, holds, lanes = self._tables
        self._stamp += 1
        for block in row_blocks:
            self._heap = delta.remove_rows(
                rows, edges, holds, lanes, self._heap, self._log, block.first, block.count, self._stamp
            )
        for block in edge_blocks:
            tables.remove_edges(rows, edges, self._log, block.first, block.count)
        for block in row_blocks:
            delta.forget_rows(rows, self._log, block.first, block.count)
        self._dead += row_blocks
        self._gone += edge_blocks

    def settle(self) -> int:
        """Give every row its time; returns the makespan."""
        self._grow_log()
        rows, edges, holds, lanes = self._tables
        self._stamp += 1
        for block in self._gone:
            self._heap = delta.seed(rows, edges, self._heap, self._log, block.first, block.count)
        for block, is_rows in self._new:
            if is_rows:
                self._heap = delta.seed_rows(rows, edges, self._heap, self._log, block.first, block.count)
            else:
                self._heap = delta.seed(rows, edges, self._heap, self._log, block.first, block.count)
        self._heap, self.settled = delta.sweep(rows, edges, holds, lanes, self._heap, self._log, self._stamp)
        self._before, self.makespan = self.makespan, int(delta.last_end(rows, self._used[tables.ROWS]))
        return self.makespan

    def keep(self) -> None:
        """Make the last change lasting."""
        self._log[-1, 0] = 0
        for block in self._dead:
            self._give(tables.ROWS, block.first, block.count)
            self._give(tables.HOLDS, block.first_hold, block.holds)
        for block in self._gone:
            self._give(tables.EDGES, block.first, block.count)
        self._forget()

    def undo(self) -> None:
        """Take the last change back."""
        tables.roll_back(*self._tables, self._log)
        for block, is_rows in self._new:
            self._give(tables.ROWS if is_rows else tables.EDGES, block.first, block.count)
            if is_rows:
                self._give(tables.HOLDS, block.first_hold, block.holds)
        self.makespan = self._before
        self._forget()

    def _forget(self) -> None:
        self._dead.clear()
        self._gone.clear()
        self._new.clear()

    def _take(self, which: int, count: int) -> int:
        """Find room for consecutive entries."""
        room = _room(count)
        free = self._free[which].get(room)
        if free:
            return free.pop()
        first = self._used[which]
        self._used[which] = first + room
        table = self._tables[which]
        if first + room > len(table):
            grown = np.full((2 * (first + room), table.shape[1]), tables.ABSENT, dtype=np.int64)
            grown[: len(table)] = table
            self._tables[which] = grown
            self._grow_log()
        return first

    def _give(self, which: int, first: int, count: int) -> None:
        self._free[which].setdefault(_room(count), []).append(first)

    def _grow_log(self) -> None:
        """Have room for all that one change can write; the system gives memory only to what is written."""
        need = _WRITES * sum(len(table) for table in self._tables)
        if len(self._log) < need:
            used = int(self._log[-1, 0])
            grown = np.empty((2 * need, 2), dtype=np.int64)
            grown[:used] = self._log[:used]
            grown[-1, 0] = used
            self._log = grown


def _room(count: int) -> int:
    """The size of the room for that many entries: powers of two, so that rooms are used again."""
    return 1 << max(0, count - 1).bit_length()
