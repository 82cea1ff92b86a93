"""Convolutions of images with channels last: what a tile reads is turned, and what torch gives is turned back.

oneDNN brings images with channels first into an order of its own, with blocks of channels, in each of its three passes,
and what it gives out of it. With channels last it computes on images as they lie. Where processors have vectors of 512
bits and images are large beside the weights that is faster, turning included (process time, ms, 64 images, one core of
a Xeon; "first" with the copy out of torch's tensor, "last" with what is turned):

    channels, image        forward: first, last    of the input    of the weight
    64 to 64, 32 x 32      28.6   26.8             34.8   26.9     33.9   29.7
    64 to 128, 16 x 16     14.0   11.9             14.2   12.3     13.3   12.9
    128 to 128, 16 x 16    25.7   22.8             26.4   23.2     25.0   24.5
    512 to 512, 4 x 4      22.6   39.5             20.2   41.1     41.9   42.7

So small images stay as they are, and so do all on other processors, and where one has several cores. Sums are rounded in
another order: of 8 images of 128 channels the farthest value is 1.4e-6 of the largest from that of float64, and 3e-7
with channels first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from maniple.operators.library.windows.channel_order import turn
from maniple.operators.operator.aten_overload import convolution_backward
from maniple.operators.operator.compiled_kernel import compile_kernel
from maniple.runtime.storage.scratchpad import Scratchpad

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from maniple.operators.library.windows.convolution import Convolution
    from maniple.operators.operator.operator import TileContext

__all__: list[str] = []

PIXELS = 64
"""An image of fewer stays as it is."""
TIMES_WEIGHTS = 3
"""So many times as many values as weights what is read and written must have."""


@cache
def is_faster_here() -> bool:
    """Whether oneDNN computes here, with vectors of 512 bits."""
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return wide and bool(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled)  # type: ignore[no-untyped-call]


def suits(context: TileContext, x: Tensor | None, weight: Tensor, other: Tensor | None) -> bool:
    """Whether a tile's convolution is computed with channels last.

    Args:
        context: The tile.
        x: Its input, or the gradient of that.
        weight: Its weight.
        other: Its result, or the gradient of that.
    """
    images = [each for each in (x, other) if each is not None]
    return (
        len(images) == 2
        and weight.ndim == 4
        and weight.shape[1] == images[0].shape[1]  # one group
        and context.cores == 1
        and all(each.dtype == torch.float32 and each.is_contiguous() and min(each.shape) for each in images)
        and min(prod(each.shape[2:]) for each in images) >= PIXELS
        and sum(each.numel() for each in images) >= TIMES_WEIGHTS * weight.numel()
        and is_faster_here()
    )


def bind_forward(
    context: TileContext, x: Tensor, weight: Tensor, bias: Tensor | None, result: Tensor, padding: tuple[int, ...]
) -> Callable[[], None]:
    """The convolution of a tile that suits."""
    operator = cast("Convolution", context.operator)
    (given,) = _scratch(context, x)
    bring = compile_kernel(turn, (_first(x), _last(given)))
    put, stride, dilation = _putting(result), operator.stride, operator.dilation

    def run() -> None:
        bring()
        put(conv2d(given, weight, bias, stride, padding, dilation))

    return run


def bind_backward(
    context: TileContext,
    x: Tensor,
    weight: Tensor,
    gradient: Tensor,
    target: Tensor | None,
    arguments: tuple[object, ...],
) -> Callable[[], tuple[Tensor | None, ...]]:
    """What gives the gradients of a tile that suits; that of its input goes where it belongs.

    Args:
        context: The tile.
        x: Its input; its values enter the gradient of the weight alone.
        weight: Its weight.
        gradient: Of its result.
        target: Where the gradient of its input goes; None: it is not wanted.
        arguments: The others of torch's ``convolution_backward``, which end in what is wanted.
    """
    wanted = cast("list[bool]", arguments[-1])
    slope, given = _scratch(context, gradient, x)
    bring = [compile_kernel(turn, (_first(gradient), _last(slope)))]
    if wanted[1]:
        bring.append(compile_kernel(turn, (_first(x), _last(given))))
    put = None if target is None else _putting(target)

    def run() -> tuple[Tensor | None, ...]:
        for each in bring:
            each()
        found: tuple[Tensor | None, ...] = convolution_backward(slope, given, weight, *arguments)
        if put is not None and found[0] is not None:
            put(found[0])
        return found

    return run


def _scratch(context: TileContext, *images: Tensor) -> list[Tensor]:
    """Memory for images with channels last, seen with channels first."""
    forms = [((each.shape[0], *each.shape[2:], each.shape[1]), each.dtype) for each in images]
    found = (context.scratch or Scratchpad().turn()).views(forms, images[0])
    return [each.permute(0, 3, 1, 2) for each in found]


def _putting(target: Tensor) -> Callable[[Tensor], None]:
    """What writes an image as torch gives it to where it belongs."""
    written = _first(target)
    like = torch.empty((target.shape[0], *target.shape[2:], target.shape[1]), dtype=target.dtype)
    compile_kernel(turn, (_last(like.permute(0, 3, 1, 2)), written))

    def put(found: Tensor) -> None:
        if found.is_contiguous(memory_format=torch.channels_last):
            turn(_last(found), written)
        else:
            target.copy_(found)

    return put


def _first(image: Tensor) -> npt.NDArray[np.float64]:
    """An image with channels first as (samples, channels, pixels)."""
    return image.view(*image.shape[:2], -1).numpy()


def _last(image: Tensor) -> npt.NDArray[np.float64]:
    """An image with channels last as (samples, pixels, channels)."""
    samples, channels = image.shape[:2]
    return image.permute(0, 2, 3, 1).view(samples, -1, channels).numpy()
