"""What a thread does of a row of cross-entropy on CUDA: its part of the sum of exponentials, and of the gradient.

A row's threads take groups of four elements that one load brings, two groups at a time; before the first that begins a
line of memory, and behind the last whole one, they take single elements.
"""

from __future__ import annotations

from functools import lru_cache
from math import exp, inf, nan
from typing import Any

import numpy as np
import torch

from maniple.operators.library.losses.cross_entropy_kernels import row_loss
from maniple.runtime.devices.cuda_kernels import FORMS, cuda, kind_of, load_four, store_four

__all__: list[str] = []

LINE = 32
"""Elements to a multiple of which, in memory, a row's threads begin: what neighbours write together is whole then."""


@cuda.jit(device=True)
def _raise_top(top: Any, total: Any, most: Any) -> Any:
    """The greatest so far and a sum relative to it, once others join of which ``most`` is the greatest."""
    if most > top:
        return most, total * exp(top - most)
    return top, total


@cuda.jit(device=True)
def lead_of(first: Any, classes: Any) -> Any:
    """The elements of a row before the first that begins a line; ``first`` is its own first element's place."""
    return min((LINE - first % LINE) % LINE, classes)


@lru_cache(maxsize=64)
def row_sum_of(logits: torch.dtype, lanes: int) -> Any:
    """The device function of what a thread takes of a row: its greatest logit, and the sum relative to that.

    Args:
        logits: Their dtype.
        lanes: How many threads share a row.
    """
    load, lowest, zero = FORMS[logits].load, kind_of(logits)(-inf), kind_of(logits)(0)

    @cuda.jit(device=True)
    def one(top: Any, total: Any, a: Any) -> Any:
        top, total = _raise_top(top, total, a)
        return top, total + exp(a - (zero if top == lowest else top))

    @cuda.jit(device=True)
    def eight(top: Any, total: Any, first: Any, second: Any) -> Any:
        a, b, c, d = load(first[0]), load(first[1]), load(first[2]), load(first[3])
        e, f, g, h = load(second[0]), load(second[1]), load(second[2]), load(second[3])
        left, right = max(max(a, b), max(c, d)), max(max(e, f), max(g, h))  # noqa: PLW3301  (in pairs it is shorter)
        top, total = _raise_top(top, total, max(left, right))
        under = zero if top == lowest else top
        total += (exp(a - under) + exp(b - under)) + (exp(c - under) + exp(d - under))
        return top, total + ((exp(e - under) + exp(f - under)) + (exp(g - under) + exp(h - under)))

    def row_sum(row: Any, lead: Any, lane: Any) -> Any:
        top, total, c, classes = lowest, zero, lane, row.size
        while c < lead:
            top, total = one(top, total, load(row[np.uint64(c)]))
            c += lanes
        groups, g = (classes - lead) // 4, lane
        while g + lanes < groups:
            at = lead + 4 * g
            first, second = load_four(row, np.uint64(at)), load_four(row, np.uint64(at + 4 * lanes))
            top, total = eight(top, total, first, second)
            g += 2 * lanes
        if g < groups:
            for c in range(lead + 4 * g, lead + 4 * g + 4):
                top, total = one(top, total, load(row[np.uint64(c)]))
        c = lead + 4 * groups + lane
        while c < classes:
            top, total = one(top, total, load(row[np.uint64(c)]))
            c += lanes
        return top, total

    return cuda.jit(row_sum, device=True)


@lru_cache(maxsize=64)
def smoothed_of(logits: torch.dtype, rest: torch.dtype, lanes: int) -> Any:
    """The device function of a thread's part of the weighted sum of a row, and of the sum of weights."""
    load, load_rest, zero = FORMS[logits].load, FORMS[rest].load, kind_of(logits)(0)

    def smoothed(row: Any, weights: Any, lane: Any) -> Any:
        dot, mass = zero, zero
        for c in range(lane, row.size, lanes):
            weight = load_rest(weights[np.uint64(c)])
            dot += weight * load(row[np.uint64(c)])
            mass += weight
        return dot, mass

    return cuda.jit(smoothed, device=True)


@lru_cache(maxsize=64)
def loss_of(logits: torch.dtype, rest: torch.dtype) -> Any:
    """The device function of a row's loss."""
    load, load_rest = FORMS[logits].load, FORMS[rest].load

    def loss(row: Any, label: Any, weights: Any, ignore: int, z: Any, dot: Any, mass: Any, smoothing: Any) -> float:
        if label == ignore:
            return 0.0
        if label < 0 or label >= row.size:
            return nan
        weight = load_rest(weights[label])
        return float(row_loss(z, load(row[label]), dot, weight, mass, smoothing, row.size))

    return cuda.jit(loss, device=True)


@lru_cache(maxsize=64)
def _slope_of(logits: torch.dtype, rest: torch.dtype, *, smooth: bool) -> Any:
    """The device function of an element of the gradient; ``how`` is what is the same for all of a row."""
    load, store, load_rest = FORMS[logits].load, FORMS[logits].store, FORMS[rest].load

    def slope(element: Any, c: Any, label: Any, how: Any, weights: Any) -> Any:
        z, mass, hit, spread = how
        found = exp(load(element) - z) * mass
        if smooth:
            found -= spread * load_rest(weights[np.uint64(c)])
        return store(found - hit if c == label else found)

    return cuda.jit(slope, device=True)


@lru_cache(maxsize=64)
def row_slope_of(logits: torch.dtype, rest: torch.dtype, lanes: int, *, smooth: bool, wide: bool) -> Any:
    """The device function of what a thread writes of the gradient of a row; see ``backward_kernel``."""
    slope = _slope_of(logits, rest, smooth=smooth)

    def row_slope(row: Any, place: Any, lead: Any, lane: Any, label: Any, how: Any, weights: Any) -> None:
        for c in range(lane, lead, lanes):
            place[np.uint64(c)] = slope(row[np.uint64(c)], c, label, how, weights)
        if wide:
            groups = (row.size - lead) // 4
            for g in range(lane, groups, 2 * lanes):  # two groups of four at a time; the last may be both
                at, then = lead + 4 * g, lead + 4 * (g + lanes if g + lanes < groups else g)
                four, more = load_four(row, np.uint64(at)), load_four(row, np.uint64(then))
                a, b = slope(four[0], at, label, how, weights), slope(four[1], at + 1, label, how, weights)
                c, d = slope(four[2], at + 2, label, how, weights), slope(four[3], at + 3, label, how, weights)
                p, q = slope(more[0], then, label, how, weights), slope(more[1], then + 1, label, how, weights)
                r, s = slope(more[2], then + 2, label, how, weights), slope(more[3], then + 3, label, how, weights)
                store_four(place, np.uint64(at), (a, b, c, d))
                store_four(place, np.uint64(then), (p, q, r, s))
            for c in range(lead + 4 * groups + lane, row.size, lanes):
                place[np.uint64(c)] = slope(row[np.uint64(c)], c, label, how, weights)

    return cuda.jit(row_slope, device=True)
