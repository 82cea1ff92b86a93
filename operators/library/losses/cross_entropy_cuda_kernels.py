"""Softmax-cross-entropy on CUDA: one launch forward, in which a row is read once, and one launch backward.

The greatest logit and the sum of exponentials are found together: Milakov and Gimelshein, Online normalizer calculation
for softmax (2018), section 3. A row is the work of as many threads, a power of two, as its classes and the number of
rows ask for; each has several elements under way at a time, for the memory answers late:

    thread   elements of a row of 10 that 2 threads share       each then has the greatest of its own, and the sum of
    0        0 2 4 6   8                                        exponentials relative to it; those are joined in pairs
    1        1 3 5 7   9

The block that ends last adds up the losses of all rows in a fixed order, so a result is the same every time. A label
that is no class gives a NaN, where the CPU kernel raises: a CUDA kernel cannot.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import exp, inf, log, nan
from typing import Any

import numpy as np
import torch

from maniple.operators.library.losses.cross_entropy_kernels import row_loss
from maniple.runtime.devices.cuda_kernels import (
    FORMS,
    THREADS,
    DeviceArray,
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


def share_dtype(rest: torch.dtype) -> torch.dtype:
    """The dtype of what a loss counts for, which 16 bits would round to three digits."""
    return torch.promote_types(rest, torch.float32)


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


@lru_cache(maxsize=64)
def forward_kernel(logits: torch.dtype, rest: torch.dtype, lanes: int, threads: int, smooth: bool) -> Any:  # noqa: FBT001
    """The kernel of the loss.

    Args:
        logits: Their dtype.
        rest: That of the class weights, the logarithms and the result; of 16 bits it leaves the share 32.
        lanes: How many threads share a row.
        threads: Of a block.
        smooth: Whether labels are smoothed.
    """
    load, kind, together = FORMS[logits].load, kind_of(logits), threads // lanes
    load_rest, store_rest, load_share = FORMS[rest].load, FORMS[rest].store, FORMS[share_dtype(rest)].load
    lowest, zero = kind(-inf), kind(0)  # a Python float would make the exponentials double

    def forward(
        x: Any, labels: Any, weights: Any, ignore: int, smoothing: float, logarithms: Any, losses: Any,
        turn: Any, share: Any, result: Any,
    ) -> None:
        tops = cuda.shared.array(threads, kind)
        totals = cuda.shared.array(threads, kind)
        sums = cuda.shared.array(threads, _DOUBLE)
        ticket = cuda.shared.array(1, np.int64)
        thread, classes, count = np.int64(cuda.threadIdx.x), x.shape[1], x.shape[0]
        lane, own = thread & (lanes - 1), thread // lanes
        for first in range(cuda.blockIdx.x * together, count, cuda.gridDim.x * together):
            n = first + own
            top, total, dot, mass = lowest, zero, zero, zero
            if n < count:
                row, c = x[n], lane
                while c + 3 * lanes < classes:
                    a = load(row[np.uint64(c)])
                    b = load(row[np.uint64(c + lanes)])
                    d = load(row[np.uint64(c + 2 * lanes)])
                    e = load(row[np.uint64(c + 3 * lanes)])
                    most = max(max(a, b), max(d, e))
                    if most > top:
                        total *= exp(top - most)
                        top = most
                    under = zero if top == lowest else top
                    total += (exp(a - under) + exp(b - under)) + (exp(d - under) + exp(e - under))
                    if smooth:
                        dot += load_rest(weights[np.uint64(c)]) * a + load_rest(weights[np.uint64(c + lanes)]) * b
                        dot += load_rest(weights[np.uint64(c + 2 * lanes)]) * d
                        dot += load_rest(weights[np.uint64(c + 3 * lanes)]) * e
                        mass += load_rest(weights[np.uint64(c)]) + load_rest(weights[np.uint64(c + lanes)])
                        mass += load_rest(weights[np.uint64(c + 2 * lanes)])
                        mass += load_rest(weights[np.uint64(c + 3 * lanes)])
                    c += 4 * lanes
                while c < classes:
                    a = load(row[np.uint64(c)])
                    if a > top:
                        total *= exp(top - a)
                        top = a
                    total += exp(a - (zero if top == lowest else top))
                    if smooth:
                        dot += load_rest(weights[np.uint64(c)]) * a
                        mass += load_rest(weights[np.uint64(c)])
                    c += lanes
            top, total = _join(top, total, tops, totals, lane, lanes)
            if smooth:
                dot, mass = _sum_of_lanes(dot, tops, lane, lanes), _sum_of_lanes(mass, totals, lane, lanes)
            if n < count and lane == 0:
                z = top + (log(total) if total != 0 else lowest)
                logarithms[n] = store_rest(z)
                label, loss = labels[n], 0.0
                if label != ignore:
                    loss = nan
                    if 0 <= label < classes:
                        weight = load_rest(weights[label])
                        loss = row_loss(z, load(x[n, label]), dot, weight, mass, smoothing, classes)
                losses[n] = loss
        cuda.threadfence()  # every loss is there before the last block is known
        cuda.syncthreads()
        if thread == 0:
            ticket[0] = cuda.atomic.inc(turn, 0, cuda.gridDim.x - 1)  # which begins anew after the last
        cuda.syncthreads()
        if ticket[0] == cuda.gridDim.x - 1:
            every = 0.0
            for n in range(thread, count, threads):
                every += losses[n]
            every = _sum_of_lanes(every, sums, thread, threads)
            if thread == 0:
                result[0] = store_rest(every * load_share(share[0]))

    return cuda.jit(forward)


@lru_cache(maxsize=64)
def backward_kernel(logits: torch.dtype, rest: torch.dtype, lanes: int, threads: int, smooth: bool) -> Any:  # noqa: FBT001
    """The kernel of the gradient; see ``forward_kernel``."""
    load, store, kind = FORMS[logits].load, FORMS[logits].store, kind_of(logits)
    load_rest, load_share, together = FORMS[rest].load, FORMS[share_dtype(rest)].load, threads // lanes
    zero, one, nothing = kind(0), kind(1), kind(nan)

    def backward(
        x: Any, labels: Any, weights: Any, ignore: int, smoothing: float, logarithms: Any, share: Any,
        gradient: Any, target: Any,
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
                row, place, label, z, c = x[n], target[n], labels[n], load_rest(logarithms[n]), lane
                if label == ignore:
                    while c < classes:
                        place[np.uint64(c)] = store(zero)
                        c += lanes
                hit = part * (one - smoothing) * load_rest(weights[label]) if 0 <= label < classes else nothing
                mass = hit + pull
                while c + 3 * lanes < classes:
                    a = load(row[np.uint64(c)])
                    b = load(row[np.uint64(c + lanes)])
                    d = load(row[np.uint64(c + 2 * lanes)])
                    e = load(row[np.uint64(c + 3 * lanes)])
                    a, b, d, e = exp(a - z) * mass, exp(b - z) * mass, exp(d - z) * mass, exp(e - z) * mass
                    if smooth:
                        a -= spread * load_rest(weights[np.uint64(c)])
                        b -= spread * load_rest(weights[np.uint64(c + lanes)])
                        d -= spread * load_rest(weights[np.uint64(c + 2 * lanes)])
                        e -= spread * load_rest(weights[np.uint64(c + 3 * lanes)])
                    place[np.uint64(c)] = store(a - hit if c == label else a)
                    place[np.uint64(c + lanes)] = store(b - hit if c + lanes == label else b)
                    place[np.uint64(c + 2 * lanes)] = store(d - hit if c + 2 * lanes == label else d)
                    place[np.uint64(c + 3 * lanes)] = store(e - hit if c + 3 * lanes == label else e)
                    c += 4 * lanes
                while c < classes:
                    a = exp(load(row[np.uint64(c)]) - z) * mass
                    if smooth:
                        a -= spread * load_rest(weights[np.uint64(c)])
                    place[np.uint64(c)] = store(a - hit if c == label else a)
                    c += lanes

    return cuda.jit(backward)


@lru_cache(maxsize=16)
def share_kernel(rest: torch.dtype) -> Any:
    """The kernel of what a loss counts for in the mean; one block."""
    load_rest, store_share = FORMS[rest].load, FORMS[share_dtype(rest)].store

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
    """How many threads share a row: each has four elements at least, and 32 where there are rows enough.

    Args:
        rows: Of the tile.
        classes: Of a row.
        threads: Of a block; a power of two.
    """
    wanted = max(classes // 32, min(classes // 4, _THREADS_OF_DEVICE // max(1, rows)))
    return min(threads, 1 << max(0, wanted - 1).bit_length())


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
    x, kind, threads = as_numba(logits), kind_of(dtype_of(logits)), threads or THREADS
    rows, classes = x.shape
    lanes = lanes_of(rows, classes, threads)
    losses, turn = to_device(np.zeros(rows, _DOUBLE)), to_device(np.zeros(1, np.uint32))
    kernel = forward_kernel(dtype_of(logits), dtype_of(weights), lanes, threads, smoothing > 0)
    read = (x, flat(labels), flat(weights), ignore, kind(smoothing))
    arguments = (*read, flat(logarithms), losses, turn, flat(share), flat(result))
    return bind_launch(kernel, rows * lanes, arguments, stream, threads)


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
    x, kind, threads = as_numba(logits), kind_of(dtype_of(logits)), threads or THREADS
    rows, classes = x.shape
    lanes = lanes_of(rows, classes, threads)
    kernel = backward_kernel(dtype_of(logits), dtype_of(weights), lanes, threads, smoothing > 0)
    read = (x, flat(labels), flat(weights), ignore, kind(smoothing))
    arguments = (*read, flat(logarithms), flat(share), flat(gradient), as_numba(target))
    return bind_launch(kernel, rows * lanes, arguments, stream, threads)
