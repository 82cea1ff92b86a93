from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from taskbench.metg import Sample, UndecidedError, metg

from maniple.process.error import RunError


def curve(overhead_us: float, sizes: list[int]) -> list[Sample]:
    """A system that adds a fixed cost to every task; one iteration takes 10 ns."""
    return [Sample(size, size / 100 + overhead_us, (size / 100) / (size / 100 + overhead_us)) for size in sizes]


def test_metg_is_interpolated_as_in_its_table() -> None:
    table = [Sample(4096, 60, 0.83), Sample(2048, 35, 0.71), Sample(1024, 22.5, 0.56), Sample(512, 16, 0.39)]
    assert metg(table) == pytest.approx(16 + (22.5 - 16) * (0.5 - 0.39) / (0.56 - 0.39))
    assert metg(table) == pytest.approx(20.2, abs=0.01)


@given(st.floats(0.5, 500.0))
def test_metg_of_a_fixed_overhead_is_about_twice_that(overhead_us: float) -> None:
    """Efficiency w / (w + o) is one half where w = o; halving sizes overestimates by 3 % at most."""
    sizes = [1 << power for power in range(24)]
    assert 2 * overhead_us <= metg(curve(overhead_us, sizes)) <= 2.07 * overhead_us


def test_a_smaller_size_that_is_no_faster_is_not_interpolated_to() -> None:
    assert metg([Sample(64, 20, 0.6), Sample(32, 25, 0.3)]) == 20


def test_the_smallest_granularity_counts_not_the_fewest_iterations() -> None:
    noisy = [Sample(64, 20, 0.8), Sample(32, 30, 0.55), Sample(16, 12, 0.4)]
    assert metg(noisy) == 20  # the next size of the curve, 32, is slower


def test_a_curve_that_ends_early_says_on_which_side() -> None:
    with pytest.raises(UndecidedError) as small:
        metg(curve(100.0, [1 << 8, 1 << 6]))
    assert small.value.larger
    with pytest.raises(UndecidedError) as large:
        metg(curve(1.0, [1 << 20, 1 << 18]))
    assert not large.value.larger


def test_an_efficiency_that_cannot_be_is_refused() -> None:
    with pytest.raises(RunError, match="160%"):
        metg([Sample(64, 20, 1.6), Sample(32, 25, 0.3)])
