"""Pooling on CUDA: a thread per result, and backward a thread per input element, which gathers what windows give it.

Windows are taken in the order of the CPU kernels and nothing is added atomically, so a result is the same every time,
and the CPU's up to the precision of an average's quotients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from maniple.operators.library.windows.pooling_kernels import HALF, window_of
from maniple.operators.operator.operator import Kernels, TileContext
from maniple.runtime.devices.cuda_kernels import cuda, current_stream, launched, seen_by_numba


@cuda.jit
def _max_forward(x: Any, out: Any, places: Any, ky: int, kx: int, sy: int, sx: int, top: int, left: int) -> None:
    rows, columns, height, width = out.shape[2], out.shape[3], x.shape[2], x.shape[3]
    for n in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        q, r = n % columns, n // columns % rows
        c, b = n // (columns * rows) % out.shape[1], n // (columns * rows * out.shape[1])
        first_row, first = max(r * sy - top, 0), max(q * sx - left, 0)
        best, place = x[b, c, first_row, first], (first_row << HALF) | first
        for i in range(first_row, min(r * sy - top + ky, height)):
            for j in range(first, min(q * sx - left + kx, width)):
                value = x[b, c, i, j]
                if value > best or value != value:  # noqa: PLR0124  (a NaN wins, as in torch)
                    best, place = value, (i << HALF) | j
        out[b, c, r, q] = best
        places[b, c, r, q] = place


@cuda.jit(device=True)
def _first_window(at: int, before: int, reach: int, stride: int) -> int:
    """The first window that reaches an input row."""
    return max(0, (at + before - reach + stride) // stride)


@cuda.jit
def _max_backward(
    gradient: Any, places: Any, target: Any, ky: int, kx: int, sy: int, sx: int, top: int, left: int
) -> None:
    height, width = target.shape[2], target.shape[3]
    for n in range(cuda.grid(1), target.size, cuda.gridsize(1)):
        j, i = n % width, n // width % height
        c, b = n // (width * height) % target.shape[1], n // (width * height * target.shape[1])
        total = target.dtype.type(0)
        for r in range(_first_window(i, top, ky, sy), min((i + top) // sy + 1, gradient.shape[2])):
            for q in range(_first_window(j, left, kx, sx), min((j + left) // sx + 1, gradient.shape[3])):
                if places[b, c, r, q] == (i << HALF) | j:
                    total += gradient[b, c, r, q]
        target[b, c, i, j] = total


@cuda.jit
def _avg_forward(x: Any, out: Any, ky: int, kx: int, sy: int, sx: int, top: int, left: int) -> None:
    rows, columns, height, width = out.shape[2], out.shape[3], x.shape[2], x.shape[3]
    for n in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        q, r = n % columns, n // columns % rows
        c, b = n // (columns * rows) % out.shape[1], n // (columns * rows * out.shape[1])
        total = x.dtype.type(0)
        for i in range(max(r * sy - top, 0), min(r * sy - top + ky, height)):
            for j in range(max(q * sx - left, 0), min(q * sx - left + kx, width)):
                total += x[b, c, i, j]
        out[b, c, r, q] = total / x.dtype.type(ky * kx)


@cuda.jit
def _avg_backward(gradient: Any, target: Any, ky: int, kx: int, sy: int, sx: int, top: int, left: int) -> None:
    height, width = target.shape[2], target.shape[3]
    for n in range(cuda.grid(1), target.size, cuda.gridsize(1)):
        j, i = n % width, n // width % height
        c, b = n // (width * height) % target.shape[1], n // (width * height * target.shape[1])
        total, count = target.dtype.type(0), target.dtype.type(ky * kx)
        for r in range(_first_window(i, top, ky, sy), min((i + top) // sy + 1, gradient.shape[2])):
            for q in range(_first_window(j, left, kx, sx), min((j + left) // sx + 1, gradient.shape[3])):
                total += gradient[b, c, r, q] / count
        target[b, c, i, j] = total


def bind_max(
    context: TileContext, operands: tuple[Tensor | None, ...], results: tuple[Tensor, ...], saved: tuple[Tensor, ...]
) -> Callable[[], None]:
    """The maximum of every window and its place; see ``maniple.operators.operator.operator.BindForward``."""
    return _call(_max_forward, results[0], (operands[0], results[0], saved[0]), context)


def bind_max_backward(
    context: TileContext,
    result_gradients: tuple[Tensor | None, ...],
    operands: tuple[Tensor | None, ...],
    results: tuple[Tensor | None, ...],
    saved: tuple[Tensor, ...],
    operand_gradients: tuple[Tensor | None, ...],
) -> Callable[[], None]:
    """Each gradient to its window's maximum; see ``maniple.operators.operator.operator.BindBackward``."""
    target = operand_gradients[0]
    return _call(_max_backward, target, (result_gradients[0], saved[0], target), context)


def bind_avg(
    context: TileContext, operands: tuple[Tensor | None, ...], results: tuple[Tensor, ...], saved: tuple[Tensor, ...]
) -> Callable[[], None]:
    """The mean of every window; see ``maniple.operators.operator.operator.BindForward``."""
    return _call(_avg_forward, results[0], (operands[0], results[0]), context)


def bind_avg_backward(
    context: TileContext,
    result_gradients: tuple[Tensor | None, ...],
    operands: tuple[Tensor | None, ...],
    results: tuple[Tensor | None, ...],
    saved: tuple[Tensor, ...],
    operand_gradients: tuple[Tensor | None, ...],
) -> Callable[[], None]:
    """Each gradient shared by its window; see ``maniple.operators.operator.operator.BindBackward``."""
    target = operand_gradients[0]
    return _call(_avg_backward, target, (result_gradients[0], target), context)


def _call(
    kernel: Any, written: Tensor | None, tensors: tuple[Tensor | None, ...], context: TileContext
) -> Callable[[], None]:
    """The kernel bound to tensors, with a thread for each element that it writes."""
    if written is None or any(tensor is None for tensor in tensors):
        raise TypeError(f"{context.operator.name}: a tensor is missing")
    arrays = tuple(seen_by_numba(tensor) for tensor in tensors)
    return launched(kernel, written.numel(), (*arrays, *window_of(context)), current_stream())


MAX_POOL_KERNELS = Kernels(bind_max, bind_max_backward)
AVG_POOL_KERNELS = Kernels(bind_avg, bind_avg_backward)
