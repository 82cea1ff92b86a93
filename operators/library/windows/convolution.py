"""Convolutions over one, two or three dimensions, grouped and transposed."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar, final

from maniple.operators.operator.axes import check_at_least, check_windows, spatial_axes
from maniple.operators.operator.operator import AbstractOperator, BackwardReads, Cost, Initial, Kernels, ParameterSpec
from maniple.operators.operator.torch_operator import TorchOperator
from maniple.operators.rules.rule import Halo, Rule, Shape, TransposedHalo
from maniple.operators.rules.tile import Tile
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from maniple.operators.operator.operator import TileContext
    from maniple.operators.rules.window import Window

_KERNEL = "wvu"  # the window's factors, of the last dimension last


@dataclass(frozen=True, slots=True)
class Convolution(AbstractOperator):
    """torch.nn.Conv1d, Conv2d and Conv3d: ``"b i y~ x~, o i v! u!, [o]@i -> b o y x"`` for two dimensions.

    With groups, input channels are ``(g i!)`` and output channels ``(g o!)``: groups are split and never cut.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the result.
        kernel_size: Rows, columns, ... of the window.
        stride: Input rows, ... between neighbouring windows.
        padding: Zero rows, ... added at every border.
        dilation: Input rows, ... between neighbouring elements of a window.
        bias: Whether there is a bias.
        groups: The channels' groups, each convolved by itself.
    """

    in_channels: int
    out_channels: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    bias: bool = True
    groups: int = 1

    dimensions: ClassVar[int]
    backward_reads: ClassVar[BackwardReads] = BackwardReads(operands=(0, 1))
    differentiable: ClassVar[tuple[int, ...] | None] = (0, 1, 2)

    def __post_init__(self) -> None:
        _check_channels(self.name, self.in_channels, self.out_channels, self.groups)
        windows = {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1}
        check_windows(
            self.name, self.dimensions, {field: (getattr(self, field), low) for field, low in windows.items()}
        )

    @property
    def axes(self) -> str:
        """The factors of the result's spatial dimensions."""
        return spatial_axes(self.dimensions)

    def reach(self, axis: int) -> int:
        """The rows from the first to the last row of the window along a spatial dimension."""
        return self.dilation[axis] * (self.kernel_size[axis] - 1) + 1

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:  # one rank, one rule
        """The rule above; see ``AbstractOperator.rule``."""
        windows = {
            name: Halo(self.kernel_size[axis], self.stride[axis], self.padding[axis], self.dilation[axis])
            for axis, name in enumerate(self.axes)
        }
        return _rule(self, windows, ("o i", "(g o!) i!"))

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See ``AbstractOperator.parameters``."""
        return _own(self, self.out_channels, self.in_channels // self.groups)

    def flops(self, tile: Tile) -> Cost:
        """See ``AbstractOperator.flops``."""
        forward = 2 * tile.volume
        return Cost(forward, 2 * forward)

    def kernels(self) -> Kernels:
        """See ``AbstractOperator.kernels``."""
        from maniple.operators.library.windows.convolution_kernels import KERNELS

        return KERNELS

    def gpu_kernels(self) -> Kernels:
        """See ``AbstractOperator.gpu_kernels``."""
        from maniple.operators.library.windows.convolution_cuda_kernels import KERNELS

        return KERNELS


@final
@dataclass(frozen=True, slots=True)
class Conv1d(Convolution):
    """A convolution along one dimension."""

    name: ClassVar[str] = "conv1d"
    dimensions: ClassVar[int] = 1


@final
@dataclass(frozen=True, slots=True)
class Conv2d(Convolution):
    """A convolution of images."""

    stride: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0)
    dilation: tuple[int, ...] = (1, 1)

    name: ClassVar[str] = "conv2d"
    dimensions: ClassVar[int] = 2


@final
@dataclass(frozen=True, slots=True)
class Conv3d(Convolution):
    """A convolution of volumes."""

    name: ClassVar[str] = "conv3d"
    dimensions: ClassVar[int] = 3


@dataclass(frozen=True, slots=True)
class TransposedConvolution(TorchOperator):
    """torch.nn.ConvTranspose1d, 2d and 3d: ``"b i y~ x~, i o v! u!, [o]@i -> b o y x"`` for two dimensions.

    An input row adds to the output rows of its window, so a tile computes the whole output of the input rows that reach
    it and cuts off what is not its own.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the result.
        kernel_size: Rows, columns, ... of the window.
        stride: Output rows, ... between the windows of neighbouring input rows.
        padding: Output rows, ... cut off at every border.
        output_padding: Output rows, ... added at the end.
        dilation: Output rows, ... between neighbouring elements of a window.
        bias: Whether there is a bias.
        groups: The channels' groups, each convolved by itself.
    """

    in_channels: int
    out_channels: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    output_padding: tuple[int, ...]
    dilation: tuple[int, ...]
    bias: bool = True
    groups: int = 1

    dimensions: ClassVar[int]
    flops_per_point: ClassVar[int] = 2

    def __post_init__(self) -> None:
        _check_channels(self.name, self.in_channels, self.out_channels, self.groups)
        windows = {"kernel_size": 1, "stride": 1, "padding": 0, "output_padding": 0, "dilation": 1}
        check_windows(
            self.name, self.dimensions, {field: (getattr(self, field), low) for field, low in windows.items()}
        )
        for added, stride, dilation in zip(self.output_padding, self.stride, self.dilation, strict=True):
            if added >= max(stride, dilation):
                raise RequestError(
                    f"{self.name}.output_padding: expected less than stride {self.stride} or dilation "
                    f"{self.dilation}, got {self.output_padding}"
                )

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:  # one rank, one rule
        """The rule above; see ``AbstractOperator.rule``."""
        axes = spatial_axes(self.dimensions)
        windows = {
            name: TransposedHalo(
                self.kernel_size[axis],
                self.stride[axis],
                self.padding[axis],
                self.dilation[axis],
                self.output_padding[axis],
            )
            for axis, name in enumerate(axes)
        }
        return _rule(self, windows, ("i o", "(g i!) o!"))

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See ``AbstractOperator.parameters``."""
        return _own(self, self.in_channels, self.out_channels // self.groups)

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> Tensor:
        """See ``TorchOperator.forward``."""
        from torch.nn import functional as F

        x, weight, bias = operands
        rect = context.tile.result_rects[0]
        if weight is None:
            raise TypeError(f"{self.name}: forward needs its weight")
        result = weight.new_zeros(rect.shape)
        if x is not None and x.numel():
            transposed = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[self.dimensions - 1]
            groups = context.tile.extent("g") if self.groups > 1 else 1
            full = transposed(x, weight, None, self.stride, 0, 0, groups, self.dilation)
            cut = [-rows for below, above in reversed(context.tile.padding) for rows in (below, above)]
            result = F.pad(full, cut)
        return result if bias is None else result + bias.view(-1, *[1] * self.dimensions)


@final
@dataclass(frozen=True, slots=True)
class ConvTranspose1d(TransposedConvolution):
    """A transposed convolution along one dimension."""

    name: ClassVar[str] = "conv_transpose1d"
    dimensions: ClassVar[int] = 1


@final
@dataclass(frozen=True, slots=True)
class ConvTranspose2d(TransposedConvolution):
    """A transposed convolution of images."""

    name: ClassVar[str] = "conv_transpose2d"
    dimensions: ClassVar[int] = 2


@final
@dataclass(frozen=True, slots=True)
class ConvTranspose3d(TransposedConvolution):
    """A transposed convolution of volumes."""

    name: ClassVar[str] = "conv_transpose3d"
    dimensions: ClassVar[int] = 3


def _rule(
    operator: Convolution | TransposedConvolution, windows: Mapping[str, Window], weight: tuple[str, str]
) -> Rule:
    """The rule of a convolution.

    Args:
        operator: The convolution.
        windows: By factor.
        weight: The channels of the weight, as a rule writes them: without groups, and with.
    """
    axes = spatial_axes(operator.dimensions)
    read, written = " ".join(f"{name}~" for name in axes), " ".join(axes)
    kernel = " ".join(f"{name}!" for name in _KERNEL[-operator.dimensions :])
    if operator.groups == 1:
        text = f"b i {read}, {weight[0]} {kernel}, [o]@i -> b o {written}"
        return Rule.parse(text, windows, parameters=(1, 2))
    text = f"b (g i!) {read}, {weight[1]} {kernel}, [(g o!)] -> b (g o!) {written}"
    return Rule.parse(text, windows, parameters=(1, 2), sizes={"g": operator.groups})


def _own(operator: Convolution | TransposedConvolution, rows: int, columns: int) -> tuple[ParameterSpec, ...]:
    """The weight of so many rows and columns of channels, and the bias."""
    initial = Initial.fan_in(columns * prod(operator.kernel_size))
    weight = ParameterSpec("weight", (rows, columns, *operator.kernel_size), initial)
    bias = ParameterSpec("bias", (operator.out_channels,), initial)
    return (weight, bias) if operator.bias else (weight,)


def _check_channels(name: str, inputs: int, outputs: int, groups: int) -> None:
    """Refuse channels that are none, or that the groups do not divide."""
    check_at_least(f"{name}.in_channels", inputs, 1)
    check_at_least(f"{name}.out_channels", outputs, 1)
    check_at_least(f"{name}.groups", groups, 1)
    if inputs % groups or outputs % groups:
        raise RequestError(
            f"{name}.groups: expected a divisor of in_channels {inputs} and out_channels {outputs}, got {groups}"
        )
