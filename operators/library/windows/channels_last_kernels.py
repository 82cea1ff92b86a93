"""Input gradients of convolutions of images with channels last: what a tile reads is turned, and what comes of it too.

oneDNN brings images with channels first into an order of its own, with blocks of channels, and out of it. With channels
last it computes on images as they lie. Where processors have vectors of 512 bits and images are large, input gradients
are faster so, turning included. Milliseconds of 64 images on one core of a Xeon, at the highest priority while other
programs ran; "first" with the copy out of torch's tensor:

    channels, image                first   last
    64 to 64, 32 x 32              38.9    30.3
    64 to 128, 32 x 32, stride 2   26.6    18.3
    64 to 128, 16 x 16             13.0    12.1
    128 to 128, 16 x 16            28.5    27.9
    256 to 256, 8 x 8              24.8    25.0
    512 to 512, 4 x 4              20.2    44.1

So smaller images stay as they are, and so do all on other processors, and where one has several cores. Forward passes
and weights' gradients gained nothing that lasted from one run to the next, and with a stride of 2 the latter took a
sixth longer. Sums are rounded in another order: of forward passes of 8 images of 128 channels the farthest value was
1.4e-6 of the largest from that of float64, and 3e-7 with channels first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from maniple.operators.library.windows.channel_order import turn
from maniple.operators.operator.aten_overload import convolution_backward
from maniple.operators.operator.compiled_kernel import compile_kernel
from maniple.runtime.storage.scratchpad import Scratchpad

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from maniple.operators.operator.operator import TileContext

__all__: list[str] = []

PIXELS = 256
"""An input of fewer stays as it is."""
TIMES_WEIGHTS = 3
"""So many times as many values as weights what is read and written must have."""


@cache
def is_faster_here() -> bool:
    """Whether oneDNN computes here, with vectors of 512 bits."""
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return wide and bool(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled)  # type: ignore[no-untyped-call]


def suits(context: TileContext, weight: Tensor, gradient: Tensor, target: Tensor) -> bool:
    """Whether a tile's input gradient is computed with channels last.

    Args:
        context: The tile.
        weight: Its weight.
        gradient: Of its result.
        target: Where that of its input goes.
    """
    images = (gradient, target)
    return (
        weight.ndim == 4
        and weight.shape[1] == target.shape[1]  # one group
        and context.cores == 1
        and all(each.dtype == torch.float32 and each.is_contiguous() and min(each.shape) for each in images)
        and prod(target.shape[2:]) >= PIXELS
        and sum(each.numel() for each in images) >= TIMES_WEIGHTS * weight.numel()
        and is_faster_here()
    )


def bind_input_gradient(
    context: TileContext, weight: Tensor, gradient: Tensor, target: Tensor, arguments: tuple[object, ...]
) -> Callable[[], None]:
    """The input gradient of a tile that suits.

    Args:
        context: The tile.
        weight: Its weight.
        gradient: Of its result.
        target: Where that of its input goes.
        arguments: The others of torch's ``convolution_backward``, which ask for it alone.
    """
    slope, shape = _scratch(context, gradient, target)
    bring = compile_kernel(turn, (_first(gradient), _last(slope)))
    written = _first(target)
    compile_kernel(turn, (_last(shape), written))

    def run() -> None:
        bring()
        found = convolution_backward(slope, shape, weight, *arguments)[0]
        if found.is_contiguous(memory_format=torch.channels_last):
            turn(_last(found), written)
        else:
            target.copy_(found)

    return run


def _scratch(context: TileContext, *images: Tensor) -> list[Tensor]:
    """Memory for images with channels last, seen with channels first."""
    forms = [((each.shape[0], *each.shape[2:], each.shape[1]), each.dtype) for each in images]
    found = (context.scratch or Scratchpad().turn()).views(forms, images[0])
    return [each.permute(0, 3, 1, 2) for each in found]


def _first(image: Tensor) -> npt.NDArray[np.float64]:
    """An image with channels first as (samples, channels, pixels)."""
    return image.view(*image.shape[:2], -1).numpy()


def _last(image: Tensor) -> npt.NDArray[np.float64]:
    """An image with channels last as (samples, pixels, channels)."""
    samples, channels = image.shape[:2]
    return image.permute(0, 2, 3, 1).view(samples, -1, channels).numpy()
