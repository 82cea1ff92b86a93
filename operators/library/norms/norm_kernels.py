"""Compiled norms: layer norm both ways and what batch norm shares with it, each in one pass or two, written in place.

torch's kernels make tensors that are then copied, and go through what they read once more for the weights. Here, of a
row (of a layer norm) or a channel (of a batch norm) with the mean m and one over the deviation r that forward saved:

    h = (x - m) r        db = sum g        dw = sum g h        dx = r (g w - mean(g w) - h mean(g w h))

Sums within a row may be taken in any order, as vectors have it. The kernels go through rows that lie dense, on one
core; of other tiles, and where a processor has several cores, norms are torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, cast

import numba
import numpy as np
import numpy.typing as npt
from torch import Tensor

from maniple.operators.operator import autograd_kernel
from maniple.operators.operator.compiled_kernel import compile_kernel
from maniple.operators.operator.operator import BackwardTensors, ForwardTensors, Kernels, TileContext

if TYPE_CHECKING:
    from maniple.operators.library.norms.normalization import LayerNorm
    from maniple.process.compilation.numba_internals import Dispatcher

Floats = npt.NDArray[np.float64]  # or of float32: numba compiles for what comes
Float = np.float64  # or float32
ANY_ORDER = {"reassoc", "contract"}
"""What the compiler may do to a sum: take its parts in another order, and multiply and add at once."""


@numba.njit(cache=True, nogil=True, fastmath=ANY_ORDER)
def layer_norm(
    x: Floats, weight: Floats, bias: Floats, eps: Float, result: Floats, mean: Floats, scale: Floats
) -> None:
    """Normalize rows.

    Args:
        x: (rows, width).
        weight: (width,).
        bias: (width,).
        eps: added to the variance, of the same kind of number.
        result: (rows, width): written.
        mean: (rows,): written.
        scale: (rows,): one over the deviation, written.
    """
    rows, width = x.shape
    kind = x.dtype.type
    for row in range(rows):
        read, target, total, square = x[row], result[row], kind(0), kind(0)
        for place in range(width):
            total += read[place]
        middle = total / kind(width)
        for place in range(width):
            square += (read[place] - middle) * (read[place] - middle)
        own = kind(1) / np.sqrt(square / kind(width) + eps)
        mean[row], scale[row] = middle, own
        for place in range(width):
            target[place] = (read[place] - middle) * own * weight[place] + bias[place]


@numba.njit(cache=True, nogil=True, fastmath=ANY_ORDER)
def layer_norm_gradients(
    gradient: Floats,
    x: Floats,
    mean: Floats,
    scale: Floats,
    weight: Floats,
    result: Floats,
    weight_gradient: Floats,
    bias_gradient: Floats,
) -> None:
    """The gradients of rows; see above.

    Args:
        gradient: (rows, width): of the result.
        x: (rows, width).
        mean: (rows,).
        scale: (rows,): one over the deviation.
        weight: (width,).
        result: (rows, width): comes to be the operand's gradient.
        weight_gradient: (width,): comes to be the weight's.
        bias_gradient: (width,): comes to be the bias'.
    """
    rows, width = x.shape
    kind = x.dtype.type
    weight_gradient[:] = kind(0)
    bias_gradient[:] = kind(0)
    for row in range(rows):
        given, read, target = gradient[row], x[row], result[row]
        middle, own, total, product = mean[row], scale[row], kind(0), kind(0)
        for place in range(width):
            normal = (read[place] - middle) * own
            weighted = given[place] * weight[place]
            total += weighted
            product += weighted * normal
            weight_gradient[place] += given[place] * normal
            bias_gradient[place] += given[place]
        total /= kind(width)
        product /= kind(width)
        for place in range(width):
            normal = (read[place] - middle) * own
            target[place] = (given[place] * weight[place] - total - normal * product) * own


def are_rows(context: TileContext, tensors: Sequence[Tensor | None]) -> bool:
    """Whether the kernels go through all of the tensors."""
    return context.cores == 1 and all(each is not None and each.is_contiguous() and each.numel() for each in tensors)


def vector_of(tensor: Tensor | None, like: Tensor, size: int, fill: float) -> Tensor:
    """A weight as one row; one that is not there changes nothing."""
    return like.new_full((size,), fill) if tensor is None else tensor.view(size)


def bind_layer_norm(context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
    """Forward of a layer norm."""
    x, weight, bias = (*tensors.operands, None, None)[:3]
    ends = [each for each in (weight, bias) if each is not None]
    if not are_rows(context, (x, *tensors.results, *tensors.saved, *ends)):
        return autograd_kernel.bind_forward(context, tensors)
    operator = cast("LayerNorm", context.operator)
    read, (result,), (mean, scale) = cast("Tensor", x), tensors.results, tensors.saved
    width = prod(operator.normalized_shape)
    vectors = vector_of(weight, read, width, 1.0).numpy(), vector_of(bias, read, width, 0.0).numpy()
    rows, written = read.view(-1, width).numpy(), result.view(-1, width).numpy()
    eps = rows.dtype.type(operator.eps)
    return compiled(layer_norm, (rows, *vectors, eps, written, mean.view(-1).numpy(), scale.view(-1).numpy()))


def bind_layer_norm_backward(context: TileContext, tensors: BackwardTensors) -> Callable[[], None]:
    """Backward of a layer norm."""
    width = prod(cast("LayerNorm", context.operator).normalized_shape)
    return bind_gradients(context, tensors, 1, layer_norm_gradients, (-1, width), width)


def bind_gradients(
    context: TileContext,
    tensors: BackwardTensors,
    place: int,
    kernel: Callable[..., None],
    shape: tuple[int, ...],
    size: int,
) -> Callable[[], None]:
    """A kernel of gradients, where forward saved and the tile lies in rows.

    Args:
        context: The tile.
        tensors: What it reads and writes.
        place: Which operand the weight is; the bias is the next.
        kernel: The kernel.
        shape: As which it goes through the operand.
        size: The elements of the weight.
    """
    x, gradient, target = tensors.operands[0], tensors.result_gradients[0], tensors.operand_gradients[0]
    weight = (*tensors.operands, None)[place]
    ends = [(*tensors.operand_gradients, None, None)[place], (*tensors.operand_gradients, None, None)[place + 1]]
    there = [each for each in (weight, *ends) if each is not None]
    dense = are_rows(context, (x, gradient, target, *tensors.saved, *there))
    if not dense or not autograd_kernel.has_saved(context, tensors):
        return autograd_kernel.bind_backward(context, tensors)
    read = cast("Tensor", x)
    given = [cast("Tensor", each).view(shape).numpy() for each in (gradient, x)]
    kept = [each.view(-1).numpy() for each in tensors.saved]
    made = [read.new_empty(size) if each is None else each.view(size) for each in ends]
    result = cast("Tensor", target).view(shape).numpy()
    vector = vector_of(weight, read, size, 1.0).numpy()
    return compiled(kernel, (*given, *kept, vector, result, *(each.numpy() for each in made)))


def compiled(kernel: Callable[..., None], arguments: tuple[object, ...]) -> Callable[[], None]:
    """A kernel of this package with its arguments; see ``compile_kernel``."""
    return compile_kernel(cast("Dispatcher[Callable[..., None]]", kernel), arguments)


LAYER_NORM = Kernels(bind_layer_norm, bind_layer_norm_backward)
