"""Pooling on CUDA: a thread per result, and backward a thread per input element, which gathers what windows give it.

Windows are taken in the order of the CPU kernels and nothing is added atomically, so a result is the same every time,
and the CPU's up to the precision of an average's quotients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maniple.operators.library.windows.pooling_kernels import HALF, Bind, kernels_of, window_of
from maniple.operators.operator.operator import TileContext
from maniple.process.error import RequestError
from maniple.runtime.devices.cuda_kernels import FORMS, as_numba, bind_launch, cuda, current_stream, kind_of


@cuda.jit(device=True)
def _place(n: Any, shape: Any) -> Any:
    """The element that a thread takes: image, channel, row and column. Quotients of words of 32 bits are quick."""
    rest, columns = np.uint32(n), np.uint32(shape[3])
    lines = np.uint32(rest // columns)
    rows, channels = np.uint32(shape[2]), np.uint32(shape[1])
    planes = np.uint32(lines // rows)
    images = np.uint32(planes // channels)
    place = np.uint64(images), np.uint64(planes - images * channels)
    return place[0], place[1], np.int64(lines - planes * rows), np.int64(rest - lines * columns)


@cuda.jit(device=True)
def _windows(at: int, before: int, reach: int, stride: int, count: int) -> tuple[int, int]:
    """The first window that reaches an input row, and the one after the last."""
    last, step = at + before, np.uint32(stride)
    low = last - reach + stride
    first = np.int64(np.uint32(low) // step) if low > 0 else 0
    return first, min(np.int64(np.uint32(last) // step) + 1, count)


@lru_cache(maxsize=16)
def max_forward(dtype: torch.dtype) -> Any:
    """The kernel of the greatest element of each window and of its place."""
    load, store = FORMS[dtype].load, FORMS[dtype].store

    def forward(x: Any, out: Any, places: Any, ky: int, kx: int, sy: int, sx: int, top: int, left: int) -> None:
        height, width = x.shape[2], x.shape[3]
        for n in range(cuda.grid(1), out.size, cuda.gridsize(1)):
            b, c, r, q = _place(n, out.shape)
            plane = x[b, c]
            first_row, first = max(r * sy - top, 0), max(q * sx - left, 0)
            best, place = load(plane[np.uint64(first_row), np.uint64(first)]), (first_row << HALF) | first
            for i in range(first_row, min(r * sy - top + ky, height)):
                for j in range(first, min(q * sx - left + kx, width)):
                    value = load(plane[np.uint64(i), np.uint64(j)])
                    if value > best or value != value:  # noqa: PLR0124  (a NaN wins, as in torch)
                        best, place = value, (i << HALF) | j
            out[b, c, np.uint64(r), np.uint64(q)] = store(best)
            places[b, c, np.uint64(r), np.uint64(q)] = place

    return cuda.jit(forward)


@lru_cache(maxsize=16)
def max_backward(dtype: torch.dtype) -> Any:
    """The kernel of what the windows whose greatest it is give an element."""
    load, store, zero = FORMS[dtype].load, FORMS[dtype].store, kind_of(dtype)(0)

    def backward(
        gradient: Any, places: Any, target: Any, ky: int, kx: int, sy: int, sx: int, top: int, left: int
    ) -> None:
        for n in range(cuda.grid(1), target.size, cuda.gridsize(1)):
            b, c, i, j = _place(n, target.shape)
            slopes, chosen = gradient[b, c], places[b, c]
            own, total = (i << HALF) | j, zero
            row, last_row = _windows(i, top, ky, sy, gradient.shape[2])
            column, last = _windows(j, left, kx, sx, gradient.shape[3])
            for r in range(row, last_row):
                for q in range(column, last):
                    if chosen[np.uint64(r), np.uint64(q)] == own:
                        total += load(slopes[np.uint64(r), np.uint64(q)])
            target[b, c, np.uint64(i), np.uint64(j)] = store(total)

    return cuda.jit(backward)


@lru_cache(maxsize=16)
def avg_forward(dtype: torch.dtype) -> Any:
    """The kernel of the mean of each window, whose padding counts as zeros."""
    load, store, kind = FORMS[dtype].load, FORMS[dtype].store, kind_of(dtype)

    def forward(x: Any, out: Any, ky: int, kx: int, sy: int, sx: int, top: int, left: int) -> None:
        height, width = x.shape[2], x.shape[3]
        for n in range(cuda.grid(1), out.size, cuda.gridsize(1)):
            b, c, r, q = _place(n, out.shape)
            plane, total = x[b, c], kind(0)
            for i in range(max(r * sy - top, 0), min(r * sy - top + ky, height)):
                for j in range(max(q * sx - left, 0), min(q * sx - left + kx, width)):
                    total += load(plane[np.uint64(i), np.uint64(j)])
            out[b, c, np.uint64(r), np.uint64(q)] = store(total / kind(ky * kx))

    return cuda.jit(forward)


@lru_cache(maxsize=16)
def avg_backward(dtype: torch.dtype) -> Any:
    """The kernel of what the windows that reach an element give it."""
    load, store, kind = FORMS[dtype].load, FORMS[dtype].store, kind_of(dtype)

    def backward(gradient: Any, target: Any, ky: int, kx: int, sy: int, sx: int, top: int, left: int) -> None:
        for n in range(cuda.grid(1), target.size, cuda.gridsize(1)):
            b, c, i, j = _place(n, target.shape)
            slopes, total, count = gradient[b, c], kind(0), kind(ky * kx)
            row, last_row = _windows(i, top, ky, sy, gradient.shape[2])
            column, last = _windows(j, left, kx, sx, gradient.shape[3])
            for r in range(row, last_row):
                for q in range(column, last):
                    total += load(slopes[np.uint64(r), np.uint64(q)]) / count
            target[b, c, np.uint64(i), np.uint64(j)] = store(total)

    return cuda.jit(backward)


MOST_ELEMENTS = 2**32 - 1
"""Of a tensor, of which each thread finds its element by quotients of 32 bits."""


def _bind(kernel: Callable[[torch.dtype], Any], *, writes: int) -> Bind:
    """The kernel bound to tensors and to the window, with a thread for each element of the tensor that it writes."""

    def bind(context: TileContext, tensors: tuple[Tensor, ...]) -> Callable[[], None]:
        arrays, written = tuple(as_numba(tensor) for tensor in tensors), tensors[writes]
        if written.numel() > MOST_ELEMENTS:
            raise RequestError(
                f"{context.operator.name}: expected a tile of at most {MOST_ELEMENTS} elements on a GPU, "
                f"got {written.numel()}; cut the batch or the channels into more parts"
            )
        arguments = (*arrays, *window_of(context))
        return bind_launch(kernel(written.dtype), written.numel(), arguments, current_stream())

    return bind


MAX_POOL_KERNELS = kernels_of(_bind(max_forward, writes=1), _bind(max_backward, writes=-1))
AVG_POOL_KERNELS = kernels_of(_bind(avg_forward, writes=1), _bind(avg_backward, writes=-1))
