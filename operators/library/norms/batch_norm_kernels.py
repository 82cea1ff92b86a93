"""Compiled batch norm: both ways, channel by channel, written where it belongs.

Of a channel with n elements, the mean m and one over the deviation r:

    h = (x - m) r        db = sum g        dw = sum g h        dx = w r (g - mean(g) - h mean(g h))

Rows' sums are of the operand's own kind, in any order, and add up in float64, as torch's do. Mean and squared distances
come of one pass over memory: a row, which the nearest cache holds, is gone through twice, and what rows give is put
together as by Chan, Golub and LeVeque (Updating formulae and a pairwise algorithm for computing sample variances,
COMPSTAT 1982). The kernels go through rows that lie dense, on one core; all else is torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, cast

import numba
import numpy as np
import numpy.typing as npt
from torch import Tensor

from maniple.operators.library.norms.norm_kernels import (
    ANY_ORDER,
    Float,
    Floats,
    are_rows,
    bind_gradients,
    compiled,
    vector_of,
)
from maniple.operators.operator import autograd_kernel
from maniple.operators.operator.kernel_scratch import CallSequence
from maniple.operators.operator.operator import BackwardTensors, ForwardTensors, Kernels, TileContext

if TYPE_CHECKING:
    from maniple.operators.library.norms.local_batch_norm import LocalBatchNorm
    from maniple.operators.library.norms.normalization import BatchNorm


@numba.njit(cache=True, nogil=True, fastmath=ANY_ORDER)
def moments_of(x: Floats, channel: int) -> tuple[float, float]:
    """The mean of a channel, and the sum of squared distances from it."""
    samples, _, elements = x.shape
    kind, mean, squares = x.dtype.type, 0.0, 0.0
    for sample in range(samples):
        read, row, far = x[sample, channel], kind(0), kind(0)
        for place in range(elements):
            row += read[place]
        own = float(row) / elements
        middle = kind(own)
        for place in range(elements):
            far += (read[place] - middle) * (read[place] - middle)
        apart = own - mean
        mean += apart / (sample + 1)
        squares += far + apart * apart * elements * sample / (sample + 1)
    return mean, squares


@numba.njit(cache=True, nogil=True, fastmath=ANY_ORDER)
def normalize(x: Floats, channel: int, middle: Float, factor: Float, bias: Float, result: Floats) -> None:
    """Write a channel of the result."""
    samples, _, elements = x.shape
    for sample in range(samples):
        read, target = x[sample, channel], result[sample, channel]
        for place in range(elements):
            target[place] = (read[place] - middle) * factor + bias


@numba.njit(cache=True, nogil=True)
def take_statistics(
    x: Floats,
    channel: int,
    running: tuple[Floats, Floats],
    eps: Float,
    momentum: Float,
    share: Float,
    following: tuple[Floats, Floats],
    mean: Floats,
    scale: Floats,
) -> None:
    """Write a channel's statistics, and what becomes of the running ones; arguments are those of ``batch_norm``."""
    kind, count = x.dtype.type, x.shape[0] * x.shape[2]
    exact, squares = moments_of(x, channel)
    middle = kind(exact)
    mean[channel], scale[channel] = middle, kind(1) / np.sqrt(kind(squares / count) + eps)
    following[0][channel] = share * ((kind(1) - momentum) * running[0][channel] + momentum * middle)
    unbiased = kind(squares / (count - 1))
    following[1][channel] = share * ((kind(1) - momentum) * running[1][channel] + momentum * unbiased)


@numba.njit(cache=True, nogil=True)
def batch_norm(
    x: Floats,
    running: tuple[Floats, Floats],
    weight: Floats,
    bias: Floats,
    eps: Float,
    momentum: Float,
    share: Float,
    result: Floats,
    following: tuple[Floats, Floats],
    mean: Floats,
    scale: Floats,
) -> None:
    """Normalize channels by their own statistics.

    Args:
        x: (samples, channels, elements).
        running: (channels,) each: mean and variance before.
        weight: (channels,).
        bias: (channels,).
        eps: added to the variance, of the operand's kind.
        momentum: the share of the new statistics in the running ones, of the operand's kind.
        share: of the tile in what running statistics are the mean of, of the operand's kind.
        result: (samples, channels, elements): written.
        following: (channels,) each: mean and variance from now on, of which the variance is the unbiased one.
        mean: (channels,): written.
        scale: (channels,): one over the deviation, written.
    """
    for channel in range(x.shape[1]):
        take_statistics(x, channel, running, eps, momentum, share, following, mean, scale)
        normalize(x, channel, mean[channel], scale[channel] * weight[channel], bias[channel], result)


@numba.njit(cache=True, nogil=True, fastmath=ANY_ORDER)
def batch_norm_gradients(
    gradient: Floats,
    x: Floats,
    mean: Floats,
    scale: Floats,
    weight: Floats,
    result: Floats,
    weight_gradient: Floats,
    bias_gradient: Floats,
) -> None:
    """The gradients of channels; sums of rows add up in float64, as torch's do.

    Args:
        gradient: (samples, channels, elements): of the result.
        x: (samples, channels, elements).
        mean: (channels,).
        scale: (channels,): one over the deviation.
        weight: (channels,).
        result: (samples, channels, elements): comes to be the operand's gradient.
        weight_gradient: (channels,): comes to be the weight's.
        bias_gradient: (channels,): comes to be the bias'.
    """
    samples, channels, elements = x.shape
    kind = x.dtype.type
    for channel in range(channels):
        middle, own, total, product = mean[channel], scale[channel], 0.0, 0.0
        for sample in range(samples):
            given, read = gradient[sample, channel], x[sample, channel]
            row, row_product = kind(0), kind(0)
            for place in range(elements):
                row += given[place]
                row_product += given[place] * (read[place] - middle)
            total += row
            product += row_product
        weight_gradient[channel] = product * own
        bias_gradient[channel] = total
        share = kind(total / (samples * elements))
        slope = kind(product * own * own / (samples * elements))
        factor = weight[channel] * own
        for sample in range(samples):
            given, read, target = gradient[sample, channel], x[sample, channel], result[sample, channel]
            for place in range(elements):
                target[place] = (given[place] - share - (read[place] - middle) * slope) * factor


@numba.njit(cache=True, nogil=True)
def statistics_of(x: Floats, eps: Float, mean: Floats, scale: Floats) -> None:
    """The mean and one over the deviation of each channel, as ``batch_norm`` has them."""
    kind, count = x.dtype.type, x.shape[0] * x.shape[2]
    for channel in range(x.shape[1]):
        middle, squares = moments_of(x, channel)
        mean[channel] = kind(middle)
        scale[channel] = kind(1) / np.sqrt(kind(squares / count) + eps)


def bind_batch_norm(context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
    """Forward of a batch norm that trains."""
    return bind_training(context, tensors, cast("BatchNorm", context.operator), 1.0, batch_norm)


def bind_local(context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
    """Forward of a batch norm by the tile's own statistics."""
    operator = cast("LocalBatchNorm", context.operator)
    return bind_training(context, tensors, cast("BatchNorm", operator.exact), operator.share(context), batch_norm)


def bind_training(
    context: TileContext, tensors: ForwardTensors, norm: BatchNorm, share: float, kernel: Callable[..., None]
) -> Callable[[], None]:
    """Forward by the tile's statistics.

    Args:
        context: The tile.
        tensors: What it reads and writes: between the running statistics and the weight what else the kernel reads.
        norm: The batch norm.
        share: Of the tile in what the next running statistics are the mean of.
        kernel: ``batch_norm``, or one that also reads what else there is, behind the bias.
    """
    x, *rest = tensors.operands
    there = [each for each in rest if each is not None]
    if not (context.training and are_channels((x, *there, *tensors.results, *tensors.saved), context)):
        return autograd_kernel.bind_forward(context, tensors)
    read, size = channels_of(x), cast("Tensor", x).shape[1]
    if read.shape[0] * read.shape[2] < 2:  # torch says what it expected
        return autograd_kernel.bind_forward(context, tensors)
    result, *following = tensors.results
    vectors = [
        vector_of(each, result, size, fill).numpy()
        for each, fill in zip(tensors.operands[-2:], (1.0, 0.0), strict=True)
    ]
    kind = read.dtype.type
    running = tuple(tensors.operand(place).numpy() for place in (1, 2))
    kept = tensors.saved or (result.new_empty(size), result.new_empty(size))
    written = (channels_of(result), tuple(each.numpy() for each in following), *(each.numpy() for each in kept))
    numbers = (kind(norm.eps), kind(norm.momentum), kind(share))
    others = [channels_or_none(each, read) for each in tensors.operands[3:-2]]
    return compiled(kernel, (read, running, *vectors, *others, *numbers, *written))


def bind_local_backward(context: TileContext, tensors: BackwardTensors) -> Callable[[], None]:
    """Backward of a batch norm by the tile's own statistics, which are computed again: they are no regions."""
    (x, _, _, weight, _), gradient = tensors.operands, tensors.result_gradients[0]
    target, _, _, *ends = tensors.operand_gradients
    there = [each for each in (weight, *ends) if each is not None]
    if not are_channels((x, gradient, target, *there), context):
        return autograd_kernel.bind_backward(context, tensors)
    like, read = tensors.gradient(), channels_of(x)
    norm = cast("BatchNorm", cast("LocalBatchNorm", context.operator).exact)
    size, eps = read.shape[1], read.dtype.type(norm.eps)
    mean, scale = (like.new_empty(size).numpy() for _ in range(2))
    made = [(like.new_empty(size) if each is None else each).numpy() for each in ends]
    factor = vector_of(weight, like, size, 1.0).numpy()
    again = compiled(statistics_of, (read, eps, mean, scale))
    arguments = (channels_of(gradient), read, mean, scale, factor, channels_of(target), *made)
    return CallSequence().then(again).then(compiled(batch_norm_gradients, arguments)).bind()


def bind_batch_norm_backward(context: TileContext, tensors: BackwardTensors) -> Callable[[], None]:
    """Backward of a batch norm that trains."""
    shape = context.tile.result_rects[0].shape
    rows = (*shape[:2], prod(shape[2:]))
    return bind_gradients(context, tensors, 3, batch_norm_gradients, rows, shape[1])


def are_channels(tensors: Sequence[Tensor | None], context: TileContext) -> bool:
    """Whether the kernels go through tensors, of which the first has the elements: more than one of a channel."""
    return are_rows(context, tensors) and prod(cast("Tensor", tensors[0]).shape[2:]) > 1


def channels_of(tensor: Tensor | None) -> npt.NDArray[np.float64]:
    """A tensor as (samples, channels, elements)."""
    there = cast("Tensor", tensor)
    return there.view(*there.shape[:2], -1).numpy()


def channels_or_none(tensor: Tensor | None, like: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """A tensor as (samples, channels, elements); none of all where it is not there."""
    return np.empty((0, 0, 0), like.dtype) if tensor is None else channels_of(tensor)


BATCH_NORM = Kernels(bind_batch_norm, bind_batch_norm_backward)
LOCAL = Kernels(bind_local, bind_local_backward)
