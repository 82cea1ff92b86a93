"""Pooling on CUDA: a thread per result, and backward a thread per input element, which gathers what windows give it.

Windows are taken in the order of the CPU kernels and nothing is added atomically, so a result is the same every time,
and the CPU's up to the precision of an average's quotients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from maniple.operators.library.windows.pooling_kernels import HALF, Bind, kernels_of, window_of
from maniple.operators.operator.operator import TileContext
from maniple.runtime.devices.cuda_kernels import as_numba, bind_launch, cuda, current_stream


@cuda.jit(device=True)
def _place(n: int, shape: Any) -> tuple[int, int, int, int]:
    """The element that a thread takes: image, channel, row and column."""
    channels, rows, columns = shape[1], shape[2], shape[3]
    return n // (columns * rows * channels), n // (columns * rows) % channels, n // columns % rows, n % columns


@cuda.jit
def _max_forward(x: Any, out: Any, places: Any, ky: int, kx: int, sy: int, sx: int, top: int, left: int) -> None:
    height, width = x.shape[2], x.shape[3]
    for n in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        b, c, r, q = _place(n, out.shape)
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
    for n in range(cuda.grid(1), target.size, cuda.gridsize(1)):
        b, c, i, j = _place(n, target.shape)
        total = target.dtype.type(0)
        for r in range(_first_window(i, top, ky, sy), min((i + top) // sy + 1, gradient.shape[2])):
            for q in range(_first_window(j, left, kx, sx), min((j + left) // sx + 1, gradient.shape[3])):
                if places[b, c, r, q] == (i << HALF) | j:
                    total += gradient[b, c, r, q]
        target[b, c, i, j] = total


@cuda.jit
def _avg_forward(x: Any, out: Any, ky: int, kx: int, sy: int, sx: int, top: int, left: int) -> None:
    height, width = x.shape[2], x.shape[3]
    for n in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        b, c, r, q = _place(n, out.shape)
        total = x.dtype.type(0)
        for i in range(max(r * sy - top, 0), min(r * sy - top + ky, height)):
            for j in range(max(q * sx - left, 0), min(q * sx - left + kx, width)):
                total += x[b, c, i, j]
        out[b, c, r, q] = total / x.dtype.type(ky * kx)


@cuda.jit
def _avg_backward(gradient: Any, target: Any, ky: int, kx: int, sy: int, sx: int, top: int, left: int) -> None:
    for n in range(cuda.grid(1), target.size, cuda.gridsize(1)):
        b, c, i, j = _place(n, target.shape)
        total, count = target.dtype.type(0), target.dtype.type(ky * kx)
        for r in range(_first_window(i, top, ky, sy), min((i + top) // sy + 1, gradient.shape[2])):
            for q in range(_first_window(j, left, kx, sx), min((j + left) // sx + 1, gradient.shape[3])):
                total += gradient[b, c, r, q] / count
        target[b, c, i, j] = total


def _bind(kernel: Any, *, writes: int) -> Bind:
    """The kernel bound to tensors and to the window, with a thread for each element of the tensor that it writes."""

    def bind(context: TileContext, tensors: tuple[Tensor, ...]) -> Callable[[], None]:
        arrays = tuple(as_numba(tensor) for tensor in tensors)
        return bind_launch(kernel, tensors[writes].numel(), (*arrays, *window_of(context)), current_stream())

    return bind


MAX_POOL_KERNELS = kernels_of(_bind(_max_forward, writes=1), _bind(_max_backward, writes=-1))
AVG_POOL_KERNELS = kernels_of(_bind(_avg_forward, writes=1), _bind(_avg_backward, writes=-1))
