"""Agendas: rows leave by (time, key), however many share a bucket, and whether they came before it opened or after."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

from maniple.runtime.schedule.order import put
from maniple.strategies.timing import agenda, tables


@numba.njit
def drained(times: NDArray[np.int64], keys: NDArray[np.int64], early: int) -> NDArray[np.int64]:
    """Rows as they leave: the first ones are there when the bucket is opened, of the others one comes as one leaves."""
    (buckets, following), line = agenda.empty(len(times))
    table, left = np.zeros((len(times), tables.WIDTH), dtype=np.int64), np.zeros(len(times), dtype=np.int64)
    table[:, tables.KEY], table[:, tables.DUE] = keys, times
    for row in range(early):
        put(buckets, following, row, 7 * len(times))  # later than all buckets: the last one
    lined = agenda.open_bucket(following, line, table, buckets[-1])
    coming = early
    for place in range(len(times)):
        lined -= 1
        left[place] = line[1][lined]
        if coming < len(times):
            lined = agenda.insert(table, line[0], line[1], lined, times[coming], coming)
            coming += 1
    return left


def expected(times: NDArray[np.int64], keys: NDArray[np.int64], early: int) -> list[int]:
    there, left = list(range(early)), []
    for coming in range(early, early + len(times)):
        there.sort(key=lambda row: (times[row], keys[row]))
        left.append(there.pop(0))
        if coming < len(times):
            there.append(coming)
    return left


@pytest.mark.parametrize("rows", [1, 5, agenda.FEW, agenda.FEW + 1, 5 * agenda.FEW])
@pytest.mark.parametrize("seed", range(4))
def test_rows_leave_by_time_and_key(rows: int, seed: int) -> None:
    """The fourth draws one time for all; keys rise in the third, as they mostly do."""
    chance = np.random.default_rng(seed)
    times = chance.integers(0, 1 if seed == 3 else rows // 2 + 1, rows)
    keys = np.arange(rows) if seed == 2 else chance.permutation(rows)
    for early in {1, (rows + 1) // 2, rows}:
        assert drained(times, keys, early).tolist() == expected(times, keys, early)
