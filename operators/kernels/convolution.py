"""Kernels of the 2-d convolution: torch's own, with a padded scratch where a tile's padding is not symmetric."""

# kernels have one signature, whatever they use of it

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from maniple.operators.aten import convolution_backward
from maniple.operators.kernels.scratch import Steps
from maniple.operators.operator import Kernels, TileContext

if TYPE_CHECKING:
    from maniple.operators.library.convolution import Conv2d


def _shape(context: TileContext) -> tuple[int, ...]:
    """The shape of the tile's input."""
    rect = context.tile.operand_rects[0]
    if rect is None:
        raise TypeError("conv2d: a tile without input")
    sizes = tuple(max(0, high - low) for low, high in zip(rect.lo, rect.hi, strict=True))
    # An input that lies in the padding alone is empty, and an empty rectangle keeps no extents.
    return (context.tile.extent("b"), context.tile.extent("i"), *(sizes[2:] if all(sizes) else (0, 0)))


def _operator(context: TileContext) -> Conv2d:
    """The convolution's attributes."""
    return cast("Conv2d", context.operator)


def _torch_padding(context: TileContext) -> tuple[int, int] | None:
    """The symmetric padding that makes torch compute the tile from its unpadded input; None where there is none."""
    operator, tile, shape = _operator(context), context.tile, _shape(context)
    padding = []
    for axis, name in enumerate("yx"):
        below, _ = tile.padding[axis]
        reach = operator.dilation[axis] * (operator.kernel_size[axis] - 1) + 1
        rows = (shape[2 + axis] + 2 * below - reach) // operator.stride[axis] + 1
        if rows != tile.extent(name) or shape[2 + axis] == 0:
            return None
        padding.append(below)
    return padding[0], padding[1]


def _padded(context: TileContext, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Zeroed scratch for the padded input, and the view of its interior."""
    shape, padding = _shape(context), context.tile.padding
    (top, bottom), (left, right) = padding
    if 0 in shape:
        operator, tile = _operator(context), context.tile
        sizes = [
            (tile.extent(name) - 1) * operator.stride[axis]
            + operator.dilation[axis] * (operator.kernel_size[axis] - 1)
            + 1
            for axis, name in enumerate("yx")
        ]
        scratch = torch.zeros((*shape[:2], *sizes), dtype=dtype)
        return scratch, scratch[:, :, :0, :0]
    scratch = torch.zeros((*shape[:2], top + shape[2] + bottom, left + shape[3] + right), dtype=dtype)
    return scratch, scratch[:, :, top : top + shape[2], left : left + shape[3]]


def bind_forward(
    context: TileContext, operands: tuple[Tensor | None, ...], results: tuple[Tensor, ...], saved: tuple[Tensor, ...]
) -> Callable[[], None]:
    """The convolution of the tile; see ``maniple.operators.operator.BindForward``."""
    (result,) = results
    x, weight, bias = operands
    if weight is None:
        raise TypeError("conv2d: forward needs its weight")
    operator = _operator(context)
    stride, dilation = operator.stride, operator.dilation
    padding = _torch_padding(context)
    if padding is not None and x is not None:
        copy = result.copy_
        return lambda: copy(conv2d(x, weight, bias, stride, padding, dilation))  # type: ignore[return-value]
    steps = Steps()
    scratch, interior = _padded(context, result.dtype)
    if x is not None and x.numel():
        steps.then(lambda: interior.copy_(x))
    return steps.then(lambda: result.copy_(conv2d(scratch, weight, bias, stride, 0, dilation))).bound()


def bind_backward(
    context: TileContext,
    result_gradients: tuple[Tensor | None, ...],
    operands: tuple[Tensor | None, ...],
    results: tuple[Tensor | None, ...],
    saved: tuple[Tensor, ...],
    operand_gradients: tuple[Tensor | None, ...],
) -> Callable[[], None]:
    """All wanted gradients of the tile in one call; see ``maniple.operators.operator.BindBackward``."""
    (result_gradient,) = result_gradients
    x, weight, _ = operands
    if result_gradient is None or weight is None:
        raise TypeError("conv2d: backward needs the result's gradient and its weight")
    gradient = result_gradient
    operator = _operator(context)
    padding = _torch_padding(context)
    steps = Steps()
    if padding is not None and x is not None:
        source = x
    else:
        source, interior = _padded(context, gradient.dtype)
        if x is not None and x.numel():
            steps.then(lambda: interior.copy_(x))
    targets = _targets(context, operand_gradients, steps, unpadded=padding is not None)
    mask = [target is not None for target in targets]
    if not any(mask):
        return steps.bound()
    arguments = (
        [weight.shape[0]],
        list(operator.stride),
        list(padding or (0, 0)),
        list(operator.dilation),
        False,
        [0, 0],
        1,
        mask,
    )
    wanted = tuple((place, goal[0].copy_, goal[1]) for place, goal in enumerate(targets) if goal is not None)

    def run() -> None:
        found = convolution_backward(gradient, source, weight, *arguments)
        for place, copy, crop in wanted:
            copy(found[place] if crop is None else found[place][crop])

    return steps.then(run).bound()


Crop = tuple[slice, ...] | None


def _targets(
    context: TileContext, gradients: tuple[Tensor | None, ...], steps: Steps, *, unpadded: bool
) -> tuple[tuple[Tensor, Crop] | None, ...]:
    """For every operand, where its gradient goes and which part of torch's gradient that is; None: not wanted.

    Rows that a stride steps over are in the gradient's view and not in the operand's: ``steps`` zeroes them.
    """
    x_gradient, *others = gradients
    rest = tuple(None if target is None else (target, None) for target in others)
    if x_gradient is None:
        return (None, *rest)
    shape = _shape(context)
    if tuple(x_gradient.shape) != shape:
        steps.then(x_gradient.zero_)
        rect, grown = context.tile.operand_rects[0], context.tile.gradient_rects[0]
        if 0 in shape or rect is None or grown is None:
            return (None, *rest)
        # A gradient rect starts where its operand rect does.
        x_gradient = x_gradient[:, :, : shape[2], : shape[3]]
    if unpadded:
        return ((x_gradient, None), *rest)
    (top, _), (left, _) = context.tile.padding
    crop = (slice(None), slice(None), slice(top, top + shape[2]), slice(left, left + shape[3]))
    return ((x_gradient, crop), *rest)


KERNELS = Kernels(bind_forward, bind_backward)
