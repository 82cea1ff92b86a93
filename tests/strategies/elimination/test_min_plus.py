"""The best choice between two: what trying all says, the first of equals, whatever is not looked at."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from maniple.strategies.elimination.min_plus import least_between

COSTS = st.one_of(st.integers(-3, 12).map(float), st.floats(0.0, 1e12), st.just(np.inf))
"""Whole numbers often, for equals; and what no plan can have."""


@st.composite
def sides(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    first, middle, last = (draw(st.integers(1, extent)) for extent in (4, 40, 9))
    return draw(arrays(float, (first, middle), elements=COSTS)), draw(arrays(float, (middle, last), elements=COSTS))


@given(sides())
def test_the_best_between_two_is_the_first_of_the_least(found: tuple[np.ndarray, np.ndarray]) -> None:
    before, after = found
    best, least = least_between(before, after)
    every = before[:, :, None] + after[None, :, :]
    np.testing.assert_array_equal(least, every.min(axis=1))
    np.testing.assert_array_equal(best, every.argmin(axis=1))
