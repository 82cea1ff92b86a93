"""Pooling on CUDA: threads share a line of results, and backward one of the input, which gathers what windows give.

Windows are taken in the order of the CPU kernels and nothing is added atomically, so a result is the same every time,
and the CPU's up to the precision of an average's quotients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import inf, prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maniple.operators.library.windows.pooling_kernels import HALF, Bind, kernels_of, window_of
from maniple.operators.operator.operator import TileContext
from maniple.process.error import RequestError
from maniple.runtime.devices.cuda_kernels import (
    EVERY_BLOCK,
    FORMS,
    as_numba,
    bind_launch,
    cuda,
    current_stream,
    kind_of,
)

LANES = 32
"""The most threads that share a line of a tensor."""
MOST_LINES = 2**32 - 1
"""Of a tensor, whose lines are found by quotients of 32 bits."""
Window = tuple[int, int, int, int, int, int]
"""See ``pooling_kernels.window_of``; a kernel is compiled for one, so that its loops and quotients are none."""


@cuda.jit(device=True)
def _line(number: Any, shape: Any) -> tuple[Any, Any, Any]:
    """Image, channel and row of a line."""
    line, rows, channels = np.uint32(number), np.uint32(shape[2]), np.uint32(shape[1])
    plane = np.uint32(line // rows)
    image = np.uint32(plane // channels)
    return np.uint64(image), np.uint64(plane - image * channels), np.int64(line - plane * rows)


@lru_cache(maxsize=64)
def max_forward(dtype: torch.dtype, window: Window, lanes: int) -> Any:
    """The kernel of the greatest element of each window and of its place.

    Args:
        dtype: Of the elements.
        window: What is pooled.
        lanes: How many threads share a line.
    """
    load, store, lowest = FORMS[dtype].load, FORMS[dtype].store, kind_of(dtype)(-inf)
    ky, kx, sy, sx, top, left = window

    def forward(x: Any, out: Any, places: Any) -> None:
        height, width, lines = x.shape[2], x.shape[3], out.shape[0] * out.shape[1] * out.shape[2]
        for number in range(cuda.grid(1) // lanes, lines, cuda.gridsize(1) // lanes):
            b, c, r = _line(number, out.shape)
            above = r * sy - top
            for q in range(cuda.threadIdx.x % lanes, out.shape[3], lanes):
                before = q * sx - left
                best, place = lowest, (max(above, 0) << HALF) | max(before, 0)
                for i in range(above, above + ky):
                    for j in range(before, before + kx):
                        if 0 <= i < height and 0 <= j < width:
                            value = load(x[b, c, np.uint64(i), np.uint64(j)])
                            if value > best or value != value:  # noqa: PLR0124  (a NaN wins, as in torch)
                                best, place = value, (i << HALF) | j
                out[b, c, np.uint64(r), np.uint64(q)] = store(best)
                places[b, c, np.uint64(r), np.uint64(q)] = place

    return cuda.jit(forward)


@lru_cache(maxsize=64)
def max_backward(dtype: torch.dtype, window: Window, lanes: int) -> Any:
    """The kernel of what the windows whose greatest it is give an element; see ``max_forward``."""
    load, store, zero = FORMS[dtype].load, FORMS[dtype].store, kind_of(dtype)(0)
    ky, kx, sy, sx, top, left = window
    down, across = -(-ky // sy), -(-kx // sx)  # windows that reach an element

    def backward(gradient: Any, places: Any, target: Any) -> None:
        rows, columns, lines = gradient.shape[2], gradient.shape[3], target.shape[0] * target.shape[1] * target.shape[2]
        for number in range(cuda.grid(1) // lanes, lines, cuda.gridsize(1) // lanes):
            b, c, i = _line(number, target.shape)
            row = np.int64(np.uint32(i + top) // np.uint32(sy)) - (down - 1)
            for j in range(cuda.threadIdx.x % lanes, target.shape[3], lanes):
                column = np.int64(np.uint32(j + left) // np.uint32(sx)) - (across - 1)
                own, total = (i << HALF) | j, zero
                for r in range(row, row + down):
                    for q in range(column, column + across):
                        if 0 <= r < rows and 0 <= q < columns and places[b, c, np.uint64(r), np.uint64(q)] == own:
                            total += load(gradient[b, c, np.uint64(r), np.uint64(q)])
                target[b, c, np.uint64(i), np.uint64(j)] = store(total)

    return cuda.jit(backward)


@lru_cache(maxsize=64)
def avg_forward(dtype: torch.dtype, window: Window, lanes: int) -> Any:
    """The kernel of the mean of each window, whose padding counts as zeros; see ``max_forward``."""
    load, store, kind = FORMS[dtype].load, FORMS[dtype].store, kind_of(dtype)
    ky, kx, sy, sx, top, left = window
    zero: Any = kind(0)
    count: Any = kind(ky * kx)

    def forward(x: Any, out: Any) -> None:
        height, width, lines = x.shape[2], x.shape[3], out.shape[0] * out.shape[1] * out.shape[2]
        for number in range(cuda.grid(1) // lanes, lines, cuda.gridsize(1) // lanes):
            b, c, r = _line(number, out.shape)
            above = r * sy - top
            for q in range(cuda.threadIdx.x % lanes, out.shape[3], lanes):
                before, total = q * sx - left, zero
                for i in range(above, above + ky):
                    for j in range(before, before + kx):
                        if 0 <= i < height and 0 <= j < width:
                            total += load(x[b, c, np.uint64(i), np.uint64(j)])
                out[b, c, np.uint64(r), np.uint64(q)] = store(total / count)

    return cuda.jit(forward)


@lru_cache(maxsize=64)
def avg_backward(dtype: torch.dtype, window: Window, lanes: int) -> Any:
    """The kernel of what the windows that reach an element give it; see ``max_forward``."""
    load, store, kind = FORMS[dtype].load, FORMS[dtype].store, kind_of(dtype)
    ky, kx, sy, sx, top, left = window
    zero: Any = kind(0)
    count: Any = kind(ky * kx)
    down, across = -(-ky // sy), -(-kx // sx)

    def backward(gradient: Any, target: Any) -> None:
        rows, columns, lines = gradient.shape[2], gradient.shape[3], target.shape[0] * target.shape[1] * target.shape[2]
        for number in range(cuda.grid(1) // lanes, lines, cuda.gridsize(1) // lanes):
            b, c, i = _line(number, target.shape)
            row = np.int64(np.uint32(i + top) // np.uint32(sy)) - (down - 1)
            for j in range(cuda.threadIdx.x % lanes, target.shape[3], lanes):
                column, total = np.int64(np.uint32(j + left) // np.uint32(sx)) - (across - 1), zero
                for r in range(row, row + down):
                    for q in range(column, column + across):
                        reaches = i + top - r * sy < ky and j + left - q * sx < kx
                        if reaches and 0 <= r < rows and 0 <= q < columns:
                            total += load(gradient[b, c, np.uint64(r), np.uint64(q)]) / count
                target[b, c, np.uint64(i), np.uint64(j)] = store(total)

    return cuda.jit(backward)


def _bind(kernel: Callable[[torch.dtype, Window, int], Any], *, writes: int) -> Bind:
    """The kernel bound to tensors, with threads for each line of the tensor that it writes."""

    def bind(context: TileContext, tensors: tuple[Tensor, ...]) -> Callable[[], None]:
        written = tensors[writes]
        lines, columns = prod(written.shape[:3]), written.shape[3]
        if lines > MOST_LINES:
            raise RequestError(
                f"{context.operator.name}: expected a tile of at most {MOST_LINES} lines on a GPU, got {lines}; "
                "cut the batch or the channels into more parts"
            )
        lanes = min(LANES, 1 << (columns - 1).bit_length())
        made = kernel(written.dtype, window_of(context), lanes)
        return bind_launch(made, lines * lanes, tuple(map(as_numba, tensors)), current_stream(), most=EVERY_BLOCK)

    return bind


MAX_POOL_KERNELS = kernels_of(_bind(max_forward, writes=1), _bind(max_backward, writes=-1))
AVG_POOL_KERNELS = kernels_of(_bind(avg_forward, writes=1), _bind(avg_backward, writes=-1))
