"""Compiled parts of a split batch norm, channel by channel: see ``split_batch_norm`` for what each of them computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import numba
import numpy as np

from maniple.operators.library.norms.batch_norm_kernels import are_channels, channels_of, channels_or_none, normalize
from maniple.operators.library.norms.norm_kernels import ANY_ORDER, Float, Floats, compiled, vector_of
from maniple.operators.operator import autograd_kernel
from maniple.operators.operator.operator import BackwardTensors, ForwardTensors, Kernels, TileContext

if TYPE_CHECKING:
    from maniple.operators.library.norms.split_batch_norm import ChannelNormal, ChannelStatistics


@numba.njit(cache=True, nogil=True, fastmath=ANY_ORDER)
def channel_mean(x: Floats, count: int, mean: Floats) -> None:
    """What (samples, channels, elements) adds to the means of channels of so many elements in all."""
    samples, channels, elements = x.shape
    kind = x.dtype.type
    for channel in range(channels):
        total = 0.0
        for sample in range(samples):
            read, row = x[sample, channel], kind(0)
            for place in range(elements):
                row += read[place]
            total += row
        mean[channel] = total / count


@numba.njit(cache=True, nogil=True, fastmath=ANY_ORDER)
def channel_moments(x: Floats, near: Floats, count: int, mean: Floats, variance: Floats) -> None:
    """What it adds to their means and variances, of which the means are known."""
    samples, channels, elements = x.shape
    kind = x.dtype.type
    for channel in range(channels):
        middle, total, squares = near[channel], 0.0, 0.0
        for sample in range(samples):
            read, row, far = x[sample, channel], kind(0), kind(0)
            for place in range(elements):
                row += read[place]
                far += (read[place] - middle) * (read[place] - middle)
            total += row
            squares += far
        mean[channel] = total / count
        variance[channel] = squares / count


@numba.njit(cache=True, nogil=True, fastmath=ANY_ORDER)
def channel_moments_gradient(
    mean_slope: Floats, variance_slope: Floats, x: Floats, near: Floats, count: int, kept: Float, result: Floats
) -> None:
    """The operand's gradient, written or added: (s + 2 t (x - m)) / n.

    Args:
        mean_slope: (channels,).
        variance_slope: (channels,).
        x: (samples, channels, elements).
        near: (channels,): the means.
        count: the elements of a channel in all.
        kept: 1 where the gradient is added to what is there, 0 where it is written; of the operand's kind.
        result: (samples, channels, elements).
    """
    samples, channels, elements = x.shape
    kind = x.dtype.type
    for sample in range(samples):
        for channel in range(channels):
            read, target, middle = x[sample, channel], result[sample, channel], near[channel]
            constant, slope = kind(mean_slope[channel] / count), kind(2 * variance_slope[channel] / count)
            if kept:
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


def bind_mean(context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
    """What a part adds to the means."""
    (x,), (mean,) = tensors.operands, tensors.results
    if not are_channels((x, mean), context):
        return autograd_kernel.bind_forward(context, tensors)
    return compiled(channel_mean, (channels_of(x), cast("ChannelStatistics", context.operator).count, mean.numpy()))


def bind_moments(context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
    """What a part adds to means and variances."""
    x, near = tensors.operands
    if not are_channels((x, near, *tensors.results), context):
        return autograd_kernel.bind_forward(context, tensors)
    count, results = cast("ChannelStatistics", context.operator).count, [each.numpy() for each in tensors.results]
    return compiled(channel_moments, (channels_of(x), tensors.operand(1).numpy(), count, *results))


def bind_moments_backward(context: TileContext, tensors: BackwardTensors) -> Callable[[], None]:
    """The gradient of what means and variances are of."""
    (x, near), slopes, target = tensors.operands, tensors.result_gradients, tensors.operand_gradients[0]
    if not are_channels((x, near, target, *slopes), context):
        return autograd_kernel.bind_backward(context, tensors)
    count = cast("ChannelStatistics", context.operator).count
    given = [tensors.gradient(place).numpy() for place in range(2)]
    kept = given[0].dtype.type(0 in tensors.adds)
    arguments = (*given, channels_of(x), tensors.operand(1).numpy(), count, kept, channels_of(target))
    return compiled(channel_moments_gradient, arguments)


def bind_normal(context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
    """What is normalized by given statistics."""
    eps = cast("ChannelNormal", context.operator).eps
    return bind_given(context, tensors, eps, channel_normal)


def bind_given(
    context: TileContext, tensors: ForwardTensors, eps: float, kernel: Callable[..., None]
) -> Callable[[], None]:
    """Forward by given statistics.

    Args:
        context: The tile.
        tensors: What it reads and writes: behind the bias what else the kernel reads.
        eps: Added to the variance.
        kernel: ``channel_normal``, or one that also reads what else there is.
    """
    there = [each for each in tensors.operands[3:] if each is not None]
    if not are_channels((*tensors.operands[:3], *there, *tensors.results), context):
        return autograd_kernel.bind_forward(context, tensors)
    (result,), read = tensors.results, channels_of(tensors.operands[0])
    statistics = [tensors.operand(place).numpy() for place in (1, 2)]
    ends = [
        vector_of(each, result, read.shape[1], fill).numpy()
        for each, fill in zip(tensors.operands[3:5], (1.0, 0.0), strict=True)
    ]
    others = [channels_or_none(each, read) for each in tensors.operands[5:]]
    return compiled(kernel, (read, *statistics, *ends, *others, read.dtype.type(eps), channels_of(result)))


def bind_normal_backward(context: TileContext, tensors: BackwardTensors) -> Callable[[], None]:
    """Gradients of what is normalized by given statistics."""
    x, mean, variance, weight = tensors.operands[:4]
    gradient, (target, *others) = tensors.result_gradients[0], tensors.operand_gradients
    there = [each for each in (weight, *others) if each is not None]
    if not are_channels((x, gradient, target, mean, variance, *there), context):
        return autograd_kernel.bind_backward(context, tensors)
    read, like = channels_of(x), tensors.gradient()
    size, eps = read.shape[1], read.dtype.type(cast("ChannelNormal", context.operator).eps)
    made = [(like.new_empty(size) if each is None else each).numpy() for each in others]
    given = (channels_of(gradient), read, tensors.operand(1).numpy(), tensors.operand(2).numpy())
    factor = vector_of(weight, like, size, 1.0).numpy()
    written = (channels_of(target), (made[0], made[1]), *made[2:])
    return compiled(channel_normal_gradients, (*given, factor, eps, *written))


MEAN = Kernels(bind_mean, autograd_kernel.bind_backward)
MOMENTS = Kernels(bind_moments, bind_moments_backward, accumulates=(0,))
NORMAL = Kernels(bind_normal, bind_normal_backward)
