"""Kernels of convolutions: torch's own, with a padded scratch where a tile's padding is not symmetric."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.nn.functional import conv1d, conv2d, conv3d

from maniple.operators.library.windows import channels_last_kernels, weight_product
from maniple.operators.operator.aten_overload import convolution_backward
from maniple.operators.operator.kernel_scratch import CallSequence
from maniple.operators.operator.operator import BackwardTensors, ForwardTensors, Kernels, TileContext

if TYPE_CHECKING:
    from maniple.operators.library.windows.convolution import Convolution

Target = tuple[Tensor, tuple[slice, ...] | None]
"""Where a gradient goes, and which part of torch's it is; None: all of it."""
_FORWARD = {1: conv1d, 2: conv2d, 3: conv3d}


def operator_of(context: TileContext) -> Convolution:
    """The convolution's attributes."""
    return cast("Convolution", context.operator)


def _groups(context: TileContext) -> int:
    """The groups of the tile."""
    return context.tile.extent("g") if operator_of(context).groups > 1 else 1


def input_shape(context: TileContext) -> tuple[int, ...]:
    """The shape of the tile's input."""
    rect = context.tile.operand_rects[0]
    if rect is None:
        raise TypeError(f"{context.operator.name}: a tile without input")
    sizes = tuple(max(0, high - low) for low, high in zip(rect.lo, rect.hi, strict=True))
    channels = _groups(context) * context.tile.extent("i")
    # An input that lies in the padding alone is empty, and an empty rectangle keeps no extents.
    return (context.tile.extent("b"), channels, *(sizes[2:] if all(sizes) else (0,) * len(sizes[2:])))


def torch_padding(context: TileContext) -> tuple[int, ...] | None:
    """The symmetric padding that makes torch compute the tile from its unpadded input; None where there is none."""
    operator, tile, shape = operator_of(context), context.tile, input_shape(context)
    padding = []
    for axis, name in enumerate(operator.axes):
        below, _ = tile.padding[axis]
        rows = (shape[2 + axis] + 2 * below - operator.reach(axis)) // operator.stride[axis] + 1
        if rows != tile.extent(name) or shape[2 + axis] == 0:
            return None
        padding.append(below)
    return tuple(padding)


def _pad(context: TileContext, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Zeroed scratch for the padded input, and the view of its interior."""
    operator, tile, shape = operator_of(context), context.tile, input_shape(context)
    if 0 in shape:
        sizes = [
            (tile.extent(name) - 1) * operator.stride[axis] + operator.reach(axis)
            for axis, name in enumerate(operator.axes)
        ]
        scratch = torch.zeros((*shape[:2], *sizes), dtype=dtype)
        return scratch, scratch[(slice(None), slice(None), *(slice(0, 0) for _ in sizes))]
    sizes = [below + rows + above for rows, (below, above) in zip(shape[2:], tile.padding, strict=True)]
    scratch = torch.zeros((*shape[:2], *sizes), dtype=dtype)
    return scratch, scratch[_interior(context, shape)]


def _interior(context: TileContext, shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Where the input lies in its padded scratch."""
    places = (slice(below, below + rows) for rows, (below, _) in zip(shape[2:], context.tile.padding, strict=True))
    return (slice(None), slice(None), *places)


def seen(context: TileContext) -> tuple[slice, ...] | None:
    """Which elements of the tile's input are seen at all, where its windows are points that step over some; else None.

    oneDNN copies a part of an instance, such as the 31 rows of 32 that points with a stride of 2 lie in, before it
    looks at a quarter of it: forward, and for either gradient. What is seen is copied alone:

        input rows    0  1  2  3  4         stride 2, one row high
        seen          x     x     x
    """
    operator, shape = operator_of(context), input_shape(context)
    if 0 in shape or all(step == 1 for step in operator.stride) or any(size != 1 for size in operator.kernel_size):
        return None
    if torch_padding(context) != (0,) * len(operator.axes):
        return None
    return (slice(None), slice(None), *(slice(None, None, step) for step in operator.stride))


def bind_forward(context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
    """The convolution of the tile."""
    x, weight, bias, (result,) = tensors.operands[0], tensors.operand(1), tensors.operands[2], tensors.results
    places = seen(context)
    if places is not None and x is not None:
        return _bind_seen(context, x[places], weight, bias, result)
    operator = operator_of(context)
    forward, copy, groups = _FORWARD[len(operator.axes)], result.copy_, _groups(context)
    stride, dilation = operator.stride, operator.dilation
    padding = torch_padding(context)
    if padding is not None and x is not None:
        return lambda: copy(forward(x, weight, bias, stride, padding, dilation, groups))  # type: ignore[return-value]
    steps = CallSequence()
    scratch, interior = _pad(context, result.dtype)
    if x is not None and x.numel():
        steps.then(lambda: interior.copy_(x))
    return steps.then(lambda: copy(forward(scratch, weight, bias, stride, 0, dilation, groups))).bind()


def _bind_seen(
    context: TileContext, x: Tensor, weight: Tensor, bias: Tensor | None, result: Tensor
) -> Callable[[], None]:
    """The convolution of what is seen of the tile's input."""
    dimensions, copy, groups = len(operator_of(context).axes), result.copy_, _groups(context)
    forward, one, none = _FORWARD[dimensions], (1,) * dimensions, (0,) * dimensions
    return lambda: copy(forward(x, weight, bias, one, none, one, groups))  # type: ignore[return-value]


def bind_backward(context: TileContext, tensors: BackwardTensors) -> Callable[[], None]:
    """All wanted gradients of the tile in one call."""
    gradient, x, weight = tensors.gradient(), tensors.operands[0], tensors.operand(1)
    operator = operator_of(context)
    padding = torch_padding(context)
    steps = CallSequence()
    places = None if x is None else seen(context)
    if x is not None and places is not None:
        source = x[places]
    elif padding is not None and x is not None:
        source = x
    else:
        source, interior = _pad(context, gradient.dtype)
        if x is not None and x.numel():
            steps.then(lambda: interior.copy_(x))
    targets = _targets(context, tensors.operand_gradients, steps, unpadded=padding is not None)
    if places is not None and (goal := targets[0]) is not None:
        if goal[0] is tensors.operand_gradients[0]:  # else it is zeroed already
            steps.then(goal[0].zero_)
        targets = ((goal[0][places], None), *targets[1:])
    mask = [target is not None for target in targets]
    if not any(mask):
        return steps.bind()
    none = [0] * len(operator.axes)
    arguments = (
        [weight.shape[0]],
        [1] * len(none) if places is not None else list(operator.stride),
        list(padding or none),
        list(operator.dilation),
        False,
        none,
        _groups(context),
        mask,
    )
    plain = places is None and padding is not None
    if plain and mask[:2] == [False, True] and weight_product.suits(context, source, weight, gradient):
        made = weight_product.bind_weight_gradient(context, source, gradient, padding or (), bias=mask[2])
        return steps.then(_bind_put(made, targets, tensors.adds)).bind()
    inner = targets[0][0] if plain and targets[0] is not None and not any(mask[1:]) else None
    if inner is not None and channels_last_kernels.suits(context, weight, gradient, inner):
        return steps.then(channels_last_kernels.bind_input_gradient(context, weight, gradient, inner, arguments)).bind()
    found = partial(convolution_backward, gradient, source, weight, *arguments)
    return steps.then(_bind_put(found, targets, tensors.adds)).bind()


def _bind_put(
    made: Callable[[], tuple[Tensor | None, ...]], targets: tuple[Target | None, ...], adds: frozenset[int]
) -> Callable[[], None]:
    """Gradients, and what brings them where they belong."""
    wanted = tuple(
        (place, goal[0].add_ if place in adds else goal[0].copy_, goal[1])
        for place, goal in enumerate(targets)
        if goal is not None
    )

    def run() -> None:
        found = made()
        for place, put, crop in wanted:
            gradient = cast("Tensor", found[place])
            put(gradient if crop is None else gradient[crop])

    return run


def _targets(
    context: TileContext, gradients: tuple[Tensor | None, ...], steps: CallSequence, *, unpadded: bool
) -> tuple[Target | None, ...]:
    """For every operand, where its gradient goes and which part of torch's gradient that is; None: not wanted.

    Rows that a stride steps over are in the gradient's view and not in the operand's: ``steps`` zeroes them.
    """
    x_gradient, *others = gradients
    rest = tuple(None if target is None else (target, None) for target in others)
    if x_gradient is None:
        return (None, *rest)
    shape = input_shape(context)
    if tuple(x_gradient.shape) != shape:
        steps.then(x_gradient.zero_)
        rect, grown = context.tile.operand_rects[0], context.tile.gradient_rects[0]
        if 0 in shape or rect is None or grown is None:
            return (None, *rest)
        # A gradient rect starts where its operand rect does.
        x_gradient = x_gradient[tuple(slice(0, extent) for extent in shape)]
    return ((x_gradient, None if unpadded else _interior(context, shape)), *rest)


KERNELS = Kernels(bind_forward, bind_backward, accumulates=(1, 2))
