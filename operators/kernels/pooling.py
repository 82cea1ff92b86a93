"""Kernels of pooling, compiled by numba: windows are clipped in place, so no tile needs padded scratch.

Row ``j`` of the window of output row ``r`` is input row ``r*stride - below + j``; rows outside the tile's input are
padding. (torch's own max pooling of small images takes over ten times as long as these loops.)
"""

from __future__ import annotations

from collections.abc import Callable

import numba
from torch import Tensor

from maniple.operators.library.pooling import AvgPool2d, MaxPool2d
from maniple.operators.operator import Kernels, TileContext

# What max pooling saves of a window is its maximum's row and column in the tile's input, one in each half of an int64.
_HALF = 32
_LOW = (1 << _HALF) - 1


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _max_forward(x, out, places, ky, kx, sy, sx, top, left):  # type: ignore[no-untyped-def]
    height, width = x.shape[2], x.shape[3]
    for b in range(out.shape[0]):
        for c in range(out.shape[1]):
            for r in range(out.shape[2]):
                first_row, last_row = max(r * sy - top, 0), min(r * sy - top + ky, height)
                for q in range(out.shape[3]):
                    first, last = max(q * sx - left, 0), min(q * sx - left + kx, width)
                    best, row, column = x[b, c, first_row, first], first_row, first
                    for i in range(first_row, last_row):
                        for j in range(first, last):
                            value = x[b, c, i, j]
                            if value > best or value != value:  # a NaN wins, as in torch
                                best, row, column = value, i, j
                    out[b, c, r, q] = best
                    places[b, c, r, q] = (row << _HALF) | column


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _max_backward(gradient, places, target):  # type: ignore[no-untyped-def]
    target[:] = 0
    for b in range(gradient.shape[0]):
        for c in range(gradient.shape[1]):
            for r in range(gradient.shape[2]):
                for q in range(gradient.shape[3]):
                    place = places[b, c, r, q]
                    target[b, c, place >> _HALF, place & _LOW] += gradient[b, c, r, q]


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _avg_forward(x, out, ky, kx, sy, sx, top, left):  # type: ignore[no-untyped-def]
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


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _avg_backward(gradient, target, ky, kx, sy, sx, top, left, height, width):  # type: ignore[no-untyped-def]
    target[:] = 0
    for b in range(gradient.shape[0]):
        for c in range(gradient.shape[1]):
            for r in range(gradient.shape[2]):
                for q in range(gradient.shape[3]):
                    share = gradient[b, c, r, q] / (ky * kx)
                    for i in range(max(r * sy - top, 0), min(r * sy - top + ky, height)):
                        for j in range(max(q * sx - left, 0), min(q * sx - left + kx, width)):
                            target[b, c, i, j] += share


def _window(context: TileContext) -> tuple[int, int, int, int, int, int]:
    """Kernel, stride, and padding below of rows and columns."""
    operator = context.operator
    if not isinstance(operator, MaxPool2d | AvgPool2d):
        raise TypeError(f"expected a pool, got {operator.name}")
    (top, _), (left, _) = context.tile.padding
    return (*operator.kernel_size, *operator.stride, top, left)


def bind_max(
    context: TileContext, operands: tuple[Tensor | None, ...], result: Tensor, saved: tuple[Tensor, ...]
) -> Callable[[], None]:
    """The maximum of every window and its place; see ``maniple.operators.operator.BindForward``."""
    (x,) = operands
    if x is None:
        raise TypeError("max_pool2d: forward needs its operand")
    return _call(_max_forward, (x, result, saved[0]), _window(context))


def bind_max_backward(
    context: TileContext,
    result_gradient: Tensor | None,
    operands: tuple[Tensor | None, ...],
    result: Tensor | None,
    saved: tuple[Tensor, ...],
    operand_gradients: tuple[Tensor | None, ...],
) -> Callable[[], None]:
    """Each gradient to its window's maximum; see ``maniple.operators.operator.BindBackward``."""
    (target,) = operand_gradients
    if result_gradient is None or target is None:
        raise TypeError("max_pool2d: backward needs the result's gradient and a place for the operand's")
    return _call(_max_backward, (result_gradient, saved[0], target), ())


def bind_avg(
    context: TileContext, operands: tuple[Tensor | None, ...], result: Tensor, saved: tuple[Tensor, ...]
) -> Callable[[], None]:
    """The mean of every window; see ``maniple.operators.operator.BindForward``."""
    (x,) = operands
    if x is None:
        raise TypeError("avg_pool2d: forward needs its operand")
    return _call(_avg_forward, (x, result), _window(context))


def bind_avg_backward(
    context: TileContext,
    result_gradient: Tensor | None,
    operands: tuple[Tensor | None, ...],
    result: Tensor | None,
    saved: tuple[Tensor, ...],
    operand_gradients: tuple[Tensor | None, ...],
) -> Callable[[], None]:
    """Each gradient shared by its window; see ``maniple.operators.operator.BindBackward``."""
    (target,) = operand_gradients
    rect = context.tile.operand_rects[0]
    if result_gradient is None or target is None or rect is None:
        raise TypeError("avg_pool2d: backward needs the result's gradient and a place for the operand's")
    height, width = rect.shape[2:]
    return _call(_avg_backward, (result_gradient, target), (*_window(context), height, width))


def _call(kernel: Callable[..., None], tensors: tuple[Tensor, ...], numbers: tuple[int, ...]) -> Callable[[], None]:
    """The kernel bound to arrays that share the tensors' memory, compiled now rather than in the first step."""
    arguments = (*(tensor.numpy() for tensor in tensors), *numbers)
    prepare(kernel, arguments)
    return lambda: kernel(*arguments)


MAX_POOL_KERNELS = Kernels(bind_max, bind_max_backward)
AVG_POOL_KERNELS = Kernels(bind_avg, bind_avg_backward)
