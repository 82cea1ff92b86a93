"""Adam and AdamW on CUDA: one pass over values, gradients and states of any number of blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from maniple.operators.training.adam_kernels import COUNT, step_of
from maniple.operators.training.block_cuda_kernels import ADDRESSES, SIZE, after_fours, chunk_of, table_of
from maniple.operators.training.clipping import NO_NORM, Clipping, bounded, scale
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
    from maniple.operators.training.adam import AdaptiveMoments
    from maniple.operators.training.block import Block

__all__: list[str] = []


@cuda.jit(device=True)
def _prepare(row: Any, squares: Any, limits: Any, numbers: Any, decoupled: bool) -> None:  # noqa: FBT001
    """As ``adam_kernels.prepare``."""
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


@lru_cache(maxsize=32)
def _element(value_dtype: torch.dtype, gradient_dtype: torch.dtype, *, holds: bool) -> Any:
    """The device function of one element; see ``adam_kernel``."""
    load, store, load_slope = FORMS[value_dtype].load, FORMS[value_dtype].store, FORMS[gradient_dtype].load

    def one(value: Any, slope: Any, mean: Any, square: Any, greatest: Any, numbers: Any) -> tuple[Any, Any, Any, Any]:
        factor, most, kept, joined, beta1, share1, beta2, share2, size, root, eps = numbers
        own = load(value) * kept
        taken = bounded(load_slope(slope) * factor, most) + joined * own
        first = beta1 * load(mean) + share1 * taken
        second = beta2 * load(square) + share2 * taken * taken
        under = max(load(greatest), second) if holds else second
        found = own - size * first / (sqrt(under) * root + eps)
        return store(found), store(first), store(second), store(under)

    return cuda.jit(one, device=True)


@lru_cache(maxsize=32)
def adam_kernel(
    value_dtype: torch.dtype, gradient_dtype: torch.dtype, *, holds: bool, decoupled: bool, wide: bool
) -> Any:
    """The kernel; its numbers enter each step, and the first thread of each block brings them into their form.

    Args:
        value_dtype: Of values and states.
        gradient_dtype: Of gradients.
        holds: Whether the most that the mean of squares was is kept.
        decoupled: Whether the decay is of the value itself.
        wide: See ``Table``.
    """
    held, slope_held, kind = FORMS[value_dtype].held, FORMS[gradient_dtype].held, kind_of(value_dtype)

    one = _element(value_dtype, gradient_dtype, holds=holds)

    def update(blocks: Any, owners: Any, row: Any, squares: Any, limits: Any) -> None:
        n = cuda.shared.array(COUNT, kind)
        if cuda.threadIdx.x == 0:
            _prepare(row, squares, limits, n, decoupled)
        cuda.syncthreads()
        numbers = n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9], n[10]
        for chunk in range(cuda.blockIdx.x, owners.size, cuda.gridDim.x):
            block, begin, end = chunk_of(blocks, owners, chunk)
            size, thread = blocks[block, SIZE], np.int64(cuda.threadIdx.x)
            values = array_at(blocks[block, ADDRESSES], size, held)
            slopes = array_at(blocks[block, ADDRESSES + 1], size, slope_held)
            means = array_at(blocks[block, ADDRESSES + 2], size, held)
            middles = array_at(blocks[block, ADDRESSES + 3], size, held)
            greatest = array_at(blocks[block, ADDRESSES + 4] if holds else 0, size, held)
            rest = after_fours(begin, end) if wide else begin
            for at in range(begin + 4 * thread, rest, 4 * THREADS):
                i = np.uint64(at)
                v, s, m, q = load_four(values, i), load_four(slopes, i), load_four(means, i), load_four(middles, i)
                g = load_four(greatest, i) if holds else q
                a = one(v[0], s[0], m[0], q[0], g[0], numbers)
                b = one(v[1], s[1], m[1], q[1], g[1], numbers)
                c = one(v[2], s[2], m[2], q[2], g[2], numbers)
                d = one(v[3], s[3], m[3], q[3], g[3], numbers)
                store_four(values, i, (a[0], b[0], c[0], d[0]))
                store_four(means, i, (a[1], b[1], c[1], d[1]))
                store_four(middles, i, (a[2], b[2], c[2], d[2]))
                if holds:
                    store_four(greatest, i, (a[3], b[3], c[3], d[3]))
            for at in range(rest + thread, end, THREADS):
                i = np.uint64(at)
                top = greatest[i] if holds else middles[i]
                values[i], means[i], middles[i], top = one(values[i], slopes[i], means[i], middles[i], top, numbers)
                if holds:
                    greatest[i] = top

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
    kinds = {"holds": optimizer.amsgrad, "decoupled": optimizer.decoupled, "wide": table.wide}
    kernel = adam_kernel(value.dtype, gradient.dtype, **kinds)
    summed = to_device(np.full(1, NO_NORM)) if squares is None else flat(squares)
    given = (table.blocks, table.owners, as_numba(row), summed, to_device(Clipping(optimizer).limits))
    launch = bind_launch(kernel, table.work, given, stream, most=EVERY_BLOCK)
    return lambda: (launch(), table)[0]
