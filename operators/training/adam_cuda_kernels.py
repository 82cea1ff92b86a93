"""Adam and AdamW on CUDA: one pass over values, gradients and states of any number of blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from maniple.operators.training.adam_kernels import COUNT, step_of
from maniple.operators.training.block_cuda_kernels import ADDRESSES, SIZE, chunk_of, table_of
from maniple.operators.training.clipping import NO_NORM, Clipping, bounded, scale
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
    from maniple.operators.training.adam import AdaptiveMoments
    from maniple.operators.training.block import Block

__all__: list[str] = []


@lru_cache(maxsize=32)
def adam_kernel(value_dtype: torch.dtype, gradient_dtype: torch.dtype, *, holds: bool, decoupled: bool) -> Any:
    """The kernel: a thread has two elements under way at a time; the last of a chunk may be both.

    Args:
        value_dtype: Of values and states.
        gradient_dtype: Of gradients.
        holds: Whether the most that the mean of squares was is kept.
        decoupled: Whether the decay is of the value itself.
    """
    held, load, store = FORMS[value_dtype]
    slope_held, load_slope, _ = FORMS[gradient_dtype]
    kind = kind_of(value_dtype)

    def update(blocks: Any, owners: Any, row: Any, squares: Any, limits: Any) -> None:
        numbers = cuda.shared.array(COUNT, kind)
        if cuda.threadIdx.x == 0:  # as ``adam_kernels.prepare``
            numbers[0] = scale(squares[0], limits[0], limits[2])
            numbers[1] = limits[1]
            numbers[2] = 1.0 - row[1] * row[2] if decoupled else 1.0
            numbers[3] = 0.0 if decoupled else row[2]
            numbers[4] = row[3]
            numbers[5] = 1.0 - row[3]
            numbers[6] = row[4]
            numbers[7] = 1.0 - row[4]
            numbers[8], numbers[9] = step_of(row[0], row[1], row[3], row[4])
            numbers[10] = row[5]
        cuda.syncthreads()
        factor, most, kept, joined = numbers[0], numbers[1], numbers[2], numbers[3]
        beta1, share1, beta2, share2 = numbers[4], numbers[5], numbers[6], numbers[7]
        length, root, eps = numbers[8], numbers[9], numbers[10]
        for chunk in range(cuda.blockIdx.x, owners.size, cuda.gridDim.x):
            block, begin, end = chunk_of(blocks, owners, chunk)
            size = blocks[block, SIZE]
            values = array_at(blocks[block, ADDRESSES], size, held)
            slopes = array_at(blocks[block, ADDRESSES + 1], size, slope_held)
            means = array_at(blocks[block, ADDRESSES + 2], size, held)
            middles = array_at(blocks[block, ADDRESSES + 3], size, held)
            for at in range(begin + cuda.threadIdx.x, end, 2 * THREADS):
                i, j = np.uint64(at), np.uint64(at + THREADS if at + THREADS < end else at)
                own, other = load(values[i]) * kept, load(values[j]) * kept
                slope, another = load_slope(slopes[i]), load_slope(slopes[j])
                mean, next_mean = load(means[i]), load(means[j])
                square, next_square = load(middles[i]), load(middles[j])
                slope = bounded(slope * factor, most) + joined * own
                another = bounded(another * factor, most) + joined * other
                mean = beta1 * mean + share1 * slope
                next_mean = beta1 * next_mean + share1 * another
                square = beta2 * square + share2 * slope * slope
                next_square = beta2 * next_square + share2 * another * another
                means[i], means[j] = store(mean), store(next_mean)
                middles[i], middles[j] = store(square), store(next_square)
                if holds:
                    greatest = array_at(blocks[block, ADDRESSES + 4], size, held)
                    square, next_square = max(load(greatest[i]), square), max(load(greatest[j]), next_square)
                    greatest[i], greatest[j] = store(square), store(next_square)
                values[i] = store(own - length * mean / (sqrt(square) * root + eps))
                values[j] = store(other - length * next_mean / (sqrt(next_square) * root + eps))

    return cuda.jit(update)


def bind_adam(
    optimizer: AdaptiveMoments,
    blocks: Sequence[Block],
    row: DeviceArray,
    squares: DeviceArray | None,
    stream: object = 0,
) -> Callable[[], None]:
    """A function that updates blocks in place; see ``AbstractOptimizer.bind_updates``.

    Args:
        optimizer: The optimizer.
        blocks: Contiguous, and of the same dtypes.
        row: The numbers of the step, float64.
        squares: The sum of squares of all gradients, float64, where they are clipped by norm.
        stream: Of numba.
    """
    table, (value, gradient, _) = table_of(blocks), blocks[0]
    kernel = adam_kernel(value.dtype, gradient.dtype, holds=optimizer.amsgrad, decoupled=optimizer.decoupled)
    summed = to_device(np.full(1, NO_NORM)) if squares is None else flat(squares)
    given = (table.blocks, table.owners, as_numba(row), summed, to_device(Clipping(optimizer).limits))
    launch = bind_launch(kernel, table.work, given, stream)
    return lambda: (launch(), table)[0]
