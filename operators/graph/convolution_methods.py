"""Builder methods for convolutions, with torch.nn's arguments."""

from __future__ import annotations

from typing import final

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
from maniple.operators.operator.builder import AbstractBuilder, Tensor, shared
from maniple.operators.operator.window_arguments import Extents, check_rank, extents, padding_of

_CONVOLUTIONS: dict[int, type[Convolution]] = {1: Conv1d, 2: Conv2d, 3: Conv3d}
_TRANSPOSED: dict[int, type[TransposedConvolution]] = {1: ConvTranspose1d, 2: ConvTranspose2d, 3: ConvTranspose3d}


class ConvolutionMethods(AbstractBuilder):
    """The methods that add convolutions; the number in a name counts the dimensions that windows move along."""

    @final
    def conv1d(
        self,
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
        """A convolution along one dimension, as torch.nn.Conv1d; see ``conv2d``."""
        return self._convolution(
            1, x, out_channels, (kernel_size, stride, padding, dilation), groups, bias, name, weight
        )

    @final
    def conv2d(
        self,
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
        """A convolution of images, as torch.nn.Conv2d.

        Args:
            x: (N, in_channels, height, width).
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
        return self._convolution(
            2, x, out_channels, (kernel_size, stride, padding, dilation), groups, bias, name, weight
        )

    @final
    def conv3d(
        self,
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
        """A convolution of volumes, as torch.nn.Conv3d; see ``conv2d``."""
        return self._convolution(
            3, x, out_channels, (kernel_size, stride, padding, dilation), groups, bias, name, weight
        )

    def _convolution(
        self,
        count: int,
        x: Tensor,
        out_channels: int,
        window: tuple[Extents, Extents, Extents | str, Extents],
        groups: int,
        bias: Tensor | bool,
        name: str | None,
        weight: Tensor | None,
    ) -> Tensor:
        where = f"conv{count}d"
        check_rank(where, x, count)
        kernel, stride, dilation = (
            extents(f"{where}.{field}", value, count)
            for field, value in zip(("kernel_size", "stride", "dilation"), (*window[:2], window[3]), strict=True)
        )
        padding = padding_of(where, window[2], kernel, stride, dilation)
        operator = _CONVOLUTIONS[count](
            x.shape[1], out_channels, kernel, stride, padding, dilation, bias is not False, groups
        )
        return self.append(operator, (x,), shared(weight, bias=bias), name)

    @final
    def conv_transpose1d(
        self,
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
        """A transposed convolution along one dimension, as torch.nn.ConvTranspose1d; see ``conv_transpose2d``."""
        window = (kernel_size, stride, padding, output_padding, dilation)
        return self._transposed(1, x, out_channels, window, groups, bias, name, weight)

    @final
    def conv_transpose2d(
        self,
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
        """A transposed convolution of images, as torch.nn.ConvTranspose2d.

        Args:
            x: (N, in_channels, height, width).
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
        window = (kernel_size, stride, padding, output_padding, dilation)
        return self._transposed(2, x, out_channels, window, groups, bias, name, weight)

    @final
    def conv_transpose3d(
        self,
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
        """A transposed convolution of volumes, as torch.nn.ConvTranspose3d; see ``conv_transpose2d``."""
        window = (kernel_size, stride, padding, output_padding, dilation)
        return self._transposed(3, x, out_channels, window, groups, bias, name, weight)

    def _transposed(
        self,
        count: int,
        x: Tensor,
        out_channels: int,
        window: tuple[Extents, ...],
        groups: int,
        bias: Tensor | bool,
        name: str | None,
        weight: Tensor | None,
    ) -> Tensor:
        where = f"conv_transpose{count}d"
        check_rank(where, x, count)
        fields = ("kernel_size", "stride", "padding", "output_padding", "dilation")
        kernel, stride, padding, added, dilation = (
            extents(f"{where}.{field}", value, count) for field, value in zip(fields, window, strict=True)
        )
        operator = _TRANSPOSED[count](
            x.shape[1], out_channels, kernel, stride, padding, added, dilation, bias is not False, groups
        )
        return self.append(operator, (x,), shared(weight, bias=bias), name)
