"""Columns behind starts: the values of every row, one row after the other (compressed sparse rows)."""

# pyright: reportArgumentType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from maniple.process.compilation.compiled import kernel

Column = np.ndarray[tuple[int], np.dtype[np.int64]]
Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]


def csr(count: int, pairs: Sequence[tuple[int, int]] | np.ndarray[tuple[int, int], Any]) -> tuple[Column, Column]:
    """Compress (row, value) pairs: the values of row i, ascending, are `values[starts[i]:starts[i + 1]]`.

    Args:
        count: how many rows there are.
        pairs: in any order, also several times.
    """
    if not len(pairs):
        return np.zeros(count + 1, dtype=np.int64), np.zeros(0, dtype=np.int64)
    table = np.asarray(pairs, dtype=np.int64)
    width = int(table[:, 1].max()) + 1
    both = table[:, 0] * width + table[:, 1]
    both.sort()
    both = both[np.concatenate(([True], both[1:] != both[:-1]))]
    starts = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(both // width, minlength=count), out=starts[1:])
    return starts, both % width


@kernel
def gathered(count: int, pairs: Table) -> tuple[Column, Column]:
    """As `csr`, but the values of a row as they come: for who counts how often each is said, and asks for no order."""
    starts, values = np.zeros(count + 1, dtype=np.int64), np.empty(len(pairs), dtype=np.int64)
    for pair in range(len(pairs)):
        starts[pairs[pair, 0]] += 1
    ends = 0
    for row in range(count + 1):
        ends += starts[row]
        starts[row] = ends
    for pair in range(len(pairs) - 1, -1, -1):
        # Where a row's values end has become where the last of them goes.
        starts[pairs[pair, 0]] -= 1
        values[starts[pairs[pair, 0]]] = pairs[pair, 1]
    return starts, values
