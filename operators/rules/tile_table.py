"""Tile tables: all tiles of a split at once, for whoever looks at many splits; and each by itself, for who runs it.

What a tile uses of a tensor follows, dimension by dimension, from the part of one factor. A table has that for every
part, and a tile is a choice of parts:

    b k, n k -> b n   (4, 6), (3, 6)   b=2 n=3      operand 0, dimension 0     b    [0:2]  [2:4]
                                                    operand 0, dimension 1     k    [0:6]
                                                    operand 1, dimension 0     n    [0:1]  [1:2]  [2:3]
    tile b=1 n=2:  operand 0 [2:4, 0:6]    operand 1 [2:3, 0:6]    result 0 [2:4, 2:3]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np

from maniple.operators.rules.bounds import Bounds, Column, Table, row_major
from maniple.operators.rules.tile import TensorRole, Tile
from maniple.operators.rules.window import Range
from maniple.regions.rectangle import Rect
from maniple.runtime.schedule.on_demand import OnDemand

__all__: list[str] = []

Axes = Sequence[tuple["int | None", Sequence[Range]]]
"""For each dimension of a tensor the place of the factor that cuts it (None: none), and what each of its parts uses."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """What parts of factors use of every tensor, of whichever splits they are.

    Args:
        factors: the factors' names, in rule order.
        ranges: by factor, the range of each part.
        axes: by role and place, what the parts use of a tensor; None where it is absent.
        joins: by place of an operand that only the first part of a factor uses, the place of that factor.
        padding: for every halo dimension the place of its factor, and by part the rows (below, above) that are added.
        gathered: the factors along which another operand's values pick.
    """

    factors: tuple[str, ...]
    ranges: tuple[tuple[Range, ...], ...]
    axes: Mapping[TensorRole, Sequence[Axes | None]]
    joins: Mapping[int, int]
    padding: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
    gathered: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True, eq=False)
class TileTable:
    """The tiles of a split, row-major over the factors, the empty ones included.

    Args:
        parts: what the parts of its factors use.
        folds: for every result the operation by which tiles fold into it; None where each writes a part of its own.
    """

    parts: Parts
    folds: tuple[str | None, ...]
    index: Table = field(init=False, repr=False)
    """By tile, the part of every factor."""
    busy: Column = field(init=False, repr=False)
    """The numbers of the tiles that have something to do."""
    # What was found is found again: tables are shared by all nodes of one rule and split.
    _alike: list[tuple[Column, Column]] = field(init=False, repr=False, default_factory=list)
    _made: dict[int, Tile] = field(init=False, repr=False, default_factory=dict)
    _used: dict[tuple[TensorRole, int], tuple[Bounds, Column]] = field(init=False, repr=False, default_factory=dict)
    _whole: dict[tuple[TensorRole, int], Bounds] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Number the tiles."""
        index = row_major([len(parts) for parts in self.parts.ranges])
        there = np.ones(len(index), dtype=bool)
        for place, parts in enumerate(self.parts.ranges):
            there &= np.asarray([low < high for low, high in parts])[index[:, place]]
        object.__setattr__(self, "index", index)
        object.__setattr__(self, "busy", np.flatnonzero(there))

    def tiles(self, numbers: Iterable[int]) -> list[Tile]:
        """Some tiles, by their numbers."""
        made = self._made
        return [made[number] if number in made else made.setdefault(number, self._tile(number)) for number in numbers]

    def used(self, role: TensorRole, place: int) -> tuple[Bounds, Column]:
        """What tiles use of a tensor, and the numbers of those that have something to do and use some of it."""
        if (role, place) not in self._used:
            self._used[role, place] = self._find_used(role, place)
        return self._used[role, place]

    def bounds(self, role: TensorRole, place: int, axes: int) -> Bounds:
        """What every tile uses of a tensor of so many axes, from 0 to 0 on each where it does not use it."""
        if (role, place) not in self._whole:
            found = np.zeros((len(self.index), axes, 2), dtype=np.int64)
            if self.parts.axes[role][place] is not None:
                bounds, numbers = self.used(role, place)
                found[numbers] = bounds
            self._whole[role, place] = found
        return self._whole[role, place]

    def alike(self) -> tuple[Column, Column]:
        """The first tile of each kind, and the kind of each tile: equal extents, and so equal costs."""
        if not self._alike:
            self._alike.append(self._find_alike())
        return self._alike[0]

    def _find_alike(self) -> tuple[Column, Column]:
        label = np.zeros(len(self.index), dtype=np.int64)
        # The first part of these uses other operands, or less of them, than the next.
        special = {*self.parts.joins.values(), *(factor for factor, _ in self.parts.padding)}
        for place, parts in enumerate(self.parts.ranges):
            part = self.index[:, place]
            sizes = [high - low for low, high in parts]
            label = label * 2 + (np.asarray(sizes)[part] != sizes[0])
            label = label * 2 + (part == 0) * (place in special)
        _, first, which = np.unique(label, return_index=True, return_inverse=True)
        return first, which

    def _find_used(self, role: TensorRole, place: int) -> tuple[Bounds, Column]:
        index, axes = self.index[self.busy], self.parts.axes[role][place] or ()
        bounds = np.empty((len(index), len(axes), 2), dtype=np.int64)
        for axis, (factor, parts) in enumerate(axes):
            table = np.asarray(parts, dtype=np.int64)
            bounds[:, axis] = table[0] if factor is None else table[index[:, factor]]
        there = (bounds[:, :, 1] > bounds[:, :, 0]).all(axis=1)
        if role.startswith("operand") and place in self.parts.joins:
            there &= index[:, self.parts.joins[place]] == 0
        return bounds[there], self.busy[there]

    def _tile(self, number: int) -> Tile:
        index = tuple(self.index[number].tolist())
        return tile_of(self.parts, index, index)


@final
class Tiles(OnDemand[Tile]):
    """Some tiles of a table.

    Args:
        table: the table, or what makes it for who asks for a tile.
        numbers: of the tiles.
    """

    def __init__(self, table: TileTable | Callable[[], TileTable], numbers: Column) -> None:
        self._table, self._numbers = table, numbers

    def __len__(self) -> int:
        """Count them."""
        return len(self._numbers)

    def item(self, number: int) -> Tile:
        """Give one of them."""
        return self._there().tiles((int(self._numbers[number]),))[0]

    def select(self, chosen: Column) -> Tiles:
        """Some of them, by their places."""
        return Tiles(self._table, self._numbers[chosen])

    def elsewhere(self, table: Callable[[], TileTable]) -> Tiles:
        """The tiles of the same numbers of another table."""
        return Tiles(table, self._numbers)

    def _there(self) -> TileTable:
        if not isinstance(self._table, TileTable):
            self._table = self._table()
        return self._table


def tile_of(parts: Parts, index: tuple[int, ...], rows: tuple[int, ...]) -> Tile:
    """One tile.

    Args:
        parts: what the parts of factors use of every tensor.
        index: by factor, which part of its split it has.
        rows: by factor, which row of the parts that is.
    """
    return Tile(
        index,
        parts.factors,
        tuple([own[part] for own, part in zip(parts.ranges, rows, strict=True)]),
        _operands(parts, "operand", index, rows),
        _operands(parts, "operand_gradient", index, rows),
        tuple([_rect(axes or (), rows) for axes in parts.axes["result"]]),
        tuple([_rect(axes or (), rows) for axes in parts.axes["saved"]]),
        tuple([added[rows[factor]] for factor, added in parts.padding]),
        parts.gathered,
    )


def _operands(parts: Parts, role: TensorRole, index: tuple[int, ...], rows: tuple[int, ...]) -> tuple[Rect | None, ...]:
    """What a tile uses of each operand; None where it does not use it."""
    later = {place for place, factor in parts.joins.items() if index[factor]}
    return tuple(
        [None if axes is None or place in later else _rect(axes, rows) for place, axes in enumerate(parts.axes[role])]
    )


def _rect(axes: Axes, index: tuple[int, ...]) -> Rect:
    """What the tile of some parts uses of a tensor."""
    ranges = [parts[0 if factor is None else index[factor]] for factor, parts in axes]
    return Rect(tuple([low for low, _ in ranges]), tuple([high for _, high in ranges]))
