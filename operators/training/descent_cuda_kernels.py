"""Stochastic gradient descent on CUDA: one pass over values, gradients and momenta of any number of blocks.

A thread has two elements under way at a time; the last of a chunk may be both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from maniple.operators.training.block_cuda_kernels import ADDRESSES, SIZE, chunk_of, table_of
from maniple.operators.training.clipping import NO_NORM, Clipping, bounded, scale
from maniple.operators.training.descent_kernels import descend, heavy, nesterov, plain
from maniple.runtime.devices.cuda_kernels import (
    FORMS,
    THREADS,
    DeviceArray,
    array_at,
    as_numba,
    bind_launch,
    cuda,
    flat,
    kind_of,
    to_device,
)

if TYPE_CHECKING:
    from maniple.operators.training.descent import SGD
    from maniple.operators.training.block import Block

__all__: list[str] = []


@lru_cache(maxsize=32)
def plain_kernel(value_dtype: torch.dtype, gradient_dtype: torch.dtype) -> Any:
    """The kernel without momentum.

    Args:
        value_dtype: Of values.
        gradient_dtype: Of gradients.
    """
    held, load, store = FORMS[value_dtype]
    slope_held, load_slope, _ = FORMS[gradient_dtype]

    def update(blocks: Any, owners: Any, lr: float, decay: float) -> None:
        for chunk in range(cuda.blockIdx.x, owners.size, cuda.gridDim.x):
            block, begin, end = chunk_of(blocks, owners, chunk)
            size = blocks[block, SIZE]
            values = array_at(blocks[block, ADDRESSES], size, held)
            slopes = array_at(blocks[block, ADDRESSES + 1], size, slope_held)
            for at in range(begin + cuda.threadIdx.x, end, 2 * THREADS):
                i, j = np.uint64(at), np.uint64(at + THREADS if at + THREADS < end else at)
                value, other = load(values[i]), load(values[j])
                slope, another = load_slope(slopes[i]), load_slope(slopes[j])
                values[i] = store(plain(value, slope, lr, decay))
                values[j] = store(plain(other, another, lr, decay))

    return cuda.jit(update)


@lru_cache(maxsize=32)
def heavy_kernel(value_dtype: torch.dtype, gradient_dtype: torch.dtype, *, ahead: bool) -> Any:
    """The kernel with momentum; see ``plain_kernel``.

    Args:
        value_dtype: Of values and momenta.
        gradient_dtype: Of gradients.
        ahead: Whether the value is ahead of the momentum, as Nesterov has it.
    """
    held, load, store = FORMS[value_dtype]
    slope_held, load_slope, _ = FORMS[gradient_dtype]
    step = nesterov if ahead else heavy

    def update(blocks: Any, owners: Any, lr: float, decay: float, momentum: float) -> None:
        for chunk in range(cuda.blockIdx.x, owners.size, cuda.gridDim.x):
            block, begin, end = chunk_of(blocks, owners, chunk)
            size = blocks[block, SIZE]
            values = array_at(blocks[block, ADDRESSES], size, held)
            slopes = array_at(blocks[block, ADDRESSES + 1], size, slope_held)
            buffers = array_at(blocks[block, ADDRESSES + 2], size, held)
            for at in range(begin + cuda.threadIdx.x, end, 2 * THREADS):
                i, j = np.uint64(at), np.uint64(at + THREADS if at + THREADS < end else at)
                value, other = load(values[i]), load(values[j])
                slope, another = load_slope(slopes[i]), load_slope(slopes[j])
                buffer, last = load(buffers[i]), load(buffers[j])
                value, buffer = step(value, slope, buffer, lr, decay, momentum)
                other, last = step(other, another, last, lr, decay, momentum)
                values[i], buffers[i] = store(value), store(buffer)
                values[j], buffers[j] = store(other), store(last)

    return cuda.jit(update)


@lru_cache(maxsize=32)
def varying_kernel(value_dtype: torch.dtype, gradient_dtype: torch.dtype, *, holds: bool, ahead: bool) -> Any:
    """The kernel whose numbers enter each step; the first thread of each block brings them into their form.

    Args:
        value_dtype: Of values and momenta.
        gradient_dtype: Of gradients.
        holds: Whether there is a momentum.
        ahead: See ``heavy_kernel``.
    """
    held, load, store = FORMS[value_dtype]
    slope_held, load_slope, _ = FORMS[gradient_dtype]
    kind = kind_of(value_dtype)

    def update(blocks: Any, owners: Any, row: Any, squares: Any, limits: Any) -> None:
        numbers = cuda.shared.array(6, kind)
        if cuda.threadIdx.x == 0:  # as ``descent_kernels.prepare``
            numbers[0] = scale(squares[0], limits[0], limits[2])
            numbers[1] = limits[1]
            numbers[2] = row[1]
            numbers[3] = row[2]
            numbers[4] = row[3]
            numbers[5] = 1.0 if row[0] <= 1.0 else 1.0 - row[4]
        cuda.syncthreads()
        factor, most, lr, decay = numbers[0], numbers[1], numbers[2], numbers[3]
        momentum, share = numbers[4], numbers[5]
        for chunk in range(cuda.blockIdx.x, owners.size, cuda.gridDim.x):
            block, begin, end = chunk_of(blocks, owners, chunk)
            size = blocks[block, SIZE]
            values = array_at(blocks[block, ADDRESSES], size, held)
            slopes = array_at(blocks[block, ADDRESSES + 1], size, slope_held)
            for at in range(begin + cuda.threadIdx.x, end, 2 * THREADS):
                i, j = np.uint64(at), np.uint64(at + THREADS if at + THREADS < end else at)
                value, other = load(values[i]), load(values[j])
                slope, another = load_slope(slopes[i]), load_slope(slopes[j])
                slope = bounded(slope * factor, most) + decay * value
                another = bounded(another * factor, most) + decay * other
                if holds and momentum != 0:
                    buffers = array_at(blocks[block, ADDRESSES + 2], size, held)
                    buffer, last = load(buffers[i]), load(buffers[j])
                    slope, buffer = descend(slope, buffer, momentum, share, ahead)
                    another, last = descend(another, last, momentum, share, ahead)
                    buffers[i], buffers[j] = store(buffer), store(last)
                values[i] = store(value - lr * slope)
                values[j] = store(other - lr * another)

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
    dtypes, kind = (value.dtype, gradient.dtype), kind_of(value.dtype)  # a Python float would make arithmetic double
    given: tuple[object, ...] = table.blocks, table.owners
    if row is not None:
        kernel = varying_kernel(*dtypes, holds=bool(optimizer.states), ahead=optimizer.nesterov)
        summed = to_device(np.full(1, NO_NORM)) if squares is None else flat(squares)
        given += (as_numba(row), summed, to_device(Clipping(optimizer).limits))
    elif not optimizer.momentum:
        kernel = plain_kernel(*dtypes)
        given += (kind(optimizer.lr), kind(optimizer.weight_decay))
    else:
        kernel = heavy_kernel(*dtypes, ahead=optimizer.nesterov)
        given += (kind(optimizer.lr), kind(optimizer.weight_decay), kind(optimizer.momentum))
    launch = bind_launch(kernel, table.work, given, stream)
    return lambda: (launch(), table)[0]
