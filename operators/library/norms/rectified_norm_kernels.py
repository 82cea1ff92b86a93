"""Compiled rectified batch norms, channel by channel: see ``rectified_batch_norm`` for what they compute.

Forward writes a channel's rows as they are normalized, added to and rectified. Backward lets a gradient through where
the result is above zero, as it sums it up for weight and bias: what is let through is the gradient of what was added,
and lies there, or where the operand's gradient comes to be, until the sums of the channel are known. A NaN is let
through both ways, as by torch's ReLU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import numba
import numpy as np

from maniple.operators.library.norms.batch_norm_kernels import (
    are_channels,
    bind_training,
    channels_of,
    channels_or_none,
    moments_of,
    take_statistics,
)
from maniple.operators.library.norms.norm_kernels import ANY_ORDER, Float, Floats, compiled, vector_of
from maniple.operators.library.norms.split_batch_norm_kernels import bind_given
from maniple.operators.operator import autograd_kernel
from maniple.operators.operator.operator import BackwardTensors, ForwardTensors, Kernels, TileContext

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from maniple.operators.library.norms.local_batch_norm import LocalBatchNorm
    from maniple.operators.library.norms.rectified_batch_norm import RectifiedBatchNorm, RectifiedNormal

_WEIGHT, _BRANCH = 4, 3
"""Operands of a rectified batch norm."""


@numba.njit(cache=True, nogil=True, fastmath=ANY_ORDER)
def rectify(
    x: Floats, channel: int, middle: Float, factor: Float, bias: Float, branch: Floats, result: Floats, at: int
) -> None:
    """Write a channel of the result.

    Args:
        x: (samples, channels, elements).
        channel: Which.
        middle: Its mean.
        factor: Its weight over its deviation.
        bias: Its bias.
        branch: What is added: of x's shape, or of no elements.
        result: (samples, channels or fewer, elements): written.
        at: Which channel of the result.
    """
    samples, _, elements = x.shape
    zero = x.dtype.type(0)
    for sample in range(samples):
        read, target = x[sample, channel], result[sample, at]
        if branch.size:
            added = branch[sample, channel]
            for place in range(elements):
                value = (read[place] - middle) * factor + bias + added[place]
                target[place] = zero if value <= zero else value  # noqa: FURB136  (a NaN stays one)
        else:
            for place in range(elements):
                value = (read[place] - middle) * factor + bias
                target[place] = zero if value <= zero else value  # noqa: FURB136  (a NaN stays one)


@numba.njit(cache=True, nogil=True, fastmath=ANY_ORDER)
def let_through(
    gradient: Floats, x: Floats, channel: int, made: Floats, at: int, middle: Float, held: Floats
) -> tuple[float, float]:
    """Write a channel of what the ReLU lets through; its sum, and that of its products with distances from the mean.

    Args:
        gradient: (samples, channels, elements): of the result.
        x: (samples, channels, elements).
        channel: Which.
        made: (samples, channels or fewer, elements): the result.
        at: Which channel of the result.
        middle: Its mean.
        held: (samples, channels, elements): written.
    """
    samples, _, elements = x.shape
    kind, total, product = x.dtype.type, 0.0, 0.0
    zero = kind(0)
    for sample in range(samples):
        given, read, seen = gradient[sample, channel], x[sample, channel], made[sample, at]
        target, row, row_product = held[sample, channel], kind(0), kind(0)
        for place in range(elements):
            slope = zero if seen[place] <= zero else given[place]
            target[place] = slope
            row += slope
            row_product += slope * (read[place] - middle)
        total += row
        product += row_product
    return total, product


@numba.njit(cache=True, nogil=True)
def rectified_batch_norm(
    x: Floats,
    running: tuple[Floats, Floats],
    weight: Floats,
    bias: Floats,
    branch: Floats,
    eps: Float,
    momentum: Float,
    share: Float,
    result: Floats,
    following: tuple[Floats, Floats],
    mean: Floats,
    scale: Floats,
) -> None:
    """Normalize channels by their own statistics, add and rectify; see ``batch_norm`` for the arguments.

    Args:
        x: (samples, channels, elements).
        running: See there.
        weight: (channels,).
        bias: (channels,).
        branch: What is added: of x's shape, or of no elements.
        eps: See there.
        momentum: See there.
        share: See there.
        result: (samples, channels, elements): written.
        following: See there.
        mean: (channels,): written.
        scale: (channels,): written.
    """
    for channel in range(x.shape[1]):
        take_statistics(x, channel, running, eps, momentum, share, following, mean, scale)
        factor = scale[channel] * weight[channel]
        rectify(x, channel, mean[channel], factor, bias[channel], branch, result, channel)


@numba.njit(cache=True, nogil=True)
def rectified_normal(
    x: Floats, mean: Floats, variance: Floats, weight: Floats, bias: Floats, branch: Floats, eps: Float, result: Floats
) -> None:
    """Normalize (samples, channels, elements) by given statistics, add and rectify."""
    for channel in range(x.shape[1]):
        factor = weight[channel] / np.sqrt(variance[channel] + eps)
        rectify(x, channel, mean[channel], factor, bias[channel], branch, result, channel)


@numba.njit(cache=True, nogil=True, fastmath=ANY_ORDER)
def spread_back(
    x: Floats, channel: int, middle: Float, share: Float, slope: Float, factor: Float, held: Floats, result: Floats
) -> None:
    """Write a channel of the operand's gradient, of what was let through; where that lies, if ``held`` is empty."""
    samples, _, elements = x.shape
    for sample in range(samples):
        read, target = x[sample, channel], result[sample, channel]
        if held.size:
            given = held[sample, channel]
            for place in range(elements):
                target[place] = (given[place] - share - (read[place] - middle) * slope) * factor
        else:
            for place in range(elements):
                target[place] = (target[place] - share - (read[place] - middle) * slope) * factor


@numba.njit(cache=True, nogil=True)
def come_back(
    x: Floats,
    channel: int,
    middle: Float,
    own: Float,
    factor: Float,
    sums: tuple[float, float],
    held: Floats,
    result: Floats,
    ends: tuple[Floats, Floats],
) -> None:
    """Write a channel's gradients of weight and bias (``ends``) and operand, from the sums of ``let_through``."""
    total, product = sums
    kind, count = x.dtype.type, x.shape[0] * x.shape[2]
    ends[0][channel], ends[1][channel] = product * own, total
    share, slope = kind(total / count), kind(product * own * own / count)
    spread_back(x, channel, middle, share, slope, factor, held, result)


@numba.njit(cache=True, nogil=True)
def rectified_gradients(
    gradient: Floats,
    x: Floats,
    made: Floats,
    mean: Floats,
    scale: Floats,
    weight: Floats,
    result: Floats,
    branch: Floats,
    weight_gradient: Floats,
    bias_gradient: Floats,
) -> None:
    """The gradients of channels; see ``batch_norm_gradients``.

    Args:
        gradient: (samples, channels, elements): of the result.
        x: (samples, channels, elements).
        made: (samples, channels, elements): the result.
        mean: (channels,).
        scale: (channels,): one over the deviation.
        weight: (channels,).
        result: (samples, channels, elements): comes to be the operand's gradient.
        branch: (samples, channels, elements): comes to be the gradient of what was added; of no elements: not wanted.
        weight_gradient: (channels,): comes to be the weight's.
        bias_gradient: (channels,): comes to be the bias'.
    """
    held = branch if branch.size else result
    for channel in range(x.shape[1]):
        middle, own = mean[channel], scale[channel]
        total, product = let_through(gradient, x, channel, made, channel, middle, held)
        ends = weight_gradient, bias_gradient
        come_back(x, channel, middle, own, weight[channel] * own, (total, product), branch, result, ends)


@numba.njit(cache=True, nogil=True)
def local_gradients(
    gradient: Floats,
    x: Floats,
    weight: Floats,
    bias: Floats,
    added: Floats,
    eps: Float,
    result: Floats,
    branch: Floats,
    weight_gradient: Floats,
    bias_gradient: Floats,
) -> None:
    """The same where neither statistics nor the result are kept: both are computed again, a channel at a time.

    Args:
        gradient: (samples, channels, elements): of the result.
        x: (samples, channels, elements).
        weight: (channels,).
        bias: (channels,).
        added: What was added: of x's shape, or of no elements.
        eps: Added to the variance, of the operand's kind.
        result: See ``rectified_gradients``.
        branch: See there.
        weight_gradient: See there.
        bias_gradient: See there.
    """
    samples, channels, elements = x.shape
    kind, held, made = x.dtype.type, branch if branch.size else result, np.empty((samples, 1, elements), x.dtype)
    for channel in range(channels):
        exact, squares = moments_of(x, channel)
        middle, own = kind(exact), kind(1) / np.sqrt(kind(squares / (samples * elements)) + eps)
        factor = weight[channel] * own
        rectify(x, channel, middle, factor, bias[channel], added, made, 0)
        total, product = let_through(gradient, x, channel, made, 0, middle, held)
        come_back(x, channel, middle, own, factor, (total, product), branch, result, (weight_gradient, bias_gradient))


@numba.njit(cache=True, nogil=True)
def rectified_normal_gradients(
    gradient: Floats,
    x: Floats,
    made: Floats,
    mean: Floats,
    variance: Floats,
    weight: Floats,
    eps: Float,
    result: Floats,
    branch: Floats,
    statistics: tuple[Floats, Floats],
    weight_gradient: Floats,
    bias_gradient: Floats,
) -> None:
    """The gradients of what is normalized by given statistics; see ``channel_normal_gradients``.

    Args:
        gradient: (samples, channels, elements): of the result.
        x: (samples, channels, elements).
        made: (samples, channels, elements): the result.
        mean: (channels,).
        variance: (channels,).
        weight: (channels,).
        eps: Added to the variance, of the operand's kind.
        result: (samples, channels, elements): comes to be the operand's gradient.
        branch: (samples, channels, elements): comes to be the gradient of what was added; of no elements: not wanted.
        statistics: (channels,) each: come to be the mean's and the variance's.
        weight_gradient: (channels,): comes to be the weight's.
        bias_gradient: (channels,): comes to be the bias'.
    """
    kind, held = x.dtype.type, branch if branch.size else result
    for channel in range(x.shape[1]):
        own = kind(1) / np.sqrt(variance[channel] + eps)
        factor = own * weight[channel]
        total, product = let_through(gradient, x, channel, made, channel, mean[channel], held)
        spread_back(x, channel, mean[channel], kind(0), kind(0), factor, branch, result)
        weight_gradient[channel] = product * own
        bias_gradient[channel] = total
        statistics[0][channel] = -total * factor
        statistics[1][channel] = -0.5 * product * factor * own * own


def bind_rectified(context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
    """Forward of a rectified batch norm that trains."""
    norm = cast("RectifiedBatchNorm", context.operator).norm
    return bind_training(context, tensors, norm, 1.0, rectified_batch_norm)


def bind_local(context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
    """The same by the tile's own statistics."""
    operator = cast("LocalBatchNorm", context.operator)
    norm = cast("RectifiedBatchNorm", operator.exact).norm
    return bind_training(context, tensors, norm, operator.share(context), rectified_batch_norm)


def bind_rectified_backward(context: TileContext, tensors: BackwardTensors) -> Callable[[], None]:
    """Backward of a rectified batch norm that trains."""
    ends = (tensors.results[0], *tensors.saved)
    if not _are_dense(context, tensors, ends) or not autograd_kernel.has_saved(context, tensors):
        return autograd_kernel.bind_backward(context, tensors)
    read = channels_of(tensors.operands[0])
    kept = [each.view(-1).numpy() for each in tensors.saved]
    weight = vector_of(tensors.operands[_WEIGHT], tensors.gradient(), read.shape[1], 1.0).numpy()
    given = (channels_of(tensors.gradient()), read, channels_of(tensors.result()), *kept, weight)
    return compiled(rectified_gradients, (*given, *_gradients(tensors, _BRANCH, _WEIGHT)))


def bind_local_backward(context: TileContext, tensors: BackwardTensors) -> Callable[[], None]:
    """The same by the tile's own statistics."""
    branch, *ends = tensors.operands[_BRANCH:]
    if not _are_dense(context, tensors, [each for each in (branch, *ends) if each is not None]):
        return autograd_kernel.bind_backward(context, tensors)
    read, norm = channels_of(tensors.operands[0]), cast("LocalBatchNorm", context.operator).exact
    vectors = [
        vector_of(each, tensors.gradient(), read.shape[1], fill).numpy()
        for each, fill in zip(ends, (1.0, 0.0), strict=True)
    ]
    eps = read.dtype.type(cast("RectifiedBatchNorm", norm).norm.eps)
    given = (channels_of(tensors.gradient()), read, *vectors, channels_or_none(branch, read), eps)
    return compiled(local_gradients, (*given, *_gradients(tensors, _BRANCH, _WEIGHT)))


def bind_normal(context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
    """Forward by given statistics."""
    eps = cast("RectifiedNormal", context.operator).normal.eps
    return bind_given(context, tensors, eps, rectified_normal)


def bind_normal_backward(context: TileContext, tensors: BackwardTensors) -> Callable[[], None]:
    """Backward of what is rectified by given statistics."""
    _, mean, variance, weight = tensors.operands[:4]
    if not _are_dense(context, tensors, (tensors.results[0], mean, variance)):
        return autograd_kernel.bind_backward(context, tensors)
    read, like = channels_of(tensors.operands[0]), tensors.gradient()
    given = (channels_of(like), read, channels_of(tensors.result()))
    statistics = [tensors.operand(place).numpy() for place in (1, 2)]
    factor = vector_of(weight, like, read.shape[1], 1.0).numpy()
    eps = read.dtype.type(cast("RectifiedNormal", context.operator).normal.eps)
    target, branch, *ends = _gradients(tensors, 5, 3)
    slopes = tuple(_vector(tensors, place) for place in (1, 2))
    return compiled(rectified_normal_gradients, (*given, *statistics, factor, eps, target, branch, slopes, *ends))


def _are_dense(context: TileContext, tensors: BackwardTensors, ends: Sequence[Tensor | None]) -> bool:
    """Whether the kernels go through what a tile reads and writes, and through some tensors that must be there."""
    written = [each for each in tensors.operand_gradients[1:] if each is not None]
    weights = [each for each in tensors.operands[3:] if each is not None]
    there = (tensors.operands[0], tensors.result_gradients[0], tensors.operand_gradients[0])
    return are_channels((*there, *written, *weights, *ends), context)


def _gradients(tensors: BackwardTensors, branch: int, weight: int) -> tuple[Floats, ...]:
    """Where the gradients of the operand, of what was added, of weight and bias come to be.

    Args:
        tensors: What the tile writes.
        branch: Which operand what was added is.
        weight: Which one the weight is; the bias is the next.
    """
    target = channels_of(tensors.operand_gradients[0])
    added = channels_or_none(tensors.operand_gradients[branch], target)
    return target, added, _vector(tensors, weight), _vector(tensors, weight + 1)


def _vector(tensors: BackwardTensors, place: int) -> Floats:
    """Where the gradient of an operand of one value for each channel comes to be; of its own where nobody wants it."""
    found, like = tensors.operand_gradients[place], tensors.gradient()
    return (like.new_empty(like.shape[1]) if found is None else found.view(-1)).numpy()


RECTIFIED = Kernels(bind_rectified, bind_rectified_backward)
LOCAL = Kernels(bind_local, bind_local_backward)
NORMAL = Kernels(bind_normal, bind_normal_backward)
