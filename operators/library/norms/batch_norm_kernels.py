"""Compiled batch norm: both ways, whole and in parts, channel by channel, written where it belongs.

A channel's rows fit a core's cache, so what goes over them two or three times reads memory once. Of a channel with n
elements, the mean m and one over the deviation r:

    h = (x - m) r        db = sum g        dw = sum g h        dx = w r (g - mean(g) - h mean(g h))

Rows' sums are of the operand's own kind, in any order, and add up in float64, as torch's do. The kernels go through
rows that lie dense, on one core; all else is torch's.
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
from maniple.operators.operator.operator import BackwardTensors, ForwardTensors, Kernels, TileContext

if TYPE_CHECKING:
    from maniple.operators.library.norms.normalization import BatchNorm
    from maniple.operators.library.norms.split_batch_norm import ChannelNormal, ChannelStatistics


@numba.njit(cache=True, nogil=True, fastmath=ANY_ORDER)
def sum_of(x: Floats, channel: int) -> float:
    """The sum of a channel of (samples, channels, elements)."""
    samples, _, elements = x.shape
    kind, total = x.dtype.type, 0.0
    for sample in range(samples):
        read, row = x[sample, channel], kind(0)
        for place in range(elements):
            row += read[place]
        total += row
    return total


@numba.njit(cache=True, nogil=True, fastmath=ANY_ORDER)
def squares_of(x: Floats, channel: int, middle: Float) -> float:
    """The sum of a channel's squared distances from a value."""
    samples, _, elements = x.shape
    kind, total = x.dtype.type, 0.0
    for sample in range(samples):
        read, row = x[sample, channel], kind(0)
        for place in range(elements):
            row += (read[place] - middle) * (read[place] - middle)
        total += row
    return total


@numba.njit(cache=True, nogil=True, fastmath=ANY_ORDER)
def normalize(x: Floats, channel: int, middle: Float, factor: Float, bias: Float, result: Floats) -> None:
    """Write a channel of the result."""
    samples, _, elements = x.shape
    for sample in range(samples):
        read, target = x[sample, channel], result[sample, channel]
        for place in range(elements):
            target[place] = (read[place] - middle) * factor + bias


@numba.njit(cache=True, nogil=True)
def batch_norm(
    x: Floats,
    running: tuple[Floats, Floats],
    weight: Floats,
    bias: Floats,
    eps: Float,
    momentum: Float,
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
        result: (samples, channels, elements): written.
        following: (channels,) each: mean and variance from now on, of which the variance is the unbiased one.
        mean: (channels,): written.
        scale: (channels,): one over the deviation, written.
    """
    samples, channels, elements = x.shape
    kind, count = x.dtype.type, samples * elements
    for channel in range(channels):
        middle = kind(sum_of(x, channel) / count)
        squares = squares_of(x, channel, middle)
        own = kind(1) / np.sqrt(kind(squares / count) + eps)
        mean[channel], scale[channel] = middle, own
        following[0][channel] = (kind(1) - momentum) * running[0][channel] + momentum * middle
        unbiased = kind(squares / (count - 1))
        following[1][channel] = (kind(1) - momentum) * running[1][channel] + momentum * unbiased
        normalize(x, channel, middle, own * weight[channel], bias[channel], result)


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
def channel_mean(x: Floats, count: int, mean: Floats) -> None:
    """What (samples, channels, elements) adds to the means of channels of so many elements in all."""
    for channel in range(x.shape[1]):
        mean[channel] = sum_of(x, channel) / count


@numba.njit(cache=True, nogil=True)
def channel_moments(x: Floats, near: Floats, count: int, mean: Floats, variance: Floats) -> None:
    """What it adds to their means and variances, of which the means are known."""
    for channel in range(x.shape[1]):
        mean[channel] = sum_of(x, channel) / count
        variance[channel] = squares_of(x, channel, near[channel]) / count


@numba.njit(cache=True, nogil=True, fastmath=ANY_ORDER)
def channel_moments_gradient(
    mean_slope: Floats, variance_slope: Floats, x: Floats, near: Floats, count: int, result: Floats, adds: bool
) -> None:
    """The operand's gradient, written or added: (s + 2 t (x - m)) / n.

    Args:
        mean_slope: (channels,).
        variance_slope: (channels,).
        x: (samples, channels, elements).
        near: (channels,): the means.
        count: the elements of a channel in all.
        result: (samples, channels, elements).
        adds: whether the gradient is added.
    """
    samples, channels, elements = x.shape
    kind = x.dtype.type
    for sample in range(samples):
        for channel in range(channels):
            read, target, middle = x[sample, channel], result[sample, channel], near[channel]
            constant, slope = kind(mean_slope[channel] / count), kind(2 * variance_slope[channel] / count)
            if adds:
                for place in range(elements):
                    target[place] += constant + slope * (read[place] - middle)
            else:
                for place in range(elements):
                    target[place] = constant + slope * (read[place] - middle)


@numba.njit(cache=True, nogil=True)
def channel_normal(
    x: Floats, mean: Floats, variance: Floats, weight: Floats, bias: Floats, eps: Float, result: Floats
) -> None:
    """Normalize (samples, channels, elements) by given statistics."""
    for channel in range(x.shape[1]):
        own = x.dtype.type(1) / np.sqrt(variance[channel] + eps)
        normalize(x, channel, mean[channel], own * weight[channel], bias[channel], result)


@numba.njit(cache=True, nogil=True, fastmath=ANY_ORDER)
def channel_normal_gradients(
    gradient: Floats,
    x: Floats,
    mean: Floats,
    variance: Floats,
    weight: Floats,
    eps: Float,
    result: Floats,
    statistics: tuple[Floats, Floats],
    weight_gradient: Floats,
    bias_gradient: Floats,
) -> None:
    """The gradients of what is normalized by given statistics, in one pass.

    Args:
        gradient: (samples, channels, elements): of the result.
        x: (samples, channels, elements).
        mean: (channels,).
        variance: (channels,).
        weight: (channels,).
        eps: added to the variance, of the operand's kind.
        result: (samples, channels, elements): comes to be the operand's gradient.
        statistics: (channels,) each: come to be the mean's and the variance's.
        weight_gradient: (channels,): comes to be the weight's.
        bias_gradient: (channels,): comes to be the bias'.
    """
    samples, channels, elements = x.shape
    kind = x.dtype.type
    for channel in range(channels):
        middle, total, product = mean[channel], 0.0, 0.0
        own = kind(1) / np.sqrt(variance[channel] + eps)
        factor = own * weight[channel]
        for sample in range(samples):
            given, read, target = gradient[sample, channel], x[sample, channel], result[sample, channel]
            row, row_product = kind(0), kind(0)
            for place in range(elements):
                row += given[place]
                row_product += given[place] * (read[place] - middle)
                target[place] = given[place] * factor
            total += row
            product += row_product
        weight_gradient[channel] = product * own
        bias_gradient[channel] = total
        statistics[0][channel] = -total * factor
        statistics[1][channel] = -0.5 * product * factor * own * own


def bind_batch_norm(context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
    """Forward of a batch norm that trains."""
    x, *rest = tensors.operands
    there = [each for each in rest if each is not None]
    if not (context.training and _are_channels((x, *there, *tensors.results, *tensors.saved), context)):
        return autograd_kernel.bind_forward(context, tensors)
    operator, read, size = cast("BatchNorm", context.operator), _channels(x), cast("Tensor", x).shape[1]
    if read.shape[0] * read.shape[2] < 2:  # torch says what it expected
        return autograd_kernel.bind_forward(context, tensors)
    result, *following = tensors.results
    vectors = [
        vector_of(each, result, size, fill).numpy() for each, fill in zip(tensors.operands[3:], (1.0, 0.0), strict=True)
    ]
    kind = read.dtype.type
    running = tuple(tensors.operand(place).numpy() for place in (1, 2))
    written = (_channels(result), tuple(each.numpy() for each in following), *(each.numpy() for each in tensors.saved))
    return compiled(batch_norm, (read, running, *vectors, kind(operator.eps), kind(operator.momentum), *written))


def bind_batch_norm_backward(context: TileContext, tensors: BackwardTensors) -> Callable[[], None]:
    """Backward of a batch norm that trains."""
    shape = context.tile.result_rects[0].shape
    rows = (*shape[:2], prod(shape[2:]))
    return bind_gradients(context, tensors, 3, batch_norm_gradients, rows, shape[1])


def bind_mean(context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
    """What a part adds to the means."""
    (x,), (mean,) = tensors.operands, tensors.results
    if not _are_channels((x, mean), context):
        return autograd_kernel.bind_forward(context, tensors)
    return compiled(channel_mean, (_channels(x), cast("ChannelStatistics", context.operator).count, mean.numpy()))


def bind_moments(context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
    """What a part adds to means and variances."""
    x, near = tensors.operands
    if not _are_channels((x, near, *tensors.results), context):
        return autograd_kernel.bind_forward(context, tensors)
    count, results = cast("ChannelStatistics", context.operator).count, [each.numpy() for each in tensors.results]
    return compiled(channel_moments, (_channels(x), tensors.operand(1).numpy(), count, *results))


def bind_moments_backward(context: TileContext, tensors: BackwardTensors) -> Callable[[], None]:
    """The gradient of what means and variances are of."""
    (x, near), slopes, target = tensors.operands, tensors.result_gradients, tensors.operand_gradients[0]
    if not _are_channels((x, near, target, *slopes), context):
        return autograd_kernel.bind_backward(context, tensors)
    count = cast("ChannelStatistics", context.operator).count
    given = [tensors.gradient(place).numpy() for place in range(2)]
    arguments = (*given, _channels(x), tensors.operand(1).numpy(), count, _channels(target), 0 in tensors.adds)
    return compiled(channel_moments_gradient, arguments)


def bind_normal(context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
    """What is normalized by given statistics."""
    there = [each for each in tensors.operands[3:] if each is not None]
    if not _are_channels((*tensors.operands[:3], *there, *tensors.results), context):
        return autograd_kernel.bind_forward(context, tensors)
    (result,), read = tensors.results, _channels(tensors.operands[0])
    statistics = [tensors.operand(place).numpy() for place in (1, 2)]
    ends = [
        vector_of(each, result, read.shape[1], fill).numpy()
        for each, fill in zip(tensors.operands[3:], (1.0, 0.0), strict=True)
    ]
    eps = read.dtype.type(cast("ChannelNormal", context.operator).eps)
    return compiled(channel_normal, (read, *statistics, *ends, eps, _channels(result)))


def bind_normal_backward(context: TileContext, tensors: BackwardTensors) -> Callable[[], None]:
    """Gradients of what is normalized by given statistics."""
    x, mean, variance, weight = tensors.operands[:4]
    gradient, (target, *others) = tensors.result_gradients[0], tensors.operand_gradients
    there = [each for each in (weight, *others) if each is not None]
    if not _are_channels((x, gradient, target, mean, variance, *there), context):
        return autograd_kernel.bind_backward(context, tensors)
    read, like = _channels(x), tensors.gradient()
    size, eps = read.shape[1], read.dtype.type(cast("ChannelNormal", context.operator).eps)
    made = [(like.new_empty(size) if each is None else each).numpy() for each in others]
    given = (_channels(gradient), read, tensors.operand(1).numpy(), tensors.operand(2).numpy())
    factor = vector_of(weight, like, size, 1.0).numpy()
    written = (_channels(target), (made[0], made[1]), *made[2:])
    return compiled(channel_normal_gradients, (*given, factor, eps, *written))


def _are_channels(tensors: Sequence[Tensor | None], context: TileContext) -> bool:
    """Whether the kernels go through tensors, of which the first has the elements: more than one of a channel."""
    return are_rows(context, tensors) and prod(cast("Tensor", tensors[0]).shape[2:]) > 1


def _channels(tensor: Tensor | None) -> npt.NDArray[np.float64]:
    """A tensor as (samples, channels, elements)."""
    there = cast("Tensor", tensor)
    return there.view(*there.shape[:2], -1).numpy()


BATCH_NORM = Kernels(bind_batch_norm, bind_batch_norm_backward)
MEAN = Kernels(bind_mean, autograd_kernel.bind_backward)
MOMENTS = Kernels(bind_moments, bind_moments_backward, accumulates=(0,))
NORMAL = Kernels(bind_normal, bind_normal_backward)
