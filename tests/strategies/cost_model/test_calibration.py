"""Calibration: the fit of links, and a machine whose roofline gives what was measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.process.error import RequestError
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.roofline import Rooflines
from maniple.strategies.cost_model.calibration import (
    LinkFit,
    ProcessorRates,
    calibrate,
    fit_link,
    middle,
)

SIZES = [2**power for power in range(4, 24, 4)]


@given(latency=st.floats(1e-6, 1e-3), rate=st.floats(1e8, 1e11))
def test_exact_transfers_give_their_line_back(latency: float, rate: float) -> None:
    found = fit_link(SIZES, [latency + size / rate for size in SIZES])
    # Where the latency hides the bytes, or they it, only their sum can be told.
    assert found.worst < 1e-6
    assert found.latency_s + SIZES[-1] / found.bandwidth == pytest.approx(latency + SIZES[-1] / rate, rel=1e-5)


@given(noise=st.lists(st.floats(0.5, 2.0), min_size=len(SIZES), max_size=len(SIZES)))
def test_noise_gives_no_negative_rates_and_is_told(noise: list[float]) -> None:
    seconds = [(1e-5 + size / 1e9) * factor for size, factor in zip(SIZES, noise, strict=True)]
    found = fit_link(SIZES, seconds)
    assert found.latency_s >= 0
    assert found.bandwidth > 0
    worst = max(
        abs(taken - found.latency_s - size / found.bandwidth) / taken
        for size, taken in zip(SIZES, seconds, strict=True)
    )
    assert found.worst == pytest.approx(worst)


def test_one_size_is_too_few() -> None:
    with pytest.raises(RequestError, match=r"at least two sizes, got \[8\]"):
        fit_link([8, 8], [1.0, 1.0])


def test_a_calibrated_machine_reaches_what_was_measured() -> None:
    machine = calibrate(
        Machine.cpu(2, ranks=2), ProcessorRates(7e9, 5e9, 1.2), LinkFit(1e-5, 2e9, 1.0, 0.0), launch_s=3e-6
    )
    assert Rooflines.of(machine).bandwidth[0] == pytest.approx(5e9)
    assert 0.7 * machine.processors[3].flops_per_s == pytest.approx(7e9)
    assert machine.processors[1].launch_s == 3e-6
    assert (machine.link(0, 1).latency_s, machine.link(0, 1).bandwidth) == (1e-5, 2e9)


def test_rates_are_the_middle_of_each() -> None:
    """One round was slow in its products, another in its copies."""
    rounds = [ProcessorRates(7e9, 2e9, 1.2), ProcessorRates(3e9, 5e9, 1.9), ProcessorRates(8e9, 6e9, 1.3)]
    assert middle(rounds) == ProcessorRates(7e9, 5e9, 1.3)
