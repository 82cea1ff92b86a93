"""The semiring of frontiers: tables whose entries are frontiers, with the way back to the choices that a point is.

All points lie in one arena and stay there; a table is an array of cells (first point, how many). A point that is a sum
names the two that it is the sum of, one that was given names what it stands for:

    point   memory   ticks   is
    0       3        9       mark 0: operator a, choice 0
    1       5        2       mark 1: operator a, choice 1
    2       4        4       mark 2: operator b, choice 0
    3       7        13      0 + 2
    4       9        6       1 + 2
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
import numpy.typing as npt

from maniple.strategies.frontier.algebra import UNLIMITED, Column, Columns, thin_out
from maniple.strategies.frontier.cell_kernels import unite_cells, unroll

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maniple.strategies.elimination.variable_elimination import Table

__all__: list[str] = []

Cells = npt.NDArray[np.int64]
"""[choice of the first operator, ..., (first point, how many)]."""
Weights = npt.NDArray[np.float64]
CHUNK = 1 << 19
"""So many products of cells are made at a time, by one thread."""
ALONE = 1 << 12
"""So many are not worth a second thread."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Below:
    """What the points of an elimination may come to.

    Args:
        weights: [bound, (of memory, of ticks)].
        bounds: of each operator the largest weighted sums of a point of the table that is left of it, [choice of the
            first neighbour, ..., bound].
    """

    weights: Weights
    bounds: Mapping[int, npt.NDArray[np.float64]]


@final
class Frontiers:
    """The semiring, and the points that its tables are made of.

    Args:
        limit: the most memory that a point may need.
        epsilon: by what share a point of a sum may need more memory than one that it stands for; with 0 sums are
            exact. Of a point that is the result of n sums, one upon the other, that is (1 + epsilon)^n - 1.
        floor: what the whole needs at least; memory that is less than epsilon times that is left out of account, too.
        cores: how many threads make sums.
        below: what points may come to; None: whatever.
    """

    def __init__(
        self,
        *,
        limit: int = UNLIMITED,
        epsilon: float = 0.0,
        floor: int = 0,
        cores: int = 1,
        below: Below | None = None,
    ) -> None:
        self._limit, self._epsilon, self._floor, self._cores = limit, epsilon, floor, cores
        self._below = below or Below(np.empty((0, 2)), {})
        self._points = np.empty((4, 1024), dtype=np.int64)
        self.size = 0
        nothing = np.zeros((), dtype=np.int64)
        self._one = self.given(nothing, nothing, -1)

    def given(self, memory: Column, ticks: Column, mark: int) -> Cells:
        """Cells of one point each.

        Args:
            memory: an array of any shape, at least 0.
            ticks: of the same shape.
            mark: what the first of them stands for, at least 0; the next ones count up. -1: they stand for nothing.
        """
        count = memory.size
        marks = np.full(count, -1) if mark < 0 else -2 - mark - np.arange(count)
        first = self._add(memory.reshape(-1), ticks.reshape(-1), marks, np.full(count, -1))
        cells = np.stack((first + np.arange(count), np.ones(count, dtype=np.int64)), axis=1)
        found: Cells = cells.reshape(*memory.shape, 2)
        return found

    def choices(self, cells: Cells) -> Cells:
        """The cells of a choice between those on the last axis."""
        rows = cells.reshape(-1, *cells.shape[-2:])
        found: Cells = self._sums(rows, np.broadcast_to(self._one, rows.shape)).reshape(*cells.shape[:-2], 2)
        return found

    def union(self, cells: Sequence[Cells]) -> Cells:
        """The cell of a choice between some cells; with none of them the empty one."""
        if not cells:
            return np.zeros(2, dtype=np.int64)
        row = np.stack(list(cells))[None]
        found: Cells = self._sums(row, np.broadcast_to(self._one, row.shape))[0]
        return found

    def product(self, cells: Sequence[Cells]) -> Cells:
        """The cell of what some cells need together."""
        whole: Cells = self._one
        for cell in cells:
            whole = self._sums(whole[None, None], cell[None, None])[0]
        return whole

    def points(self, cell: Cells) -> Columns:
        """Memory and ticks of the points of a cell, memory ascending."""
        first, count = cell.tolist()
        memory, ticks = self._points[:2, first : first + count]
        return memory.copy(), ticks.copy()

    def thinned(self, cell: Cells, epsilon: float) -> Cells:
        """The points of a cell that stand for all of them, see `algebra.thin_out`."""
        first, count = cell.tolist()
        kept = first + thin_out(self._points[0, first : first + count], epsilon, self._floor)
        memory, ticks, left, right = self._points[:, kept]
        return np.asarray((self._add(memory, ticks, left, right), len(kept)), dtype=np.int64)

    def unrolled(self, cell: Cells, starts: Sequence[int]) -> Cells:
        """What the points of a cell are the sums of, by marks: [point, operator], from the operator's first mark on.

        Args:
            cell: each of its points has one mark of each operator.
            starts: of each operator the first mark, and one past the last.
        """
        first, count = cell.tolist()
        return unroll(self._points[2], self._points[3], first, count, np.asarray(starts, dtype=np.int64))

    def eliminate(
        self, operator: int, neighbours: tuple[int, ...], tables: Sequence[Table[Cells]]
    ) -> tuple[None, Cells]:
        """The product of some tables, summed over the choices of one operator."""
        scope = (*neighbours, operator)
        # The table with most operators last: it is multiplied once, while the choices are summed.
        *others, last = sorted(tables, key=lambda table: len(table.operators))
        whole, known = self._one, tuple[int, ...]()
        for table in others:
            joined = tuple(other for other in scope if other in {*known, *table.operators})
            whole = self._product(joined, (known, whole), (table.operators, table.costs))
            known = joined
        lefts, rights = _spread(scope, known, whole), _spread(scope, last.operators, last.costs)
        shape = np.broadcast_shapes(lefts.shape, rights.shape)
        found = self._sums(
            np.broadcast_to(lefts, shape).reshape(-1, *shape[-2:]),
            np.broadcast_to(rights, shape).reshape(-1, *shape[-2:]),
            self._below.bounds.get(operator),
        )
        return None, found.reshape(*shape[:-2], 2)

    def favourite(self, operator: int, tables: Sequence[Table[Cells]]) -> int:
        """The choice whose least memory times least ticks is smallest if all others choose what suits it best."""
        memory, ticks = np.zeros(()), np.zeros(())
        for table in tables:
            axis = table.operators.index(operator)
            others = tuple(other for other in range(len(table.operators)) if other != axis)
            first, count = table.costs[..., 0], table.costs[..., 1]
            # Memory ascends within a cell, and ticks fall.
            least = np.where(count > 0, self._points[0][first], np.inf)
            fewest = np.where(count > 0, self._points[1][first + np.maximum(count - 1, 0)], np.inf)
            memory, ticks = memory + least.min(axis=others), ticks + fewest.min(axis=others)
        return int(np.argmin(memory * ticks))

    def fix(self, costs: Cells, axis: int, choice: int) -> Cells:
        """A table without one of its axes."""
        fixed: Cells = np.take(costs, choice, axis=axis)
        return fixed

    def _product(
        self, scope: tuple[int, ...], one: tuple[tuple[int, ...], Cells], other: tuple[tuple[int, ...], Cells]
    ) -> Cells:
        """The products of the cells of two tables, over the operators of both."""
        lefts, rights = _spread(scope, *one), _spread(scope, *other)
        if not one[0]:
            return rights
        shape = np.broadcast_shapes(lefts.shape, rights.shape)
        found = self._sums(
            np.broadcast_to(lefts, shape).reshape(-1, 1, 2), np.broadcast_to(rights, shape).reshape(-1, 1, 2)
        )
        return found.reshape(shape)

    def _sums(self, lefts: Cells, rights: Cells, bounds: Weights | None = None) -> Cells:
        """The unions of the products of pairs of cells; see ``unite_cells``."""
        memory, ticks = self._points[0, : self.size], self._points[1, : self.size]
        weights = self._below.weights if bounds is not None else np.empty((0, 2))
        below = np.empty((len(lefts), 0)) if bounds is None else bounds.reshape(len(lefts), -1)
        rows = max(1, CHUNK // max(1, lefts.shape[1]))
        if lefts.shape[0] * lefts.shape[1] > ALONE:
            rows = min(rows, -(-len(lefts) // self._cores))

        def make(begin: int) -> tuple[Column, Column, Column, Column, Column]:
            left, right = (np.ascontiguousarray(side[begin : begin + rows]) for side in (lefts, rights))
            own = np.ascontiguousarray(below[begin : begin + rows])
            return unite_cells(memory, ticks, left, right, self._limit, self._epsilon, self._floor, weights, own)

        begins = range(0, len(lefts), max(1, rows))
        if self._cores == 1 or len(begins) == 1:
            made = [make(begin) for begin in begins]
        else:
            with ThreadPoolExecutor(self._cores) as threads:
                made = list(threads.map(make, begins))
        cells = []
        for *columns, lengths in made:
            first = self._add(*columns)
            cells.append(np.stack((first + np.cumsum(lengths) - lengths, lengths), axis=1))
        return np.concatenate(cells)

    def _add(self, *columns: Column) -> int:
        """Put points into the arena; gives the first."""
        first, count = self.size, len(columns[0])
        if first + count > self._points.shape[1]:
            larger = np.empty((4, 2 * (first + count)), dtype=np.int64)
            larger[:, :first] = self._points[:, :first]
            self._points = larger
        for column, values in zip(self._points, columns, strict=True):
            column[first : first + count] = values
        self.size += count
        return first


def _spread(scope: tuple[int, ...], operators: tuple[int, ...], cells: Cells) -> Cells:
    """Cells with an axis for each of some operators, of one entry where they do not know it."""
    shape = [1] * len(scope)
    places = [scope.index(other) for other in operators]
    for place, extent in zip(places, cells.shape, strict=False):
        shape[place] = extent
    order = (*np.argsort(places).tolist(), len(operators))
    return cells.transpose(order).reshape(*shape, 2)
