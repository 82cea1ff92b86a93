"""Builder methods for convolutions, with torch.nn's arguments."""

from __future__ import annotations

from maniple.operators.graph.ranked_method import of_rank
from maniple.operators.graph.writer import GraphWriter
from maniple.operators.library.windows.convolution import (
    Conv1d,
    Conv2d,
    Conv3d,
    Convolution,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    TransposedConvolution,
)
from maniple.operators.operator.builder import Tensor, share
from maniple.operators.operator.window_arguments import Extents, check_rank, extents, padding_of

_CONVOLUTIONS: dict[int, type[Convolution]] = {1: Conv1d, 2: Conv2d, 3: Conv3d}
_TRANSPOSED: dict[int, type[TransposedConvolution]] = {1: ConvTranspose1d, 2: ConvTranspose2d, 3: ConvTranspose3d}


def _convolution(
    count: int,
    self: GraphWriter,
    x: Tensor,
    out_channels: int,
    kernel_size: Extents,
    stride: Extents = 1,
    padding: Extents | str = 0,
    dilation: Extents = 1,
    groups: int = 1,
    bias: Tensor | bool = True,  # as in torch.nn
    name: str | None = None,
    *,
    weight: Tensor | None = None,
) -> Tensor:
    """A convolution, as torch.nn.ConvNd.

    Args:
        count: How many dimensions the windows move along.
        self: The graph.
        x: (N, in_channels, height, width) of an image; a sequence has one dimension less, a volume one more.
        out_channels: The result is (N, out_channels, rows, columns).
        kernel_size: Rows and columns of the window.
        stride: Input rows and columns between neighbouring windows.
        padding: Zero rows and columns at every border, ``"valid"`` for none, or ``"same"``.
        dilation: Input rows and columns between elements of a window.
        groups: The channels' groups, each convolved by itself.
        bias: Whether to add a bias, or an existing parameter to share.
        name: The node's name.
        weight: An existing parameter to share.

    Raises:
        RequestError: The arguments do not fit.
    """
    where = f"conv{count}d"
    check_rank(where, x, count)
    fields = {"kernel_size": kernel_size, "stride": stride, "dilation": dilation}
    kernel, step, gap = (extents(f"{where}.{field}", value, count) for field, value in fields.items())
    around = padding_of(where, padding, kernel, step, gap)
    operator = _CONVOLUTIONS[count](x.shape[1], out_channels, kernel, step, around, gap, bias is not False, groups)
    return self.append(operator, (x,), share(weight, bias=bias), name)


def _transposed(
    count: int,
    self: GraphWriter,
    x: Tensor,
    out_channels: int,
    kernel_size: Extents,
    stride: Extents = 1,
    padding: Extents = 0,
    output_padding: Extents = 0,
    groups: int = 1,
    bias: Tensor | bool = True,  # as in torch.nn
    dilation: Extents = 1,
    name: str | None = None,
    *,
    weight: Tensor | None = None,
) -> Tensor:
    """A transposed convolution, as torch.nn.ConvTransposeNd.

    Args:
        count: How many dimensions the windows move along.
        self: The graph.
        x: (N, in_channels, height, width) of an image; a sequence has one dimension less, a volume one more.
        out_channels: The result is (N, out_channels, rows, columns).
        kernel_size: Rows and columns of the window.
        stride: Output rows and columns between the windows of neighbouring input rows and columns.
        padding: Output rows and columns cut off at every border.
        output_padding: Output rows and columns added at the end.
        groups: The channels' groups, each convolved by itself.
        bias: Whether to add a bias, or an existing parameter to share.
        dilation: Output rows and columns between elements of a window.
        name: The node's name.
        weight: An existing parameter (in_channels, out_channels / groups, ...) to share.

    Raises:
        RequestError: The arguments do not fit.
    """
    where = f"conv_transpose{count}d"
    check_rank(where, x, count)
    fields = {
        "kernel_size": kernel_size,
        "stride": stride,
        "padding": padding,
        "output_padding": output_padding,
        "dilation": dilation,
    }
    kernel, step, around, added, gap = (extents(f"{where}.{field}", value, count) for field, value in fields.items())
    operator = _TRANSPOSED[count](x.shape[1], out_channels, kernel, step, around, added, gap, bias is not False, groups)
    return self.append(operator, (x,), share(weight, bias=bias), name)


class ConvolutionMethods(GraphWriter):
    """The methods that add convolutions; the number in a name counts the dimensions that windows move along."""

    conv1d = of_rank("conv1d", 1, _convolution)
    """A convolution of sequences, as torch.nn.Conv1d."""
    conv2d = of_rank("conv2d", 2, _convolution)
    """A convolution of images, as torch.nn.Conv2d."""
    conv3d = of_rank("conv3d", 3, _convolution)
    """A convolution of volumes, as torch.nn.Conv3d."""

    conv_transpose1d = of_rank("conv_transpose1d", 1, _transposed)
    """A transposed convolution of sequences, as torch.nn.ConvTranspose1d."""
    conv_transpose2d = of_rank("conv_transpose2d", 2, _transposed)
    """A transposed convolution of images, as torch.nn.ConvTranspose2d."""
    conv_transpose3d = of_rank("conv_transpose3d", 3, _transposed)
    """A transposed convolution of volumes, as torch.nn.ConvTranspose3d."""
