"""Search limits: what of a budget is for what, and what is said of it first."""

from __future__ import annotations

import math
import time

import pytest

from maniple.process.inventory import announce
from maniple.search_limits import SEARCHED, SURVEYED, Limits


def test_a_budget_in_which_tasks_are_timed_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 103.0)
    whole, shared = Limits(100.0, 20.0, None, 1), Limits(100.0, 20.0, None, 1, timing=True)
    assert whole.left_s == 17.0
    assert shared.left_s == pytest.approx(20.0 * SEARCHED - 3.0)
    assert shared.until(SURVEYED) == pytest.approx(20.0 * SURVEYED - 3.0)
    assert shared.until(1.0) == 17.0
    assert Limits(100.0, None, 5, 1, timing=True).left_s == math.inf


@pytest.mark.parametrize(("races", "compiles"), [(False, False), (True, False), (True, True)])
def test_what_is_measured_when_is_said_first(
    capsys: pytest.CaptureFixture[str], *, races: bool, compiles: bool
) -> None:
    announce.cache_clear()
    Limits(0.0, 40.0, None, 1).tell()
    Limits(0.0, None, 9, 1, timing=True).tell()
    assert capsys.readouterr().err == ""
    Limits(0.0, 40.0, None, 1, timing=True, races=races, compiles=compiles).tell()
    told = capsys.readouterr().err
    assert "searching for 40 s" in told
    assert "until 10 s are over" in told
    assert "until 18 s; then" in told
    assert ("steps of up to 3 plans, data parallelism among them" in told) == races
    assert ("what torch compiles of them comes on top" in told) == compiles
