"""Gradients of the weights of convolutions of small images, as one product of matrices.

oneDNN goes through a sample's image for each weight, so of an image of 16 pixels it takes twice as long as for as many
products forward. Here what each pixel of the result sees is a row of a matrix, channels last, and so is its gradient:

    seen    (samples, rows, columns) by (window rows, window columns, channels in)
    slope   (samples, rows, columns) by channels out              weight's gradient = slope^T seen

Milliseconds of one core of a Xeon, at the highest priority while other programs ran; windows of 3 by 3:

    samples, channels, result     oneDNN    product
    64, 512 to 512, 4 x 4           40.2       28.1
    64, 256 to 512, 4 x 4           24.2       14.8
    8, 512 to 512, 4 x 4             6.2        4.4
    64, 256 to 256, 8 x 8           28.7       29.8

So larger images stay with oneDNN, and so do all on other processors, and where one has several cores.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from maniple.operators.library.windows.channels_last_kernels import is_faster_here
from maniple.runtime.storage.scratchpad import Scratchpad

if TYPE_CHECKING:
    from maniple.operators.library.windows.convolution import Convolution
    from maniple.operators.operator.operator import TileContext

__all__: list[str] = []

PIXELS = 16
"""A result of more for each sample stays with oneDNN."""
CHANNELS = 16
"""An input of fewer does, whose rows would be copied in small pieces."""
ROWS = 64
"""A matrix of fewer rows is not worth its copies."""


def suits(context: TileContext, x: Tensor, weight: Tensor, gradient: Tensor) -> bool:
    """Whether a tile's weight gradient is computed so.

    Args:
        context: The tile.
        x: Its input.
        weight: Its weight.
        gradient: Of its result.
    """
    operator, pixels = cast("Convolution", context.operator), prod(gradient.shape[2:])
    return (
        weight.ndim == 4
        and context.cores == 1
        and x.shape[1] == weight.shape[1] >= CHANNELS  # one group
        and x.dtype == torch.float32
        and prod(operator.kernel_size) > 1
        and 0 < pixels <= PIXELS
        and gradient.shape[0] * pixels >= ROWS
        and is_faster_here()
    )


def bind_weight_gradient(
    context: TileContext, x: Tensor, gradient: Tensor, padding: tuple[int, ...], *, bias: bool
) -> Callable[[], tuple[Tensor | None, ...]]:
    """What gives the gradients of a tile's weight and bias, as torch's ``convolution_backward`` does.

    Args:
        context: The tile, which suits.
        x: Its input.
        gradient: Of its result.
        padding: On each side of the input.
        bias: Whether that of the bias is wanted.
    """
    operator = cast("Convolution", context.operator)
    samples, channels, *size = x.shape
    outputs, rows, columns = gradient.shape[1:]
    window, steps, reach = operator.kernel_size, operator.stride, operator.dilation
    forms = (
        (samples, *(extent + 2 * edge for extent, edge in zip(size, padding, strict=True)), channels),
        (samples, rows, columns, *window, channels),
        (samples, rows, columns, outputs),
        (outputs, prod(window) * channels),
    )
    views = (context.scratch or Scratchpad().turn()).views([(form, x.dtype) for form in forms], x)
    padded, seen, slope, product = views
    inside = padded[:, padding[0] : padding[0] + size[0], padding[1] : padding[1] + size[1]]
    sample, row, column, _ = padded.stride()
    strides = (sample, row * steps[0], column * steps[1], row * reach[0], column * reach[1], 1)
    windows = padded.as_strided(forms[1], strides, padded.storage_offset())
    image, given = x.permute(0, 2, 3, 1), gradient.permute(0, 2, 3, 1)
    left, right = slope.view(-1, outputs).t(), seen.view(samples * rows * columns, -1)
    found = product.view(outputs, *window, channels).permute(0, 3, 1, 2)

    def run() -> tuple[Tensor | None, ...]:
        padded.zero_()
        inside.copy_(image)
        seen.copy_(windows)
        slope.copy_(given)
        torch.mm(left, right, out=product)
        return None, found, gradient.sum((0, 2, 3)) if bias else None

    return run
