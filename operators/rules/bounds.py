"""Bounds: boxes as arrays, for whoever works with many at once."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from maniple.operators.rules.tile import split_range

__all__: list[str] = []

Column = np.ndarray[tuple[int], np.dtype[np.int64]]
Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Bounds = np.ndarray[tuple[int, int, int], np.dtype[np.int64]]
"""By box, axis and end (low, high)."""


def row_major(counts: Sequence[int]) -> Table:
    """All indices of a grid, the last axis running first."""
    return np.indices(counts, dtype=np.int64).reshape(len(counts), prod(counts)).T


def blocks_of(shape: Sequence[int], degrees: Sequence[int]) -> Bounds:
    """A tensor cut into so many blocks along each dimension, row-major, the empty ones included."""
    index = row_major(degrees)
    found = np.empty((len(index), len(shape), 2), dtype=np.int64)
    for axis, (extent, degree) in enumerate(zip(shape, degrees, strict=True)):
        found[:, axis] = np.asarray(split_range(extent, degree))[index[:, axis]]
    return found
