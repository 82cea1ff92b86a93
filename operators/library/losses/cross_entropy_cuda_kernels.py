"""Softmax-cross-entropy on CUDA: one launch forward, in which a row is read once, and one launch backward.

The greatest logit and the sum of exponentials are found together: Milakov and Gimelshein, Online normalizer calculation
for softmax (2018), section 3. A row is the work of as many threads, a power of two, as its classes and the number of
rows ask for; each has several elements under way at a time, for the memory answers late:

    thread   elements of a row of 10 that 2 threads share       each then has the greatest of its own, and the sum of
    0        0 2 4 6   8                                        exponentials relative to it; those are joined in pairs
    1        1 3 5 7   9

The block that ends last adds up the losses of all blocks in a fixed order, so a result is the same every time. A label
that is no class gives a NaN, where the CPU kernel raises: a CUDA kernel cannot.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import exp, inf, log, nan
from typing import Any

import numpy as np
import torch

from maniple.operators.library.losses.row_cuda_kernels import (
    LINE,
    lead_of,
    loss_of,
    row_slope_of,
    row_sum_of,
    smoothed_of,
)
from maniple.runtime.devices.cuda_kernels import (
    FORMS,
    THREADS,
    DeviceArray,
    Form,
    Grid,
    address_of,
    as_numba,
    bind_launch,
    cuda,
    current_stream,
    dtype_of,
    flat,
    kind_of,
    to_device,
)

_DOUBLE = np.float64
_THREADS_OF_DEVICE = 1 << 18
"""About as many as run at a time on a large GPU."""


def share_form(rest: torch.dtype) -> Form:
    """How it lies what a loss counts for, which 16 bits would round to three digits."""
    return FORMS[torch.promote_types(rest, torch.float32)]


@cuda.jit(device=True)
def _sum_of_lanes(value: Any, shared: Any, lane: int, lanes: int) -> Any:
    """The sum of one value per thread of a row, in every thread.

    Args:
        value: The thread's.
        shared: One place for each thread of the block.
        lane: Which of the row's threads it is.
        lanes: How many the row has.
    """
    thread = cuda.threadIdx.x
    cuda.syncthreads()
    shared[thread] = value
    width = lanes // 2
    while width > 0:
        cuda.syncthreads()
        if lane < width:
            shared[thread] += shared[thread + width]
        width //= 2
    cuda.syncthreads()
    return shared[thread - lane]


@cuda.jit(device=True)
def _block_sum(value: float, shared: Any) -> float:
    return float(_sum_of_lanes(value, shared, cuda.threadIdx.x, THREADS))


@cuda.jit(device=True)
def _rescale(total: Any, top: Any, common: Any) -> Any:
    """A sum of exponentials relative to ``top``, relative to ``common`` instead."""
    return total if top == common else total * exp(top - common)


@cuda.jit(device=True)
def _join(top: Any, total: Any, tops: Any, totals: Any, lane: int, lanes: int) -> Any:
    """The greatest logit of a row and the sum of exponentials relative to it, in every thread of the row."""
    thread = cuda.threadIdx.x
    cuda.syncthreads()
    tops[thread], totals[thread] = top, total
    width = lanes // 2
    while width > 0:
        cuda.syncthreads()
        if lane < width:
            one, other = tops[thread], tops[thread + width]
            common = max(one, other)
            totals[thread] = _rescale(totals[thread], one, common) + _rescale(totals[thread + width], other, common)
            tops[thread] = common
        width //= 2
    cuda.syncthreads()
    return tops[thread - lane], totals[thread - lane]


@cuda.jit(device=True)
def _is_last(turn: Any, ticket: Any) -> bool:
    """Whether this block ends last of all; what the first thread of each has written is there then."""
    if cuda.threadIdx.x == 0:
        cuda.threadfence()
        ticket[0] = cuda.atomic.inc(turn, 0, cuda.gridDim.x - 1)  # which begins anew after the last
    cuda.syncthreads()
    cuda.threadfence()
    return bool(ticket[0] == cuda.gridDim.x - 1)


@lru_cache(maxsize=64)
def forward_kernel(logits: torch.dtype, rest: torch.dtype, lanes: int, threads: int, *, smooth: bool) -> Any:
    """The kernel of the loss.

    Args:
        logits: Their dtype.
        rest: That of the class weights, the logarithms and the result; of 16 bits it leaves the share 32.
        lanes: How many threads share a row.
        threads: Of a block.
        smooth: Whether labels are smoothed.
    """
    kind, together, store_rest, load_share = kind_of(logits), threads // lanes, FORMS[rest].store, share_form(rest).load
    lowest, zero = kind(-inf), kind(0)  # a Python float would make the exponentials double
    row_sum, smoothed, loss_in = row_sum_of(logits, lanes), smoothed_of(logits, rest, lanes), loss_of(logits, rest)

    def forward(
        x: Any,
        labels: Any,
        weights: Any,
        ignore: int,
        smoothing: float,
        skew: int,
        logarithms: Any,
        parts: Any,
        turn: Any,
        share: Any,
        result: Any,
    ) -> None:
        tops = cuda.shared.array(threads, kind)
        totals = cuda.shared.array(threads, kind)
        sums = cuda.shared.array(threads, _DOUBLE)
        ticket = cuda.shared.array(1, np.int64)
        thread, classes, count = np.int64(cuda.threadIdx.x), x.shape[1], x.shape[0]
        lane, own, loss = thread & (lanes - 1), thread // lanes, 0.0
        for first in range(cuda.blockIdx.x * together, count, cuda.gridDim.x * together):
            n = first + own
            top, total, dot, mass = lowest, zero, zero, zero
            if n < count:
                top, total = row_sum(x[n], lead_of(skew + n * classes, classes), lane)
                if smooth:
                    dot, mass = smoothed(x[n], weights, lane)
            top, total = _join(top, total, tops, totals, lane, lanes)
            if smooth:
                dot, mass = _sum_of_lanes(dot, tops, lane, lanes), _sum_of_lanes(mass, totals, lane, lanes)
            if n < count and lane == 0:
                z = top + (log(total) if total != 0 else lowest)
                logarithms[n] = store_rest(z)
                loss += loss_in(x[n], labels[n], weights, ignore, z, dot, mass, smoothing)
        loss = _sum_of_lanes(loss, sums, thread, threads)
        if thread == 0:
            parts[cuda.blockIdx.x] = loss
        if _is_last(turn, ticket):
            every = 0.0
            for block in range(thread, cuda.gridDim.x, threads):
                every += parts[block]
            every = _sum_of_lanes(every, sums, thread, threads)
            if thread == 0:
                result[0] = store_rest(every * load_share(share[0]))

    return cuda.jit(forward)


@lru_cache(maxsize=64)
def backward_kernel(
    logits: torch.dtype, rest: torch.dtype, lanes: int, threads: int, *, smooth: bool, wide: bool
) -> Any:
    """The kernel of the gradient.

    Args:
        logits: See ``forward_kernel``, as are all others but the last.
        rest: Likewise.
        lanes: Likewise.
        threads: Likewise.
        smooth: Likewise.
        wide: Whether logits and gradients lie alike, so that one load and one store take four.
    """
    kind: Any = kind_of(logits)
    store, together = FORMS[logits].store, threads // lanes
    load_rest, load_share = FORMS[rest].load, share_form(rest).load
    row_slope = row_slope_of(logits, rest, lanes, smooth=smooth, wide=wide)
    zero, one, nothing = kind(0), kind(1), kind(nan)

    def backward(
        x: Any,
        labels: Any,
        weights: Any,
        ignore: int,
        smoothing: float,
        skew: int,
        logarithms: Any,
        share: Any,
        gradient: Any,
        target: Any,
    ) -> None:
        shared = cuda.shared.array(threads, kind)
        thread, classes, count = np.int64(cuda.threadIdx.x), x.shape[1], x.shape[0]
        lane, own = thread & (lanes - 1), thread // lanes
        part, spread, pull = load_rest(gradient[0]) * load_share(share[0]), zero, zero
        if smooth:
            mass = zero
            for c in range(thread, classes, threads):
                mass += load_rest(weights[np.uint64(c)])
            spread = part * (smoothing / kind(classes))
            pull = spread * _sum_of_lanes(mass, shared, thread, threads)
        for first in range(cuda.blockIdx.x * together, count, cuda.gridDim.x * together):
            n = first + own
            if n < count:
                label = labels[n]
                if label == ignore:
                    for c in range(lane, classes, lanes):
                        target[n, c] = store(zero)
                else:
                    hit = part * (one - smoothing) * load_rest(weights[label]) if 0 <= label < classes else nothing
                    how = load_rest(logarithms[n]), hit + pull, hit, spread
                    lead = lead_of(skew + n * classes, classes) if wide else classes
                    row_slope(x[n], target[n], lead, lane, label, how, weights)

    return cuda.jit(backward)


@lru_cache(maxsize=16)
def share_kernel(rest: torch.dtype) -> Any:
    """The kernel of what a loss counts for in the mean; one block."""
    load_rest, store_share = FORMS[rest].load, share_form(rest).store

    def share_of(every: Any, weights: Any, ignore: int, share: Any) -> None:
        shared = cuda.shared.array(THREADS, _DOUBLE)
        total = 0.0
        for n in range(cuda.threadIdx.x, every.size, THREADS):
            label = every[n]
            if label != ignore:
                total += load_rest(weights[label]) if 0 <= label < weights.size else nan
        total = _block_sum(total, shared)
        if cuda.threadIdx.x == 0:
            share[0] = store_share(1 / total if total != 0 else inf)

    return cuda.jit(share_of)


def lanes_of(rows: int, classes: int, threads: int) -> int:
    """How many threads share a row: each has four elements at least, and 16 where there are rows enough.

    Args:
        rows: Of the tile.
        classes: Of a row.
        threads: Of a block; a power of two.
    """
    wanted = max(classes // 16, min(classes // 4, _THREADS_OF_DEVICE // max(1, rows)))
    return min(threads, 1 << max(0, wanted - 1).bit_length())


def threads_for(classes: int) -> int:
    """The threads of a block: twice as many where a row has some for each; on an H100 that was the faster."""
    return THREADS * (2 if classes >= 64 * THREADS else 1)


def bind_share(every: DeviceArray, weights: DeviceArray, ignore: int, share: DeviceArray) -> Callable[[], None]:
    """A function that computes what a loss counts for; see ``cross_entropy_kernels.share_of``."""
    arguments = (flat(every), flat(weights), ignore, flat(share))
    return bind_launch(share_kernel(dtype_of(weights)), 1, arguments, current_stream())


def bind_cross_entropy(
    logits: DeviceArray,
    labels: DeviceArray,
    share: DeviceArray,
    weights: DeviceArray,
    ignore: int,
    smoothing: float,
    logarithms: DeviceArray,
    result: DeviceArray,
    stream: object = 0,
    threads: int = 0,
) -> Callable[[], None]:
    """A function that computes a tile's share of the loss; see ``cross_entropy_kernels.forward``."""
    x, kind = as_numba(logits), kind_of(dtype_of(logits))
    rows, classes = x.shape
    threads = threads or threads_for(classes)
    lanes = lanes_of(rows, classes, threads)
    kernel = forward_kernel(dtype_of(logits), dtype_of(weights), lanes, threads, smooth=smoothing > 0)
    grid = Grid(kernel, rows * lanes, threads)
    parts, turn = to_device(np.zeros(grid.blocks, _DOUBLE)), to_device(np.zeros(1, np.uint32))
    read = (x, flat(labels), flat(weights), ignore, kind(smoothing), _skew(logits))
    return grid.bind((*read, flat(logarithms), parts, turn, flat(share), flat(result)), stream)


def _skew(rows: DeviceArray) -> int:
    """How many elements an array begins behind the beginning of a line of memory."""
    return address_of(rows) // dtype_of(rows).itemsize % LINE


def bind_cross_entropy_backward(
    logits: DeviceArray,
    labels: DeviceArray,
    share: DeviceArray,
    weights: DeviceArray,
    ignore: int,
    smoothing: float,
    logarithms: DeviceArray,
    gradient: DeviceArray,
    target: DeviceArray,
    stream: object = 0,
    threads: int = 0,
) -> Callable[[], None]:
    """A function that computes the logits' gradient; see ``cross_entropy_kernels.backward``."""
    x, kind = as_numba(logits), kind_of(dtype_of(logits))
    rows, classes = x.shape
    threads = threads or threads_for(classes)
    lanes, dtypes, skew = lanes_of(rows, classes, threads), (dtype_of(logits), dtype_of(weights)), _skew(logits)
    kernel = backward_kernel(*dtypes, lanes, threads, smooth=smoothing > 0, wide=skew % 4 == _skew(target) % 4)
    read = (x, flat(labels), flat(weights), ignore, kind(smoothing), skew)
    arguments = (*read, flat(logarithms), flat(share), flat(gradient), as_numba(target))
    return bind_launch(kernel, rows * lanes, arguments, stream, threads)
