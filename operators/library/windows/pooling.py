"""Max and average pooling over two dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from maniple.operators.operator.axes import check_pair
from maniple.operators.operator.operator import AbstractOperator, BackwardReads, Cost, Kernels
from maniple.operators.rules.rule import Halo, Rule, Saved, Shape
from maniple.operators.rules.tile import Tile
from maniple.process.error import RequestError


@dataclass(frozen=True, slots=True)
class Pool2d(AbstractOperator):
    """A pool of images without dilation and ceil_mode: ``"b c y~ x~ -> b c y x"``.

    Args:
        kernel_size: Rows and columns of the window.
        stride: Input rows and columns between neighbouring windows.
        padding: Rows and columns added at every border: of minus infinity for a maximum, of zeros for a mean.
    """

    kernel_size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int] = (0, 0)

    saved: ClassVar[tuple[Saved, ...]] = ()
    differentiable: ClassVar[tuple[int, ...] | None] = (0,)

    def __post_init__(self) -> None:
        check_pair(f"{self.name}.kernel_size", self.kernel_size, 1)
        check_pair(f"{self.name}.stride", self.stride, 1)
        check_pair(f"{self.name}.padding", self.padding, 0)
        if any(2 * pad > kernel for pad, kernel in zip(self.padding, self.kernel_size, strict=True)):
            raise RequestError(
                f"{self.name}.padding: expected at most half of kernel_size {self.kernel_size}, got {self.padding}"
            )

    @final
    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:  # one rank, one rule
        """The rule above; see ``AbstractOperator.rule``."""
        windows = {
            name: Halo(self.kernel_size[axis], self.stride[axis], self.padding[axis]) for axis, name in enumerate("yx")
        }
        return Rule.parse("b c y~ x~ -> b c y x", windows, saved=self.saved)


@final
@dataclass(frozen=True, slots=True)
class MaxPool2d(Pool2d):
    """torch.nn.MaxPool2d without dilation and ceil_mode; saves where in its tile's padded input each maximum was."""

    name: ClassVar[str] = "max_pool2d"
    saved: ClassVar[tuple[Saved, ...]] = (Saved("indices", "b c y x", "int64"),)
    backward_reads: ClassVar[BackwardReads] = BackwardReads(saved=(0,))

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
class AvgPool2d(Pool2d):
    """torch.nn.AvgPool2d without ceil_mode; padded zeros count (count_include_pad=True)."""

    name: ClassVar[str] = "avg_pool2d"
    backward_reads: ClassVar[BackwardReads] = BackwardReads()

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
