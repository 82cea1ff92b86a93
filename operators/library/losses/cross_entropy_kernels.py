"""The softmax-cross-entropy kernel: per sample one logarithm of a sum is kept, never the probabilities.

For sample n with label y, class weights w, smoothing e and z = log(sum over c of exp(x[c])):

    loss(n)        = (1-e) w[y] (z - x[y]) + e/C * (sum over c of w[c] (z - x[c]))
    d loss(n)/dx c = exp(x[c] - z) ((1-e) w[y] + e/C * sum(w)) - (1-e) w[y] [c = y] - e/C w[c]

and the result is the mean over the whole batch's valid labels, weighted by w[y], as torch.nn.CrossEntropyLoss has it: a
tile adds up its losses times ``share``, which is 1 over the sum of all those weights. A label equal to ``ignore`` adds
nothing. torch makes four passes over the logits and a region as large as them; this makes two over each row, which lies
in the cache for the second.

The exponential is Cephes' (S. Moshier, Methods and Programs for Mathematical Functions, 1989): 2^k times a polynomial,
which LLVM turns into vectors where it leaves a call of the C library alone.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba.extending import overload

Floats = npt.NDArray[np.float64]  # or of float32: numba compiles for what comes
Labels = npt.NDArray[np.int64]


def exponential(x: float) -> float:
    """``exp(x)`` for x <= 0, to 2 units in the last place, and never less than the least normal number."""
    return exp(x)


@numba.njit(nogil=True, inline="never")
def _single(x: Any) -> Any:
    one = np.float32(1)
    x = np.float32(-87.0) if x < np.float32(-87.0) else x  # noqa: FURB136  (max would lose a NaN)
    k = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = x - k * np.float32(0.693359375) + k * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    power = np.int32((np.int32(k) + np.int32(127)) << np.int32(23)).view(np.float32)
    return (p * r * r + r + one) * power


@overload(exponential)
def _exponential(x: float) -> Callable[[float], float]:  # numba passes the argument's type, and compares annotations
    def single(x: float) -> float:
        found: float = _single(x)
        return found

    def double(x: float) -> float:
        return exp(x)

    return single if x == numba.types.float32 else double  # type: ignore[comparison-overlap]


@numba.njit(nogil=True)
def _greatest(row: Floats) -> Any:
    """The greatest element; in four chains, for one would wait for itself."""
    four = np.uint64(4)
    a = row[0]
    b, c, d = a, a, a
    for i in range(row.size // 4):
        at = four * np.uint64(i)
        a, b = max(a, row[at]), max(b, row[at + np.uint64(1)])
        c, d = max(c, row[at + np.uint64(2)]), max(d, row[at + np.uint64(3)])
    for i in range(row.size - row.size % 4, row.size):
        a = max(a, row[np.uint64(i)])
    return max(a, b, c, d)


@numba.njit(nogil=True, fastmath={"reassoc", "nsz"})
def _sum(row: Floats) -> Any:
    total = row[0] - row[0]
    for i in range(row.size):
        total += row[np.uint64(i)]
    return total


@numba.njit(cache=True, nogil=True)
def share_of(every: Labels, weights: Floats, ignore: int, share: Floats) -> None:
    """What a loss counts for in the mean: 1 over the sum of the weights of all valid labels.

    Args:
        every: The labels of the whole batch.
        weights: (C,).
        ignore: The label that does not count.
        share: (1,); written. Infinite where no label is valid, so that the mean of nothing is no number.
    """
    total = weights[0] - weights[0]
    for n in range(every.size):
        if every[n] != ignore:
            if every[n] < 0 or every[n] >= weights.size:
                raise IndexError("cross_entropy: a label is no class: index out of bounds")
            total += weights[every[n]]
    share[0] = 1 / total if total != 0 else np.inf


@numba.njit(nogil=True)
def row_loss(z: float, chosen: float, dot: float, weight: Any, weights: float, smoothing: float, classes: int) -> Any:
    """The loss of one sample.

    Args:
        z: The logarithm of the sum of the exponentials.
        chosen: The logit of the label.
        dot: The sum over c of w[c] x[c]; not used without smoothing.
        weight: w[y].
        weights: The sum of the class weights.
        smoothing: e.
        classes: C.
    """
    loss = (1 - smoothing) * weight * (z - chosen)
    if smoothing > 0:
        loss += smoothing / classes * (weights * z - dot)
    return loss


@numba.njit(cache=True, nogil=True)
def forward(
    x: Floats,
    labels: Labels,
    share: Floats,
    weights: Floats,
    ignore: int,
    smoothing: float,
    logarithms: Floats,
    result: Floats,
) -> None:
    """A tile's share of the loss.

    Args:
        x: (rows, C) logits.
        labels: (rows,).
        share: (1,) one over the sum of the weights of the whole batch's labels.
        weights: (C,).
        ignore: The label that does not count.
        smoothing: e, as a number of the logits' dtype.
        logarithms: (rows,) z; written.
        result: (1,); written.
    """
    total, classes = 0.0, x.shape[1]
    scratch = np.empty(classes, logarithms.dtype)
    sum_of_weights = _sum(weights)
    for n in range(x.shape[0]):
        row, label = x[n], labels[n]
        top = _greatest(row)
        for c in range(classes):
            scratch[np.uint64(c)] = exponential(row[np.uint64(c)] - top)
        z = top + np.log(_sum(scratch))
        logarithms[n] = z
        if label == ignore:
            continue
        dot = z - z
        if smoothing > 0:
            for c in range(classes):
                dot += weights[c] * row[c]
        if label < 0 or label >= classes:
            raise IndexError("cross_entropy: a label is no class: index out of bounds")
        total += row_loss(z, row[label], dot, weights[label], sum_of_weights, smoothing, classes)
    result[0] = total * share[0]


@numba.njit(cache=True, nogil=True)
def backward(
    x: Floats,
    labels: Labels,
    share: Floats,
    weights: Floats,
    ignore: int,
    smoothing: float,
    logarithms: Floats,
    gradient: Floats,
    target: Floats,
) -> None:
    """The gradient of the logits.

    Args:
        x: See ``forward``, as all others down to ``logarithms``, which is read.
        labels: See ``forward``.
        share: See ``forward``.
        weights: See ``forward``.
        ignore: See ``forward``.
        smoothing: See ``forward``.
        logarithms: See ``forward``.
        gradient: (1,) of the result.
        target: (rows, C); written.
    """
    classes = x.shape[1]
    part = gradient[0] * share[0]
    spread = smoothing / target.dtype.type(classes)
    pull = spread * _sum(weights)
    one = target.dtype.type(1)
    for n in range(x.shape[0]):
        row, place, label, z = x[n], target[n], labels[n], logarithms[n]
        if label == ignore:
            place[:] = 0
            continue
        hit = (one - smoothing) * weights[label]
        mass = part * (hit + pull)
        for c in range(classes):
            place[np.uint64(c)] = exponential(row[np.uint64(c)] - z) * mass
        place[label] -= part * hit
        if smoothing > 0:
            for c in range(classes):
                place[c] -= part * spread * weights[c]
