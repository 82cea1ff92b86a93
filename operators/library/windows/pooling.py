"""Max and average pooling over two dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from maniple.operators.operator.axes import check_pair
from maniple.operators.operator.operator import AbstractOperator, BackwardReads, Cost, Kernels
from maniple.operators.rules.rule import Halo, Rule, Saved, Shape
from maniple.operators.rules.tile import Tile
from maniple.regions.error import RequestError

_TEXT = "b c y~ x~ -> b c y x"


def _windows(kernel_size: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]) -> dict[str, Halo]:
    """The windows of a pool, by factor."""
    return {name: Halo(kernel_size[axis], stride[axis], padding[axis]) for axis, name in enumerate("yx")}


def _check(name: str, kernel_size: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]) -> None:
    """Refuse attributes that are no pool's."""
    check_pair(f"{name}.kernel_size", kernel_size, 1)
    check_pair(f"{name}.stride", stride, 1)
    check_pair(f"{name}.padding", padding, 0)
    if any(2 * pad > kernel for pad, kernel in zip(padding, kernel_size, strict=True)):
        raise RequestError(f"{name}.padding: expected at most half of kernel_size {kernel_size}, got {padding}")


@final
@dataclass(frozen=True, slots=True)
class MaxPool2d(AbstractOperator):
    """torch.nn.MaxPool2d without dilation and ceil_mode. Saves the place of every maximum in its tile's padded input.

    Args:
        kernel_size: Rows and columns of the window.
        stride: Input rows and columns between neighbouring windows.
        padding: Rows and columns of minus infinity added at every border.
    """

    kernel_size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int] = (0, 0)

    name: ClassVar[str] = "max_pool2d"
    backward_reads: ClassVar[BackwardReads] = BackwardReads(saved=(0,))
    differentiable: ClassVar[tuple[int, ...] | None] = (0,)

    def __post_init__(self) -> None:
        _check(self.name, self.kernel_size, self.stride, self.padding)

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:  # one rank, one rule
        """The rule above; see ``AbstractOperator.rule``."""
        windows = _windows(self.kernel_size, self.stride, self.padding)
        return Rule.parse(_TEXT, windows, saved=(Saved("indices", "b c y x", "int64"),))

    def flops(self, tile: Tile) -> Cost:
        """See ``AbstractOperator.flops``."""
        return Cost(tile.volume * self.kernel_size[0] * self.kernel_size[1], tile.volume)

    def kernels(self) -> Kernels:
        """See ``AbstractOperator.kernels``."""
        from maniple.operators.library.windows.pooling_kernels import MAX_POOL_KERNELS

        return MAX_POOL_KERNELS

    def gpu_kernels(self) -> Kernels:
        """See ``AbstractOperator.gpu_kernels``."""
        from maniple.operators.library.windows.pooling_cuda_kernels import MAX_POOL_KERNELS

        return MAX_POOL_KERNELS


@final
@dataclass(frozen=True, slots=True)
class AvgPool2d(AbstractOperator):
    """torch.nn.AvgPool2d without ceil_mode; padded zeros count (count_include_pad=True).

    Args:
        kernel_size: Rows and columns of the window.
        stride: Input rows and columns between neighbouring windows.
        padding: Zero rows and columns added at every border.
    """

    kernel_size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int] = (0, 0)

    name: ClassVar[str] = "avg_pool2d"
    backward_reads: ClassVar[BackwardReads] = BackwardReads()
    differentiable: ClassVar[tuple[int, ...] | None] = (0,)

    def __post_init__(self) -> None:
        _check(self.name, self.kernel_size, self.stride, self.padding)

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:  # one rank, one rule
        """The rule above; see ``AbstractOperator.rule``."""
        return Rule.parse(_TEXT, _windows(self.kernel_size, self.stride, self.padding))

    def flops(self, tile: Tile) -> Cost:
        """See ``AbstractOperator.flops``."""
        amount = tile.volume * self.kernel_size[0] * self.kernel_size[1]
        return Cost(amount, amount)

    def kernels(self) -> Kernels:
        """See ``AbstractOperator.kernels``."""
        from maniple.operators.library.windows.pooling_kernels import AVG_POOL_KERNELS

        return AVG_POOL_KERNELS

    def gpu_kernels(self) -> Kernels:
        """See ``AbstractOperator.gpu_kernels``."""
        from maniple.operators.library.windows.pooling_cuda_kernels import AVG_POOL_KERNELS

        return AVG_POOL_KERNELS
