"""Tiles: what one point task of a split operator reads, writes and pads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from maniple.regions.rectangle import Rect

Range = tuple[int, int]


@final
@dataclass(frozen=True, slots=True)
class Halo:
    """The window through which an output factor reads an input dimension.

    Output row ``r`` reads input rows ``r*stride - padding + dilation*j`` for ``j`` in ``0..kernel-1``.

    Args:
        kernel: Rows of the window.
        stride: Input rows between the windows of neighbouring output rows.
        padding: Rows added below and above the input.
        dilation: Input rows between neighbouring rows of the window.
    """

    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    @property
    def reach(self) -> int:
        """The rows from the first to the last row of the window, both included."""
        return self.dilation * (self.kernel - 1) + 1

    def output_extent(self, extent: int) -> int:
        """The output rows of ``extent`` input rows (below 1 where the window does not fit)."""
        return (extent + 2 * self.padding - self.reach) // self.stride + 1

    def window(self, rows: Range, extent: int) -> tuple[Range, tuple[int, int]]:
        """The input rows that the output ``rows`` read, and the padding (below, above) that they need.

        Args:
            rows: A non-empty half-open range of output rows.
            extent: The input rows.
        """
        start = rows[0] * self.stride - self.padding
        stop = (rows[1] - 1) * self.stride - self.padding + self.reach
        first, last = min(max(start, 0), extent), min(max(stop, 0), extent)
        below = max(0, min(-start, stop - start))
        return (first, last), (below, stop - start - below - (last - first))

    def gradient_window(self, rows: Range, extent: int, output_extent: int) -> Range:
        """The input rows whose gradient the output ``rows`` contribute to, zeros for rows that no window reads.

        A stride can step over rows, or stop before the last one. Those rows have gradient zero, and somebody must write
        it: they belong to the part of the split that precedes them, so that the parts together cover the input.
        """
        first, last = self.window(rows, extent)[0]
        if rows[1] == output_extent:
            return first, extent
        return first, max(last, min(max(rows[1] * self.stride - self.padding, 0), extent))


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
        result_rect: What the tile writes of the result, or adds to it where a reduction factor is split.
        saved_rects: What the tile writes of every saved region.
        padding: For every halo factor, in the rule's order of halos, the rows (below, above) that the tile adds itself.
    """

    index: tuple[int, ...]
    factors: tuple[str, ...]
    ranges: tuple[Range, ...]
    operand_rects: tuple[Rect | None, ...]
    gradient_rects: tuple[Rect | None, ...]
    result_rect: Rect
    saved_rects: tuple[Rect, ...]
    padding: tuple[tuple[int, int], ...]

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
        """The points of the iteration space in this tile."""
        volume = 1
        for low, high in self.ranges:
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
