"""Pools over one to three dimensions with every option of torch, and pools that give a wanted size.

Max and average pooling of images without options have compiled kernels of their own (``pooling``).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod
from typing import TYPE_CHECKING, ClassVar, final

from maniple.operators.operator.axes import check_windows, present_shape, spatial_axes
from maniple.operators.operator.operator import BackwardReads
from maniple.operators.operator.torch_operator import TorchOperator
from maniple.operators.rules.rule import Halo, Rule, Saved, Shape
from maniple.process.error import RequestError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from maniple.operators.operator.operator import TileContext

KINDS = ("max", "avg")


@final
@dataclass(frozen=True, slots=True)
class WindowPool(TorchOperator):
    """torch.nn.MaxPool and AvgPool of 1, 2 or 3 dimensions: ``"b c y~ x~ -> b c y x"``.

    A tile pads what it reads to its full windows, with minus infinity or zero. The average then divides by the number
    of elements of each window that count, which is a product over the dimensions.

    Args:
        kind: ``"max"`` or ``"avg"``.
        kernel_size: Rows, columns, ... of the window.
        stride: Input rows, ... between neighbouring windows.
        padding: Rows, ... added at every border.
        dilation: Input rows, ... between elements of a window; 1 for averages.
        ceil_mode: Whether a last window may begin in the input and end beyond its padding.
        count_include_pad: Whether padded zeros count in an average.
        divisor_override: What an average divides by instead, or None.
    """

    kind: str
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil_mode: bool = False
    count_include_pad: bool = True
    divisor_override: int | None = None

    name: ClassVar[str] = "window_pool"
    backward_reads: ClassVar[BackwardReads] = BackwardReads(operands=None, saved=(0,))

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise RequestError(f"window_pool.kind: {self.kind!r}{nearest(self.kind, KINDS)}")
        windows = {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1}
        fields = {field: (getattr(self, field), low) for field, low in windows.items()}
        check_windows(self.name, len(self.kernel_size), fields)
        if any(2 * pad > kernel for pad, kernel in zip(self.padding, self.kernel_size, strict=True)):
            raise RequestError(
                f"{self.kind}_pool.padding: expected at most half of kernel_size {self.kernel_size}, got {self.padding}"
            )

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule above; see ``AbstractOperator.rule``."""
        count = len(self.kernel_size)
        shape = present_shape(shapes[0], self.name)
        if len(shape) != 2 + count:
            raise RequestError(f"{self.kind}_pool: expected {2 + count} dimensions (batch, channels, ...), got {shape}")
        axes = spatial_axes(count)
        windows = {name: self._window(axis, shape[2 + axis]) for axis, name in enumerate(axes)}
        read = " ".join(f"{name}~" for name in axes)
        made = " ".join(axes)
        places = Saved("places", f"b c 1 {made}" if count == 1 else f"b c {made}", "int64")
        saved = (places,) if self.kind == "max" else ()
        return Rule.parse(f"b c {read} -> b c {made}", windows, saved=saved)

    @property
    def saves(self) -> tuple[tuple[str, int], ...]:
        """See ``TorchOperator.saves``: where in the tile's padded input the maxima are."""
        rank = max(2, len(self.kernel_size))  # torch takes one dimension for two
        return ((f"max_pool{rank}d_with_indices", 1),) if self.kind == "max" else ()

    def _window(self, axis: int, extent: int) -> Halo:
        """The window along a dimension, with as much padding above as the last one needs."""
        kernel, stride, pad = self.kernel_size[axis], self.stride[axis], self.padding[axis]
        plain = Halo(kernel, stride, pad, self.dilation[axis])
        if not self.ceil_mode:
            return plain
        rows = -(-(extent - plain.least_extent) // stride) + 1
        if (rows - 1) * stride >= extent + pad:  # it would begin in the padding above
            rows -= 1
        return Halo(kernel, stride, pad, self.dilation[axis], (rows - 1) * stride + plain.reach - extent - pad)

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> Tensor:
        """See ``TorchOperator.forward``."""
        from torch.nn import functional as F

        (x,) = operands
        if x is None:
            raise TypeError(f"{self.kind}_pool: a window lies in the padding alone")
        count = len(self.kernel_size)
        around = [rows for pair in reversed(context.tile.padding) for rows in pair]
        if self.kind == "max":
            largest: tuple[Callable[..., Tensor], ...] = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
            padded = F.pad(x, around, value=-inf) if any(around) else x
            return largest[count - 1](padded, self.kernel_size, self.stride, 0, self.dilation)
        average: tuple[Callable[..., Tensor], ...] = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
        padded = F.pad(x, around) if any(around) else x
        total = average[count - 1](padded, self.kernel_size, self.stride) * prod(self.kernel_size)
        return total / self._divisors(context, total)

    def _divisors(self, context: TileContext, total: Tensor) -> Tensor | float:
        """How many elements of each window count."""
        import torch

        if self.divisor_override is not None:
            return self.divisor_override
        divisors = torch.ones((), dtype=total.dtype)
        for axis, name in enumerate(spatial_axes(len(self.kernel_size))):
            pad = self.padding[axis]
            rect = context.tile.operand_rects[0]
            extent = 0 if rect is None else rect.hi[2 + axis]  # where the input ends, or beyond all windows
            first = torch.arange(*context.tile.range(name)) * self.stride[axis] - pad
            last = first + self.kernel_size[axis]
            low, high = (-pad, extent + pad) if self.count_include_pad else (0, extent)
            counts = last.clamp(max=high) - first.clamp(min=low)
            divisors = divisors.unsqueeze(-1) * counts.to(total.dtype)
        return divisors


@final
@dataclass(frozen=True, slots=True)
class AdaptivePool(TorchOperator):
    """torch.nn.AdaptiveMaxPool and AdaptiveAvgPool: ``"b c 7 5 -> b c y x"``; a tile reads whole planes.

    Output row ``i`` of ``m`` pools the input rows from ``floor(i n / m)`` to ``ceil((i+1) n / m)``: windows of
    different sizes, which no halo describes.

    Args:
        kind: ``"max"`` or ``"avg"``.
        output_size: Rows, columns, ... of the result.
    """

    kind: str
    output_size: tuple[int, ...]

    name: ClassVar[str] = "adaptive_pool"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise RequestError(f"adaptive_pool.kind: {self.kind!r}{nearest(self.kind, KINDS)}")
        check_windows(self.name, len(self.output_size), {"output_size": (self.output_size, 1)})

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule above; see ``AbstractOperator.rule``."""
        count = len(self.output_size)
        shape = present_shape(shapes[0], self.name)
        if len(shape) != 2 + count:
            raise RequestError(f"adaptive_pool: expected {2 + count} dimensions (batch, channels, ...), got {shape}")
        axes = spatial_axes(count)
        read = " ".join(map(str, shape[2:]))
        sizes = dict(zip(axes, self.output_size, strict=True))
        return Rule.parse(f"b c {read} -> b c {' '.join(axes)}", sizes=sizes)

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> Tensor:
        """See ``TorchOperator.forward``."""
        from torch.nn import functional as F

        (x,) = operands
        if x is None:
            raise TypeError("adaptive_pool: forward needs its operand")
        count = len(self.output_size)
        largest: tuple[Callable[..., Tensor], ...] = (
            F.adaptive_max_pool1d,
            F.adaptive_max_pool2d,
            F.adaptive_max_pool3d,
        )
        average: tuple[Callable[..., Tensor], ...] = (
            F.adaptive_avg_pool1d,
            F.adaptive_avg_pool2d,
            F.adaptive_avg_pool3d,
        )
        pool: Callable[..., Tensor] = (largest if self.kind == "max" else average)[count - 1]
        whole = pool(x, self.output_size)
        places = (slice(*context.tile.range(name)) for name in spatial_axes(count))
        return whole[(slice(None), slice(None), *places)]
