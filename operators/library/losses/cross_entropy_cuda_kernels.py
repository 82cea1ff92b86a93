"""Softmax-cross-entropy on CUDA: a block per sample, one pass for the logarithm of the sum, one for the gradient.

The greatest logit and the sum of exponentials are found together: Milakov and Gimelshein, Online normalizer calculation
for softmax (2018), section 3. Sums over samples are made by one block in a fixed order, so a result is the same every
time. A label that is no class gives a NaN, where the CPU kernel raises: a CUDA kernel cannot.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, inf, log, nan
from typing import Any

import numpy as np

from maniple.operators.library.losses.cross_entropy_kernels import row_loss
from maniple.runtime.devices.cuda_kernels import THREADS, DeviceArray, as_numba, cuda, current_stream, flat

_DOUBLE = np.float64


@cuda.jit(device=True)
def _block_sum(value: float, shared: Any) -> float:
    """The sum of one value per thread, in every thread.

    Args:
        value: The thread's.
        shared: (THREADS,) of shared memory.
    """
    thread = cuda.threadIdx.x
    cuda.syncthreads()
    shared[thread] = value
    width = THREADS // 2
    while width > 0:
        cuda.syncthreads()
        if thread < width:
            shared[thread] += shared[thread + width]
        width //= 2
    cuda.syncthreads()
    return float(shared[0])


@cuda.jit(device=True)
def _rescale(total: float, top: float, common: float) -> float:
    """A sum of exponentials relative to ``top``, relative to ``common`` instead."""
    return total if top == common else total * exp(top - common)


@cuda.jit(device=True)
def _logarithm(row: Any, tops: Any, totals: Any) -> float:
    """The logarithm of the sum of a row's exponentials, in every thread."""
    thread, kind = cuda.threadIdx.x, row.dtype.type
    top, total, one = kind(-inf), kind(0), kind(1)  # a Python float would make the exponentials double
    for c in range(thread, row.size, THREADS):
        value = row[c]
        if value > top:
            total = total * exp(top - value) + one
            top = value
        else:
            total += one if value == top else exp(value - top)
    tops[thread], totals[thread] = top, total
    width = THREADS // 2
    while width > 0:
        cuda.syncthreads()
        if thread < width:
            common = max(tops[thread], tops[thread + width])
            totals[thread] = _rescale(totals[thread], tops[thread], common) + _rescale(
                totals[thread + width], tops[thread + width], common
            )
            tops[thread] = common
        width //= 2
    cuda.syncthreads()
    return float(tops[0] + log(totals[0]))


@cuda.jit
def _rows(x: Any, labels: Any, weights: Any, ignore: int, smoothing: float, logarithms: Any, losses: Any) -> None:
    """The logarithm and the loss of every row."""
    shared = cuda.shared.array(THREADS, _DOUBLE)
    totals = cuda.shared.array(THREADS, _DOUBLE)
    thread, classes = cuda.threadIdx.x, x.shape[1]
    for n in range(cuda.blockIdx.x, x.shape[0], cuda.gridDim.x):
        row, label = x[n], labels[n]
        cuda.syncthreads()
        z = _logarithm(row, shared, totals)
        dot, mass = 0.0, 0.0
        if smoothing > 0:
            for c in range(thread, classes, THREADS):
                dot += weights[c] * row[c]
                mass += weights[c]
            dot, mass = _block_sum(dot, shared), _block_sum(mass, shared)
        if thread == 0:
            logarithms[n] = z
            loss = 0.0
            if label != ignore:
                loss = nan
                if 0 <= label < classes:
                    loss = row_loss(z, row[label], dot, weights[label], mass, smoothing, classes)
            losses[n] = loss


@cuda.jit
def _total(losses: Any, share: Any, result: Any) -> None:
    """The mean; one block."""
    shared = cuda.shared.array(THREADS, _DOUBLE)
    total = 0.0
    for n in range(cuda.threadIdx.x, losses.size, THREADS):
        total += losses[n]
    total = _block_sum(total, shared)
    if cuda.threadIdx.x == 0:
        result[0] = total * share[0]


@cuda.jit
def _gradient(
    x: Any,
    labels: Any,
    weights: Any,
    ignore: int,
    smoothing: float,
    logarithms: Any,
    share: Any,
    gradient: Any,
    target: Any,
) -> None:
    """The gradient of every row."""
    shared = cuda.shared.array(THREADS, _DOUBLE)
    thread, classes, kind = cuda.threadIdx.x, x.shape[1], x.dtype.type
    mass = 0.0
    if smoothing > 0:
        for c in range(thread, classes, THREADS):
            mass += weights[c]
        mass = _block_sum(mass, shared)
    part, spread, zero = kind(gradient[0] * share[0]), smoothing / kind(classes), kind(0)
    pull = kind(spread * mass)
    for n in range(cuda.blockIdx.x, x.shape[0], cuda.gridDim.x):
        row, place, label, z = x[n], target[n], labels[n], logarithms[n]
        hit = (kind(1) - smoothing) * weights[label] if 0 <= label < classes else kind(nan)
        for c in range(thread, classes, THREADS):
            slope = exp(row[c] - z) * (hit + pull) - spread * weights[c]
            if c == label:
                slope -= hit
            place[c] = zero if label == ignore else part * slope


@cuda.jit
def _share(every: Any, weights: Any, ignore: int, share: Any) -> None:
    """What a loss counts for in the mean; one block."""
    shared = cuda.shared.array(THREADS, _DOUBLE)
    total = 0.0
    for n in range(cuda.threadIdx.x, every.size, THREADS):
        label = every[n]
        if label != ignore:
            total += weights[label] if 0 <= label < weights.size else nan
    total = _block_sum(total, shared)
    if cuda.threadIdx.x == 0:
        share[0] = 1 / total if total != 0 else inf


def bind_share(every: DeviceArray, weights: DeviceArray, ignore: int, share: DeviceArray) -> Callable[[], None]:
    """A function that computes what a loss counts for; see ``cross_entropy_kernels.share_of``."""
    kernel, arguments = _share[1, THREADS, current_stream()], (flat(every), flat(weights), ignore, flat(share))
    return lambda: kernel(*arguments)


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
) -> Callable[[], None]:
    """A function that computes a tile's share of the loss; see ``cross_entropy_kernels.forward``."""
    x, y, w = as_numba(logits), flat(labels), flat(weights)
    losses = cuda.device_array(x.shape[0], _DOUBLE)
    rows, last = _rows[x.shape[0], THREADS, stream], _total[1, THREADS, stream]
    number, z, part, out = x.dtype.type(smoothing), flat(logarithms), flat(share), flat(result)

    def run() -> None:
        rows(x, y, w, ignore, number, z, losses)
        last(losses, part, out)

    return run


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
) -> Callable[[], None]:
    """A function that computes the logits' gradient; see ``cross_entropy_kernels.backward``."""
    x, y, w = as_numba(logits), flat(labels), flat(weights)
    rows = _gradient[x.shape[0], THREADS, stream]
    numbers = (ignore, x.dtype.type(smoothing))
    read = (flat(logarithms), flat(share), flat(gradient))
    out = as_numba(target)
    return lambda: rows(x, y, w, *numbers, *read, out)
