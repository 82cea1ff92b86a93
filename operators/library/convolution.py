"""The 2-d convolution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from maniple.operators.library.axes import check_at_least, check_pair
from maniple.operators.operator import AbstractOperator, BackwardReads, Cost, Initial, Kernels, ParameterSpec
from maniple.operators.rule import Halo, Rule, Shape
from maniple.operators.tile import Tile


@final
@dataclass(frozen=True, slots=True)
class Conv2d(AbstractOperator):
    """torch.nn.Conv2d without groups: ``"b i y~ x~, o i u! v!, [o]@i -> b o y x"``.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the result.
        kernel_size: Rows and columns of the window.
        stride: Input rows and columns between neighbouring windows.
        padding: Zero rows and columns added at every border.
        dilation: Input rows and columns between neighbouring elements of a window.
        bias: Whether there is a bias.
    """

    in_channels: int
    out_channels: int
    kernel_size: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    bias: bool = True

    name: ClassVar[str] = "conv2d"
    backward_reads: ClassVar[BackwardReads] = BackwardReads(operands=(0, 1))
    differentiable: ClassVar[tuple[int, ...] | None] = (0, 1, 2)

    def __post_init__(self) -> None:
        check_at_least("conv2d.in_channels", self.in_channels, 1)
        check_at_least("conv2d.out_channels", self.out_channels, 1)
        check_pair("conv2d.kernel_size", self.kernel_size, 1)
        check_pair("conv2d.stride", self.stride, 1)
        check_pair("conv2d.padding", self.padding, 0)
        check_pair("conv2d.dilation", self.dilation, 1)

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:  # one rank, one rule
        """The rule above; see ``AbstractOperator.rule``."""
        windows = {
            name: Halo(self.kernel_size[axis], self.stride[axis], self.padding[axis], self.dilation[axis])
            for axis, name in enumerate("yx")
        }
        return Rule.parse("b i y~ x~, o i u! v!, [o]@i -> b o y x", windows, parameters=(1, 2))

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See ``AbstractOperator.parameters``."""
        initial = Initial.fan_in(self.in_channels * self.kernel_size[0] * self.kernel_size[1])
        weight = ParameterSpec("weight", (self.out_channels, self.in_channels, *self.kernel_size), initial)
        bias = ParameterSpec("bias", (self.out_channels,), initial)
        return (weight, bias) if self.bias else (weight,)

    def flops(self, tile: Tile) -> Cost:
        """See ``AbstractOperator.flops``."""
        forward = 2 * tile.volume
        return Cost(forward, 2 * forward)

    def kernels(self) -> Kernels:
        """See ``AbstractOperator.kernels``."""
        from maniple.operators.kernels.convolution import KERNELS

        return KERNELS
