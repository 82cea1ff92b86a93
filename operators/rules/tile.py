"""Tiles: what one point task of a split operator reads, writes and pads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from maniple.operators.rules.window import Range
from maniple.regions.rectangle import Rect

TensorRole = Literal["operand", "operand_gradient", "result", "saved"]
"""What a tensor is to an operator; of an operand what tiles read, or what they contribute to its gradient."""


@final
@dataclass(frozen=True, slots=True)
class Tile:
    """One point of a split operator.

    Args:
        index: The point's colour: the part of every factor, in rule order.
        factors: The factors' names, in rule order.
        ranges: The half-open range of every factor, in rule order.
        operand_rects: What the tile reads of every operand; None where it does not use the operand (absent, or a bias
            at a later part of its contraction).
        gradient_rects: What the tile contributes to every operand's gradient. It equals ``operand_rects`` except where
            a stride steps over input rows: the tiles' gradient rects together always cover the operand.
        result_rects: What the tile writes of every result, or folds into it where a factor that it lacks is split.
        saved_rects: What the tile writes of every saved region.
        padding: For every halo dimension, in the rule's order, the rows (below, above) that the tile adds itself (that
            it cuts off, for a transposed halo).
        gathered: The factors along which another operand's values pick; they cost nothing.
    """

    index: tuple[int, ...]
    factors: tuple[str, ...]
    ranges: tuple[Range, ...]
    operand_rects: tuple[Rect | None, ...]
    gradient_rects: tuple[Rect | None, ...]
    result_rects: tuple[Rect, ...]
    saved_rects: tuple[Rect, ...]
    padding: tuple[tuple[int, int], ...]
    gathered: tuple[str, ...] = ()

    def rect(self, role: TensorRole, place: int) -> Rect | None:
        """What the tile uses of a tensor; None where it does not use it."""
        if role == "operand":
            return self.operand_rects[place]
        if role == "operand_gradient":
            return self.gradient_rects[place]
        return (self.result_rects if role == "result" else self.saved_rects)[place]

    @property
    def is_empty(self) -> bool:
        """Whether some factor's range is empty: the task has nothing to do."""
        return any(low >= high for low, high in self.ranges)

    def range(self, factor: str) -> Range:
        """The half-open range of a factor."""
        return self.ranges[self.factors.index(factor)]

    def extent(self, factor: str) -> int:
        """The number of elements of a factor in this tile."""
        low, high = self.ranges[self.factors.index(factor)]
        return high - low

    @property
    def volume(self) -> int:
        """The points of the iteration space in this tile, gathered factors not counted."""
        volume = 1
        for name, (low, high) in zip(self.factors, self.ranges, strict=True):
            if name not in self.gathered:
                volume *= max(0, high - low)
        return volume


def split_range(extent: int, parts: int) -> tuple[Range, ...]:
    """The ranges of ``parts`` parts of ``extent``: the remainder spread over the first parts, empty ones last."""
    size, remainder = divmod(extent, parts)
    ranges = []
    low = 0
    for part in range(parts):
        high = low + size + (part < remainder)
        ranges.append((low, high))
        low = high
    return tuple(ranges)
