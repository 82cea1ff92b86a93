"""Kernels of pooling, compiled by numba: windows are clipped in place, so no tile needs padded scratch.

Row ``j`` of the window of output row ``r`` is input row ``r*stride - below + j``; rows outside the tile's input are
padding. (torch's own max pooling
of small images takes three times as long as these loops.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import numba
import numpy as np
import numpy.typing as npt
from torch import Tensor

from maniple.operators.operator.compiled_kernel import compile_kernel
from maniple.operators.operator.operator import BackwardTensors, ForwardTensors, Kernels, TileContext

if TYPE_CHECKING:
    from maniple.operators.library.windows.pooling import AvgPool2d, MaxPool2d
    from maniple.process.compilation.numba_internals import Dispatcher

Floats = npt.NDArray[np.float64]  # or of float32: numba compiles for what comes
Places = npt.NDArray[np.int64]

# What max pooling saves of a window is its maximum's row and column in the tile's input, one in each half of an int64.
HALF = 32
_LOW = (1 << HALF) - 1


@numba.njit(cache=True, nogil=True)
def _max_forward(
    x: Floats, out: Floats, places: Places, ky: int, kx: int, sy: int, sx: int, top: int, left: int
) -> None:
    height, width = x.shape[2], x.shape[3]
    for b in range(out.shape[0]):
        for c in range(out.shape[1]):
            plane = x[b, c]
            for r in range(out.shape[2]):
                first_row, last_row = max(r * sy - top, 0), min(r * sy - top + ky, height)
                for q in range(out.shape[3]):
                    first, last = max(q * sx - left, 0), min(q * sx - left + kx, width)
                    best, place = plane[first_row, first], (first_row << HALF) | first
                    # Which element wins is random, so a selection is faster than a branch. The unrolled case is 2x2.
                    if last_row - first_row == 2 and last - first == 2:
                        for i in range(2):
                            for j in range(2):
                                value = plane[np.uint64(first_row + i), np.uint64(first + j)]
                                wins = (value > best) | np.isnan(value)  # a NaN wins, as in torch
                                best = value if wins else best
                                place = ((first_row + i) << HALF) | (first + j) if wins else place
                    else:
                        for i in range(first_row, last_row):
                            for j in range(first, last):
                                value = plane[np.uint64(i), np.uint64(j)]
                                wins = (value > best) | np.isnan(value)
                                best = value if wins else best
                                place = (i << HALF) | j if wins else place
                    out[b, c, r, q] = best
                    places[b, c, r, q] = place


@numba.njit(cache=True, nogil=True)
def _max_backward(gradient: Floats, places: Places, target: Floats) -> None:
    target[:] = 0
    for b in range(gradient.shape[0]):
        for c in range(gradient.shape[1]):
            plane = target[b, c]
            for r in range(gradient.shape[2]):
                for q in range(gradient.shape[3]):
                    place = places[b, c, r, q]
                    plane[np.uint64(place >> HALF), np.uint64(place & _LOW)] += gradient[b, c, r, q]


@numba.njit(cache=True, nogil=True)
def _avg_forward(x: Floats, out: Floats, ky: int, kx: int, sy: int, sx: int, top: int, left: int) -> None:
    height, width = x.shape[2], x.shape[3]
    for b in range(out.shape[0]):
        for c in range(out.shape[1]):
            for r in range(out.shape[2]):
                for q in range(out.shape[3]):
                    total = x.dtype.type(0)
                    for i in range(max(r * sy - top, 0), min(r * sy - top + ky, height)):
                        for j in range(max(q * sx - left, 0), min(q * sx - left + kx, width)):
                            total += x[b, c, i, j]
                    out[b, c, r, q] = total / (ky * kx)


@numba.njit(cache=True, nogil=True)
def _avg_backward(gradient: Floats, target: Floats, ky: int, kx: int, sy: int, sx: int, top: int, left: int) -> None:
    height, width = target.shape[2], target.shape[3]
    target[:] = 0
    for b in range(gradient.shape[0]):
        for c in range(gradient.shape[1]):
            for r in range(gradient.shape[2]):
                for q in range(gradient.shape[3]):
                    share = gradient[b, c, r, q] / (ky * kx)
                    for i in range(max(r * sy - top, 0), min(r * sy - top + ky, height)):
                        for j in range(max(q * sx - left, 0), min(q * sx - left + kx, width)):
                            target[b, c, i, j] += share


def window_of(context: TileContext) -> tuple[int, int, int, int, int, int]:
    """Kernel, stride, and padding below of rows and columns."""
    operator = cast("MaxPool2d | AvgPool2d", context.operator)
    (top, _), (left, _) = context.tile.padding
    return (*operator.kernel_size, *operator.stride, top, left)


Bind = Callable[[TileContext, tuple[Tensor, ...]], Callable[[], None]]
"""Binds a kernel to the tensors of a tile, of which it writes all that forward gives and the last one of backward."""


def kernels_of(forward: Bind, backward: Bind) -> Kernels:
    """A pool's kernels on a kind of device.

    Args:
        forward: Of the operand, the result and what is saved.
        backward: Of the result's gradient, what was saved, and the operand's gradient.
    """

    def bind_forward(context: TileContext, tensors: ForwardTensors) -> Callable[[], None]:
        return forward(context, (tensors.operand(0), tensors.results[0], *tensors.saved))

    def bind_backward(context: TileContext, tensors: BackwardTensors) -> Callable[[], None]:
        return backward(context, (tensors.gradient(), *tensors.saved, tensors.target()))

    return Kernels(bind_forward, bind_backward)


def _bind(kernel: Dispatcher[Callable[..., None]]) -> Bind:
    """The kernel bound to arrays that share the tensors' memory, and to the window."""
    return lambda context, tensors: compile_kernel(
        kernel, (*(tensor.numpy() for tensor in tensors), *window_of(context))
    )


def _bind_max_backward(context: TileContext, tensors: tuple[Tensor, ...]) -> Callable[[], None]:
    """The places that forward saved say where gradients go."""
    return compile_kernel(_max_backward, tuple(tensor.numpy() for tensor in tensors))


MAX_POOL_KERNELS = kernels_of(_bind(_max_forward), _bind_max_backward)
AVG_POOL_KERNELS = kernels_of(_bind(_avg_forward), _bind(_avg_backward))
