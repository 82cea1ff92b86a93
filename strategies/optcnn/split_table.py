"""Split tables: the tiles of one rule under many splits at once, split by split, as columns.

    b k, n k -> b n   (4, 6), (3, 6)

    split        tile    parts of b, n, k          operand 0        result 0
    0  b=1 n=1   0       [0:4] [0:3] [0:6]         [0:4, 0:6]       [0:4, 0:3]
    1  b=2 n=1   0       [0:2] [0:3] [0:6]         [0:2, 0:6]       [0:2, 0:3]
                 1       [2:4] [0:3] [0:6]         [2:4, 0:6]       [2:4, 0:3]

A tile without elements has no row. Row by row it is what `TileTable` has of each split by itself.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.operators.rules.bound_rule import parts_of
from maniple.operators.rules.tile import split_range
from maniple.operators.rules.tile_table import tile_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from maniple.operators.operator.operator import AbstractOperator
    from maniple.operators.rules.bound_rule import BoundRule
    from maniple.operators.rules.bounds import Bounds, Column, Table
    from maniple.operators.rules.tile import TensorRole

    Mask = npt.NDArray[np.bool_]

__all__: list[str] = []


@final
class SplitTable:
    """The tiles of some splits.

    Args:
        bound: the rule.
        degrees: by split the parts of every factor, in rule order; legal ones.
    """

    def __init__(self, bound: BoundRule, degrees: Table) -> None:
        counts = degrees.prod(axis=1, dtype=np.int64)
        split = np.repeat(np.arange(len(degrees)), counts)
        number = np.arange(len(split)) - np.repeat(np.cumsum(counts) - counts, counts)
        index, left = np.empty((len(split), degrees.shape[1]), dtype=np.int64), number.copy()
        for factor in reversed(range(degrees.shape[1])):
            degree = degrees[split, factor]
            index[:, factor] = left % degree
            left //= degree
        there, parts, ranges = np.ones(len(split), dtype=bool), index.copy(), []
        for factor, own in enumerate(bound.factors):
            # The parts of all degrees, one degree after the other.
            found = np.unique(degrees[:, factor])
            firsts = np.cumsum(found) - found
            parts[:, factor] += firsts[np.searchsorted(found, degrees[split, factor])]
            every = tuple(chain(*(split_range(own.extent, degree) for degree in found.tolist())))
            there &= np.asarray([low < high for low, high in every])[parts[:, factor]]
            ranges.append(every)
        busy = np.flatnonzero(there)
        self._parts_of = parts_of(bound, tuple(ranges))
        self._parts: Table = parts[busy]
        self.index: Table = index[busy]
        """By tile, the part of every factor."""
        self.split: Column = split[busy]
        """By tile, its split."""
        self.number: Column = number[busy]
        """By tile, its number among those of its split, row-major over the factors, empty ones counted."""
        self.folds = self._find_folds(bound, degrees)
        """By result and split, whether its tiles fold into it."""

    def used(self, role: TensorRole, place: int) -> tuple[Bounds, Column]:
        """What tiles use of a tensor, and the rows of those that use some of it."""
        axes = self._parts_of.axes[role][place] or ()
        bounds = np.empty((len(self.split), len(axes), 2), dtype=np.int64)
        for axis, (factor, parts) in enumerate(axes):
            table = np.asarray(parts, dtype=np.int64)
            bounds[:, axis] = table[0] if factor is None else table[self._parts[:, factor]]
        there = (bounds[:, :, 1] > bounds[:, :, 0]).all(axis=1)
        if role.startswith("operand") and place in self._parts_of.joins:
            there &= self.index[:, self._parts_of.joins[place]] == 0
        return bounds[there], np.flatnonzero(there)

    def flops(self, operator: AbstractOperator) -> tuple[Column, Column]:
        """The operations of forward and of backward of each tile; see `tile_flops`."""
        label = self.split.copy()
        special = {*self._parts_of.joins.values(), *(factor for factor, _ in self._parts_of.padding)}
        for factor, ranges in enumerate(self._parts_of.ranges):
            sizes, code = np.unique([high - low for low, high in ranges], return_inverse=True)
            label = label * len(sizes) + code[self._parts[:, factor]]
            if factor in special:
                label = label * 2 + (self.index[:, factor] == 0)
        _, first, which = np.unique(label, return_index=True, return_inverse=True)
        rows = zip(self.index[first].tolist(), self._parts[first].tolist(), strict=True)
        costs = [operator.flops(tile_of(self._parts_of, tuple(index), tuple(parts))) for index, parts in rows]
        forward = np.asarray([cost.forward for cost in costs])[which]
        return forward, np.asarray([cost.backward for cost in costs])[which]

    def points_within(self, degrees: Mapping[str, Column]) -> Column:
        """For each tile of a primitive the point of the composite with which it runs; see `composite.points_within`.

        Args:
            degrees: of the composite's factors, in its rule's order, by split.
        """
        points: Column = np.zeros(len(self.split), dtype=np.int64)
        for factor, degree in degrees.items():
            points *= degree[self.split]
            if factor in self._parts_of.factors:
                points += self.index[:, self._parts_of.factors.index(factor)]
        return points

    @staticmethod
    def _find_folds(bound: BoundRule, degrees: Table) -> Mask:
        found = np.zeros((len(bound.rule.results), len(degrees)), dtype=bool)
        for result, pattern in enumerate(bound.rule.results):
            for place, factor in enumerate(bound.factors):
                if factor.name not in pattern.factors:
                    found[result] |= np.minimum(degrees[:, place], factor.extent) > 1
        return found
