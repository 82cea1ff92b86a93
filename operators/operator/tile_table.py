"""Tile tables: all tiles of a split as arrays, for whoever looks at many splits and at no single tile.

The same numbers as `BoundRule.tiles`, whose docstrings say what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.operators.rules.tile import split_range

if TYPE_CHECKING:
    from maniple.operators.operator.operator import AbstractOperator
    from maniple.operators.rules.bound_rule import BoundRule, Shape
    from maniple.operators.rules.pattern import Pattern
    from maniple.operators.rules.window import Range

__all__: list[str] = []

Column = np.ndarray[tuple[int], np.dtype[np.int64]]
Bounds = np.ndarray[tuple[int, int, int], np.dtype[np.int64]]
"""By tile, axis and end (low, high)."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class TileTable:
    """The tiles of a split, row-major over the factors, the empty ones included.

    Args:
        bound: the rule.
        degrees: the parts of every factor, in rule order.
        index: by tile, the part of every factor.
        ranges: by factor, the range of each part.
    """

    bound: BoundRule
    degrees: tuple[int, ...]
    index: np.ndarray[tuple[int, int], np.dtype[np.int64]]
    ranges: tuple[tuple[Range, ...], ...]

    @classmethod
    def of(cls, bound: BoundRule, degrees: tuple[int, ...]) -> TileTable:
        """The tiles of a split by degrees that fit the rule."""
        axes = np.indices(degrees, dtype=np.int64)
        index = axes.reshape(len(degrees), axes[0].size).T if degrees else np.zeros((1, 0), dtype=np.int64)
        pairs = zip(bound.factors, degrees, strict=True)
        return cls(bound, degrees, index, tuple(split_range(factor.extent, degree) for factor, degree in pairs))

    @property
    def busy(self) -> Column:
        """The tiles that have something to do."""
        found = np.ones(len(self.index), dtype=bool)
        for place, parts in enumerate(self.ranges):
            found &= np.asarray([low < high for low, high in parts])[self.index[:, place]]
        return np.flatnonzero(found)

    def operand(self, place: int, *, gradient: bool = False) -> tuple[Bounds, Column]:
        """What the tiles use of an operand, or contribute to its gradient; and the tiles that do.

        Args:
            place: the operand's; it is not absent.
            gradient: whether the gradient is asked for.
        """
        pattern, shape = self.bound.rule.operands[place], self.bound.operand_shapes[place]
        bounds = self._bounds(pattern, shape or (), place, gradient=gradient)
        if pattern.joins is None:
            return bounds, np.arange(len(self.index))
        names = [factor.name for factor in self.bound.factors]
        return bounds, np.flatnonzero(self.index[:, names.index(pattern.joins)] == 0)

    def result(self, place: int) -> tuple[Bounds, Column]:
        """What the tiles write of a result."""
        shape = self.bound.result_shapes[place]
        return self._bounds(self.bound.rule.results[place], shape), np.arange(len(self.index))

    def saved_bounds(self, place: int) -> tuple[Bounds, Column]:
        """What the tiles write of a saved region."""
        shape = self.bound.saved_shapes[place]
        return self._bounds(self.bound.rule.saved[place][1], shape), np.arange(len(self.index))

    def flops(self, operator: AbstractOperator) -> tuple[Column, Column]:
        """The operations of forward and of backward of each tile; tiles of equal extents have equally many."""
        label = np.zeros(len(self.index), dtype=np.int64)
        rule = self.bound.rule
        # The first part of these uses other operands, or less of them, than the next.
        special = {pattern.joins for pattern in rule.operands} | {factor for _, _, factor, _ in rule.windows}
        for place, (factor, parts) in enumerate(zip(self.bound.factors, self.ranges, strict=True)):
            part = self.index[:, place]
            sizes = [high - low for low, high in parts]
            label = label * 2 + (np.asarray(sizes)[part] != sizes[0])
            label = label * 2 + (part == 0) * (factor.name in special)
        _, first, which = np.unique(label, return_index=True, return_inverse=True)
        tiles = self.bound.tiles_at(self.degrees, [tuple(self.index[tile].tolist()) for tile in first])
        costs = [operator.flops(tile) for tile in tiles]
        forward = np.asarray([cost.forward for cost in costs])[which]
        return forward, np.asarray([cost.backward for cost in costs])[which]

    def _bounds(self, pattern: Pattern, shape: Shape, place: int = -1, *, gradient: bool = False) -> Bounds:
        result = np.empty((len(self.index), len(shape), 2), dtype=np.int64)
        for axis in range(len(shape)):
            factor, parts = self.bound.axis_parts(pattern, shape, axis, self.ranges, place, gradient=gradient)
            table = np.asarray(parts, dtype=np.int64)
            result[:, axis] = table[0] if factor is None else table[self.index[:, factor]]
        np.maximum(result[:, :, 1], result[:, :, 0], out=result[:, :, 1])
        return result
