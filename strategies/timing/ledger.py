"""Ledgers: a simulated graph that changes block by block, and can take the last change back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from maniple.process.error import RequestError, RunError
from maniple.runtime.schedule.schedule import csr
from maniple.strategies.timing import agenda, delta, tables
from maniple.strategies.timing.block_space import BlockSpace
from maniple.strategies.timing.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.runtime.schedule.schedule import Column
    from maniple.strategies.timing.delta import Blocks
    from maniple.strategies.timing.tables import Spans, Table

    Columns = tuple[Column, tuple[Column, Column, Column], tuple[Column, Column], int]
    """Durations, holds (starts, lanes, spans), successors (starts, rows), number of lanes."""

__all__: list[str] = []

Values = TypeVar("Values", bound=np.ndarray[Any, Any])

_ROWS, _HOLDS, _SPANS, _TARGETS = range(4)
UNLIMITED = int(tables.NEVER)
"""A makespan that none exceeds."""


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
    """Where a block is: the first and the number of its `rows` and their `holds`, or of its `spans` and `targets`."""

    first: int
    count: int
    first_part: int
    parts: int

    def within(self, rows: Column) -> list[int]:
        """The numbers that some rows, in ascending order, have in the block."""
        left, right = np.searchsorted(rows, (self.first, self.first + self.count))
        found: list[int] = (rows[left:right] - self.first).tolist()
        return found


class Ledger:
    """The tables of a simulated graph, changed by whole blocks of rows and edges.

    A change is one `remove`, then `add_rows` and `add_edges` in any number, then `settle`; after that `keep` makes it
    lasting or `undo` takes it back, all of it. All edges of removed rows must be removed with them.

    Args:
        lanes: how many lanes there are.

    Raises:
        RequestError: there are more lanes than the tables can tell apart.
    """

    def __init__(self, lanes: int) -> None:
        if lanes > tables.LANE_MASK:
            raise RequestError(f"simulation: expected at most {tables.LANE_MASK} processors and links, got {lanes}")
        self._rows = tables.empty_rows(64)
        self._holds = np.zeros(64, dtype=np.int64)
        self._spans = np.full((64, 4), tables.NONE, dtype=np.int32)
        self._targets = np.zeros(64, dtype=np.int32)
        self._room = BlockSpace(), BlockSpace(), BlockSpace(), BlockSpace()
        self._lanes = np.zeros(lanes, dtype=np.int64), np.zeros(lanes, dtype=np.int64)
        self._load = np.zeros(lanes, dtype=np.int64)
        # The one before and the one to be: `settle` exchanges them and writes the second, `undo` exchanges them back.
        self._sequences = [np.zeros(0, dtype=np.int32) for _ in range(2)]
        self._lengths = [0, 0]
        self._marks = np.zeros(0, dtype=np.int8)
        self._timed = 0, 0
        self._agenda = agenda.empty(64)
        # What was removed keeps its places until the change is kept, for `undo` may put it back there.
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
        return self._rows

    @property
    def pairs(self) -> Spans:
        """The (source, target) edges of the graph."""
        # A span that nobody uses names no row.
        there = self._spans[:, tables.ROW] >= 0
        for block in self._gone:  # they are kept until the change is
            there[block.first : block.first + block.count] = False
        spans = self._spans[there]
        first, count = spans[:, tables.FIRST], spans[:, tables.COUNT]
        # The ranges first, first + 1, ... of all spans, one after another, without a loop.
        at = np.arange(count.sum()) + np.repeat(first - np.cumsum(count) + count, count)
        return np.stack([np.repeat(spans[:, tables.ROW], count), self._targets[at]], axis=1)

    @property
    def _tables(self) -> Tables:
        return self._rows, self._holds, self._spans, self._targets

    def holds(self, row: int) -> Table:
        """The (lane, span) of each hold of a row."""
        packed = int(self._rows[row, tables.HOLD])
        first, count = packed >> tables.HOLD_BITS, packed & tables.HOLD_MASK
        held = self._holds[first : first + count]
        return np.stack([held & tables.LANE_MASK, held >> tables.LANE_BITS], axis=1)

    @property
    def sequence(self) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """The rows by (ready, key), as of the last `settle`."""
        return self._sequences[1][: self._lengths[1]]

    @property
    def alive(self) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """The rows of the graph by key."""
        return self.sequence[np.argsort(self._rows[self.sequence, tables.KEY])]

    def columns(self) -> Columns:
        """The settled graph for a full simulation, its rows numbered by key."""
        rows, alive = self._rows, self.alive
        number = np.full(len(rows), tables.NONE, dtype=np.int64)
        number[alive] = np.arange(len(alive))
        first, count = rows[alive, tables.HOLD] >> tables.HOLD_BITS, rows[alive, tables.HOLD] & tables.HOLD_MASK
        starts = np.concatenate([[0], np.cumsum(count)])
        held = self._holds[np.arange(starts[-1]) + np.repeat(first - starts[:-1], count)]
        columns = starts, held & tables.LANE_MASK, held >> tables.LANE_BITS
        return rows[alive, tables.DURATION].copy(), columns, csr(len(alive), number[self.pairs]), len(self._load)

    def remove(self, row_blocks: Sequence[Placed], edge_blocks: Sequence[Placed]) -> None:
        """Remove blocks: the edges must include all that touch the rows."""
        self._dead += row_blocks
        self._gone += edge_blocks
        # Edges leave at once, since they count what rows wait for. Of rows the weight is taken from the lanes; `settle`
        # marks them as gone.
        tables.take_out(self._tables, _entries(edge_blocks))
        tables.lighten(self._holds, self._load, _holdings(row_blocks), 1)

    def add_rows(self, block: RowBlock) -> Placed:
        """Add rows; they get times in `settle`.

        Raises:
            RequestError: a row holds a lane for longer than the tables can say.
        """
        longest = int(block.held[:, 1].astype(np.uint64).max(initial=0))  # what exceeds 63 bits came out negative
        if longest > tables.LONGEST:
            raise RequestError(
                f"simulation: expected nothing to hold a processor or link for more than {tables.LONGEST // 10**9} s, "
                f"got {longest // 10**9} s; look at the machine's rates, which are in bytes and operations per second"
            )
        first, first_hold = self._take(_ROWS, len(block.columns)), self._take(_HOLDS, len(block.held))
        tables.add_rows(self._tables, self._load, first, block.columns, first_hold, block.held, block.bases)
        placed = Placed(first, len(block.columns), first_hold, len(block.held))
        self._rows_added.append(placed)
        return placed

    def add_edges(self, ends: Table) -> Placed:
        """Add (source, target) edges between rows of the table."""
        points = np.stack([np.zeros(len(self._rows), dtype=np.int64), np.arange(len(self._rows))], axis=1)
        # As a region whose tasks are the rows themselves: node t is point t of a launch that begins at row 0.
        ends = ends[np.argsort(ends[:, 0], kind="stable")]
        return self.add_region(ends, len(set(ends[:, 0].tolist())), points, np.zeros(1, dtype=np.int64), 0)

    def add_region(self, edges: Table, sources: int, tasks: Table, first: Column, moves: int) -> Placed:
        """Add the edges of a region, in which a task does not wait for itself.

        Args:
            edges: (node, node that waits), by ascending node: node t < tasks is task t, any other is movement
                t - tasks.
            sources: how many nodes others wait for.
            tasks: (use, point) of each task.
            first: by use, the row of its launch's first point.
            moves: the row of the first movement.
        """
        placed = Placed(self._take(_SPANS, sources), sources, self._take(_TARGETS, len(edges)), len(edges))
        tables.add_spans(self._tables, (placed.first, placed.first_part), edges, tasks, first, moves)
        self._edges_added.append(placed)
        return placed

    def settle(self, limit: int = UNLIMITED) -> int:
        """Give every row its times; returns the makespan.

        Args:
            limit: the makespan above which only `undo` will follow: then any number above it that the makespan reaches
                may be returned, and rows have no times.

        Raises:
            RunError: the edges form a circle.
        """
        self._make_room()
        dead, added = (sum(block.count for block in blocks) for blocks in (self._dead, self._rows_added))
        rows, gone, come, cut = map(_entries, (self._rows_added, self._dead, self._edges_added, self._gone))
        blocks: Blocks = (rows, gone, come, cut)
        (buckets, following), line = self._agenda
        # At least two buckets a row, a power of two; `shift` is such that the horizon takes a quarter to a half of
        # them, so that a bucket has a row or so.
        count = 2 << (self._lengths[1] - dead + added).bit_length()
        # Later ends are of no interest; buckets that hold too many rows are slow.
        horizon = min(max(self.makespan, int(self._load.max())), limit)
        shift = max(0, (4 * horizon // count).bit_length() - 1)
        buckets[:count] = tables.NONE
        self._sequences.reverse()
        self._lengths.reverse()
        makespan, self._lengths[1], first, last, self.retimed = delta.settle(
            self._tables,
            self._marks,
            ((buckets[:count], following), line),
            (self._sequences[0], self._sequences[1]),
            self._lanes,
            self._load,
            blocks,
            (self._room[_ROWS].used, self._lengths[0], shift, limit),
        )
        self._timed = first, last
        # Every row gets a place in the sequence, or the limit was passed, or rows wait for each other.
        if self._lengths[1] not in (self._lengths[0] - dead + added, tables.NONE):
            self._lengths[1], self._before = tables.NONE, self.makespan
            raise RunError("simulation: the dependences form a circle; this is a defect of the lowering: report it")
        self._before, self.makespan = self.makespan, int(makespan)
        return self.makespan

    def keep(self) -> None:
        """Make the last change lasting.

        Raises:
            RequestError: it was given up at its limit.
        """
        if self._lengths[1] == tables.NONE:
            raise RequestError("simulation: the change was given up at its limit; take it back")
        self._release(self._dead, self._gone)

    def undo(self) -> None:
        """Take the last change back."""
        tables.lighten(self._holds, self._load, _holdings(self._rows_added), 1)
        tables.lighten(self._holds, self._load, _holdings(self._dead), -1)
        tables.take_out(self._tables, _entries(self._edges_added))
        tables.put_back(self._tables, _entries(self._gone))
        # At the limit, nothing was exchanged.
        if self._lengths[1] != tables.NONE:
            first, last = self._timed
            delta.exchange(self._rows, self._sequences[1][first:last])
        self._sequences.reverse()
        self._lengths.reverse()
        self.makespan = self._before
        self._release(self._rows_added, self._edges_added)

    def _release(self, rows: Sequence[Placed], edges: Sequence[Placed]) -> None:
        tables.clear(self._spans, _entries(edges))
        for block in rows:
            self._room[_ROWS].give(block.first, block.count)
            self._room[_HOLDS].give(block.first_part, block.parts)
        for block in edges:
            self._room[_SPANS].give(block.first, block.count)
            self._room[_TARGETS].give(block.first_part, block.parts)
        for blocks in (self._dead, self._gone, self._rows_added, self._edges_added):
            blocks.clear()

    def _take(self, which: int, count: int) -> int:
        """Find room for consecutive entries."""
        first, room = self._room[which].take(count), self._room[which].used
        if which == _ROWS and room > len(self._rows):
            before, self._rows = self._rows, tables.empty_rows(2 * room)
            self._rows[: len(before)] = before
        elif which == _HOLDS:
            self._holds = _grow(self._holds, room, 0)
        elif which == _SPANS:
            self._spans = _grow(self._spans, room, tables.NONE)
        else:
            self._targets = _grow(self._targets, room, 0)
        return first

    def _make_room(self) -> None:
        """Let what a settlement works with keep up with the tables."""
        rows = len(self._rows)
        self._sequences = [_grow(sequence, rows, 0) for sequence in self._sequences]
        self._marks = _grow(self._marks, rows, 0)
        if len(self._agenda[0][1]) < rows:
            self._agenda = agenda.empty(rows)


def _grow(table: Values, need: int, blank: int) -> Values:
    """The table, or where it has not that many rows one twice as large, filled with blanks."""
    if need <= len(table):
        return table
    larger: Any = np.full((2 * need, *table.shape[1:]), blank, dtype=table.dtype)
    larger[: len(table)] = table
    grown: Values = larger
    return grown


def _entries(blocks: Sequence[Placed]) -> Table:
    return np.asarray([(block.first, block.count) for block in blocks], dtype=np.int64).reshape(-1, 2)


def _holdings(blocks: Sequence[Placed]) -> Table:
    return np.asarray([(block.first_part, block.parts) for block in blocks], dtype=np.int64).reshape(-1, 2)
