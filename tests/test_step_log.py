"""The step log: periods of all steps, times of a few that are evenly spread, and nothing of steps that do not count."""

from __future__ import annotations

from array import array
from itertools import pairwise
from types import SimpleNamespace
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from maniple.step_log import MOST_KEPT, StepLog
from maniple.step_run import StepRun


def step(number: int, begun: int, ended: int) -> StepRun:
    times = array("q", [begun]), array("q", [ended])
    replay = SimpleNamespace(times=(times, times))
    run = SimpleNamespace(replay=replay, slot=number % 2, number=number, ended_ns=ended)
    return cast("StepRun", SimpleNamespace(run=run, number=number, begun_ns=begun))


def test_a_period_goes_from_the_end_of_the_step_before_whatever_it_was() -> None:
    log = StepLog()
    for number, (begun, ended, whole) in enumerate([(100, 130, True), (150, 155, False), (160, 190, True)]):
        log.add(step(number, begun, ended), whole=whole)
    assert list(log.periods_ns) == [30, 35]
    assert log.others == 1
    assert [(one.number, one.before_ns, one.begun_ns) for one in log.kept] == [(0, 100, 100), (2, 155, 160)]


def test_times_are_copies() -> None:
    log, one = StepLog(), step(0, 5, 9)
    log.add(one, whole=True)
    one.run.replay.times[0][0][0] = 77
    assert list(log.kept[0].times[0]) == [5]


@given(st.integers(1, 300))
def test_a_few_steps_are_kept_evenly_spread(count: int) -> None:
    log = StepLog()
    for number in range(count):
        log.add(step(number, 10 * number, 10 * number + 8), whole=True)
    kept = [one.number for one in log.kept]
    assert 0 < len(kept) <= MOST_KEPT
    assert len({later - earlier for earlier, later in pairwise(kept)}) <= 1
    assert count - kept[-1] <= max(1, kept[1] if len(kept) > 1 else 1)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=MOST_KEPT))
def test_the_typical_step_is_nearest_to_the_median(periods: list[int]) -> None:
    log, at = StepLog(), 1000
    for number, period in enumerate(periods):
        log.add(step(number, at, at + period), whole=True)
        at += period
    median = sorted(periods)[(len(periods) - 1) // 2]
    assert log.median_ns() == median
    assert log.kept[log.typical()].period_ns == median
