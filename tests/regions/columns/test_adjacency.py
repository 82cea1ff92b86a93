"""Columns behind starts: the values of every row, once and ascending, or as they come."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from maniple.regions.columns.adjacency import csr, gathered

PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=30)


def test_csr_of_nothing() -> None:
    starts, values = csr(3, [])
    assert starts.tolist() == [0, 0, 0, 0]
    assert values.tolist() == []


@given(PAIRS)
def test_csr_gives_the_values_of_every_row_once_and_ascending(pairs: list[tuple[int, int]]) -> None:
    starts, values = csr(5, pairs)
    assert values.dtype == np.int64
    for row in range(5):
        wanted = sorted({value for owner, value in pairs if owner == row})
        assert values[starts[row] : starts[row + 1]].tolist() == wanted


@given(PAIRS)
def test_gathered_values_come_as_often_and_in_the_order_in_which_they_are_said(pairs: list[tuple[int, int]]) -> None:
    starts, values = gathered(5, np.asarray(pairs, dtype=np.int64).reshape(len(pairs), 2))
    for row in range(5):
        assert values[starts[row] : starts[row + 1]].tolist() == [value for owner, value in pairs if owner == row]
