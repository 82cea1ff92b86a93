"""Stochastic gradient descent on CUDA: one pass over values, gradients and momenta of any number of blocks.

A thread takes four elements in one load of each array, where all lie so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from maniple.operators.training.block_cuda_kernels import ADDRESSES, SIZE, after_fours, chunk_of, table_of
from maniple.operators.training.clipping import NO_NORM, Clipping, bounded, scale
from maniple.operators.training.descent_kernels import descend, heavy, nesterov, plain
from maniple.runtime.devices.cuda_kernels import (
    EVERY_BLOCK,
    FORMS,
    THREADS,
    DeviceArray,
    array_at,
    as_numba,
    bind_launch,
    cuda,
    flat,
    kind_of,
    load_four,
    store_four,
    to_device,
)

if TYPE_CHECKING:
    from maniple.operators.training.block import Block
    from maniple.operators.training.descent import SGD

__all__: list[str] = []


@lru_cache(maxsize=32)
def plain_kernel(value_dtype: torch.dtype, gradient_dtype: torch.dtype, *, wide: bool) -> Any:
    """The kernel without momentum.

    Args:
        value_dtype: Of values.
        gradient_dtype: Of gradients.
        wide: See ``Table``.
    """
    held, load, store = FORMS[value_dtype]
    slope_held, load_slope, _ = FORMS[gradient_dtype]

    @cuda.jit(device=True)
    def one(value: Any, slope: Any, lr: float, decay: float) -> Any:
        return store(plain(load(value), load_slope(slope), lr, decay))

    def update(blocks: Any, owners: Any, lr: float, decay: float) -> None:
        for chunk in range(cuda.blockIdx.x, owners.size, cuda.gridDim.x):
            block, begin, end = chunk_of(blocks, owners, chunk)
            size, thread = blocks[block, SIZE], np.int64(cuda.threadIdx.x)
            values = array_at(blocks[block, ADDRESSES], size, held)
            slopes = array_at(blocks[block, ADDRESSES + 1], size, slope_held)
            rest = after_fours(begin, end) if wide else begin
            for at in range(begin + 4 * thread, rest, 4 * THREADS):
                i = np.uint64(at)
                v, s = load_four(values, i), load_four(slopes, i)
                a, b = one(v[0], s[0], lr, decay), one(v[1], s[1], lr, decay)
                c, d = one(v[2], s[2], lr, decay), one(v[3], s[3], lr, decay)
                store_four(values, i, (a, b, c, d))
            for at in range(rest + thread, end, THREADS):
                values[np.uint64(at)] = one(values[np.uint64(at)], slopes[np.uint64(at)], lr, decay)

    return cuda.jit(update)


@lru_cache(maxsize=32)
def heavy_kernel(value_dtype: torch.dtype, gradient_dtype: torch.dtype, *, ahead: bool, wide: bool) -> Any:
    """The kernel with momentum; see ``plain_kernel``.

    Args:
        value_dtype: Of values and momenta.
        gradient_dtype: Of gradients.
        ahead: Whether the value is ahead of the momentum, as Nesterov has it.
        wide: See ``Table``.
    """
    held, load, store = FORMS[value_dtype]
    slope_held, load_slope, _ = FORMS[gradient_dtype]
    step = nesterov if ahead else heavy

    @cuda.jit(device=True)
    def one(value: Any, slope: Any, buffer: Any, lr: float, decay: float, momentum: float) -> tuple[Any, Any]:
        found, kept = step(load(value), load_slope(slope), load(buffer), lr, decay, momentum)
        return store(found), store(kept)

    def update(blocks: Any, owners: Any, lr: float, decay: float, momentum: float) -> None:
        for chunk in range(cuda.blockIdx.x, owners.size, cuda.gridDim.x):
            block, begin, end = chunk_of(blocks, owners, chunk)
            size, thread = blocks[block, SIZE], np.int64(cuda.threadIdx.x)
            values = array_at(blocks[block, ADDRESSES], size, held)
            slopes = array_at(blocks[block, ADDRESSES + 1], size, slope_held)
            buffers = array_at(blocks[block, ADDRESSES + 2], size, held)
            rest = after_fours(begin, end) if wide else begin
            for at in range(begin + 4 * thread, rest, 4 * THREADS):
                i = np.uint64(at)
                v, s, m = load_four(values, i), load_four(slopes, i), load_four(buffers, i)
                a, e = one(v[0], s[0], m[0], lr, decay, momentum)
                b, f = one(v[1], s[1], m[1], lr, decay, momentum)
                c, g = one(v[2], s[2], m[2], lr, decay, momentum)
                d, h = one(v[3], s[3], m[3], lr, decay, momentum)
                store_four(values, i, (a, b, c, d))
                store_four(buffers, i, (e, f, g, h))
            for at in range(rest + thread, end, THREADS):
                i = np.uint64(at)
                values[i], buffers[i] = one(values[i], slopes[i], buffers[i], lr, decay, momentum)

    return cuda.jit(update)


@lru_cache(maxsize=32)
def _entering(value_dtype: torch.dtype, gradient_dtype: torch.dtype, *, holds: bool, ahead: bool) -> Any:
    """The device function of one element, with the numbers of the step; see ``varying_kernel``."""
    load, store, load_slope = FORMS[value_dtype].load, FORMS[value_dtype].store, FORMS[gradient_dtype].load

    def one(value: Any, slope: Any, buffer: Any, numbers: Any) -> tuple[Any, Any]:
        factor, most, lr, decay, momentum, share = numbers
        found, kept = load(value), buffer
        taken = bounded(load_slope(slope) * factor, most) + decay * found
        if holds and momentum != 0:
            taken, after = descend(taken, load(buffer), momentum, share, ahead)
            kept = store(after)
        return store(found - lr * taken), kept

    return cuda.jit(one, device=True)


@lru_cache(maxsize=32)
def varying_kernel(
    value_dtype: torch.dtype, gradient_dtype: torch.dtype, *, holds: bool, ahead: bool, wide: bool
) -> Any:
    """The kernel whose numbers enter each step; the first thread of each block brings them into their form.

    Args:
        value_dtype: Of values and momenta.
        gradient_dtype: Of gradients.
        holds: Whether there is a momentum.
        ahead: See ``heavy_kernel``.
        wide: See ``Table``.
    """
    held, slope_held, kind = FORMS[value_dtype].held, FORMS[gradient_dtype].held, kind_of(value_dtype)

    one = _entering(value_dtype, gradient_dtype, holds=holds, ahead=ahead)

    def update(blocks: Any, owners: Any, row: Any, squares: Any, limits: Any) -> None:
        given = cuda.shared.array(6, kind)
        if cuda.threadIdx.x == 0:  # as ``descent_kernels.prepare``
            given[0] = scale(squares[0], limits[0], limits[2])
            given[1] = limits[1]
            given[2] = row[1]
            given[3] = row[2]
            given[4] = row[3]
            given[5] = 1.0 if row[0] <= 1.0 else 1.0 - row[4]
        cuda.syncthreads()
        numbers = given[0], given[1], given[2], given[3], given[4], given[5]
        for chunk in range(cuda.blockIdx.x, owners.size, cuda.gridDim.x):
            block, begin, end = chunk_of(blocks, owners, chunk)
            size, thread = blocks[block, SIZE], np.int64(cuda.threadIdx.x)
            values = array_at(blocks[block, ADDRESSES], size, held)
            slopes = array_at(blocks[block, ADDRESSES + 1], size, slope_held)
            buffers = array_at(blocks[block, ADDRESSES + 2] if holds else 0, size, held)
            rest = after_fours(begin, end) if wide else begin
            for at in range(begin + 4 * thread, rest, 4 * THREADS):
                i = np.uint64(at)
                v, s = load_four(values, i), load_four(slopes, i)
                m = load_four(buffers, i) if holds else v
                a, e = one(v[0], s[0], m[0], numbers)
                b, f = one(v[1], s[1], m[1], numbers)
                c, g = one(v[2], s[2], m[2], numbers)
                d, h = one(v[3], s[3], m[3], numbers)
                store_four(values, i, (a, b, c, d))
                if holds:
                    store_four(buffers, i, (e, f, g, h))
            for at in range(rest + thread, end, THREADS):
                i = np.uint64(at)
                value, kept = one(values[i], slopes[i], buffers[i] if holds else values[i], numbers)
                values[i] = value
                if holds:
                    buffers[i] = kept

    return cuda.jit(update)


def bind_descent(
    optimizer: SGD,
    blocks: Sequence[Block],
    stream: object = 0,
    row: DeviceArray | None = None,
    squares: DeviceArray | None = None,
) -> Callable[[], None]:
    """A function that updates blocks in place; see ``AbstractOptimizer.bind_updates``.

    Args:
        optimizer: The optimizer.
        blocks: Contiguous, and of the same dtypes.
        stream: Of numba.
        row: See ``SGD.bind_update``.
        squares: See ``SGD.bind_update``.
    """
    table, (value, gradient, _) = table_of(blocks), blocks[0]
    dtypes, wide = (value.dtype, gradient.dtype), table.wide
    kind = kind_of(value.dtype)  # a Python float would make the arithmetic double
    given: tuple[object, ...] = table.blocks, table.owners
    if row is not None:
        kernel = varying_kernel(*dtypes, holds=bool(optimizer.states), ahead=optimizer.nesterov, wide=wide)
        summed = to_device(np.full(1, NO_NORM)) if squares is None else flat(squares)
        given += (as_numba(row), summed, to_device(Clipping(optimizer).limits))
    elif not optimizer.momentum:
        kernel = plain_kernel(*dtypes, wide=wide)
        given += (kind(optimizer.lr), kind(optimizer.weight_decay))
    else:
        kernel = heavy_kernel(*dtypes, ahead=optimizer.nesterov, wide=wide)
        given += (kind(optimizer.lr), kind(optimizer.weight_decay), kind(optimizer.momentum))
    launch = bind_launch(kernel, table.work, given, stream, most=EVERY_BLOCK)
    return lambda: (launch(), table)[0]
