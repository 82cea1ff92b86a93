"""Windows: the input rows that a range of output rows reads, when the two are not the same rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

Range = tuple[int, int]


@final
@dataclass(frozen=True, slots=True)
class Halo:
    """The window through which an output factor reads an input dimension: of a convolution, a pool, a slice, a pad.

    Output row ``r`` reads input rows ``r*stride - padding + dilation*j`` for ``j`` in ``0..kernel-1``. A slice is a
    window of one row with negative padding, a pad one with positive.

    Args:
        kernel: Rows of the window.
        stride: Input rows between the windows of neighbouring output rows.
        padding: Rows added below the input.
        dilation: Input rows between neighbouring rows of the window.
        after: Rows added above the input; None: as many as below.
    """

    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    after: int | None = None

    @property
    def reach(self) -> int:
        """The rows from the first to the last row of the window, both included."""
        return self.dilation * (self.kernel - 1) + 1

    @property
    def least_extent(self) -> int:
        """The fewest input rows that one window fits."""
        return self.reach - self.padding - self._after

    @property
    def _after(self) -> int:
        return self.padding if self.after is None else self.after

    def output_extent(self, extent: int) -> int:
        """The output rows of ``extent`` input rows (below 1 where the window does not fit)."""
        return (extent - self.least_extent) // self.stride + 1

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

        A stride can step over rows, a slice leaves rows out at both ends. Those rows have gradient zero, and somebody
        must write it: they belong to the part of the split that precedes them (at the start, to the first), so that
        the parts together cover the input.
        """
        first, last = self.window(rows, extent)[0]
        if rows[1] == output_extent:
            last = extent
        else:
            last = max(last, min(max(rows[1] * self.stride - self.padding, 0), extent))
        return (0 if rows[0] == 0 else first), last


@final
@dataclass(frozen=True, slots=True)
class TransposedHalo:
    """The window of a transposed convolution: input row ``r`` adds to output rows ``r*stride - padding + dilation*j``.

    Args:
        kernel: Rows of the window.
        stride: Output rows between the windows of neighbouring input rows.
        padding: Output rows cut off at both ends.
        dilation: Output rows between neighbouring rows of the window.
        output_padding: Output rows added at the end.
    """

    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    output_padding: int = 0

    @property
    def reach(self) -> int:
        """The rows from the first to the last row of the window, both included."""
        return self.dilation * (self.kernel - 1) + 1

    @property
    def least_extent(self) -> int:
        """The fewest input rows that give an output row."""
        return max(1, -((self.reach + self.output_padding - 2 * self.padding - 1) // self.stride) + 1)

    def output_extent(self, extent: int) -> int:
        """The output rows of ``extent`` input rows."""
        return (extent - 1) * self.stride - 2 * self.padding + self.reach + self.output_padding

    def window(self, rows: Range, extent: int) -> tuple[Range, tuple[int, int]]:
        """The input rows that the output ``rows`` read, and what to cut off (below, above) of their whole output.

        The whole output of input rows ``a:b`` begins at ``a*stride - padding`` and has ``(b-1-a)*stride + reach`` rows.
        A negative number says how many zero rows to add.

        Args:
            rows: A non-empty half-open range of output rows.
            extent: The input rows.
        """
        first = max(-((self.reach - 1 - rows[0] - self.padding) // self.stride), 0)
        last = min((rows[1] - 1 + self.padding) // self.stride + 1, extent)
        if first >= last:
            return (0, 0), (0, 0)
        below = rows[0] - (first * self.stride - self.padding)
        above = (last - 1 - first) * self.stride + self.reach - below - (rows[1] - rows[0])
        return (first, last), (below, above)

    def gradient_window(self, rows: Range, extent: int, output_extent: int) -> Range:
        """The input rows whose gradient the output ``rows`` contribute to; rows cut off join the part next to them."""
        first, last = self.window(rows, extent)[0]
        return (0 if rows[0] == 0 else first), (extent if rows[1] == output_extent else last)


Window = Halo | TransposedHalo
