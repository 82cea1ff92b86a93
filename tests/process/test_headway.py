"""Headway: what a rank tells of itself."""

from __future__ import annotations

import pytest

from maniple.process.error import RequestError
from maniple.process.headway import Headway
from maniple.runtime.control.world import World


def test_whatever_gets_on_changes_the_count() -> None:
    headway, others = Headway(), [0]
    headway.count(lambda: others[0], lambda: 0)
    seen = [headway.progress()]
    headway.step()
    seen.append(headway.progress())
    others[0] = 5
    seen.append(headway.progress())
    with headway.waiting():
        assert headway.progress() == seen[-1], "to begin to wait is no progress"
    seen.append(headway.progress())
    assert seen == sorted(set(seen))


def test_a_rank_waits_while_its_program_does_and_no_processor_works() -> None:
    headway, working = Headway(), [0]
    headway.count(lambda: 0, lambda: working[0])
    assert not headway.waits()
    with headway.waiting():
        with headway.waiting():
            assert headway.waits()
        assert headway.waits()
        working[0] = 1
        assert not headway.waits()
    assert not headway.waits()


def test_the_longest_patience_counts_while_it_lasts() -> None:
    now = [5.0]
    headway = Headway(lambda: now[0])
    assert headway.patience_s() == 0.0
    with headway.busy(100.0):
        with headway.busy(1000.0), headway.busy(10.0):
            now[0] = 7.0
            assert headway.patience_s() == 998.0
        assert headway.patience_s() == 98.0
        now[0] = 106.0
        assert headway.patience_s() == 0.0, "it is over, also before the block is"
    assert headway.patience_s() == 0.0


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(RequestError, match="busy: expected seconds above 0"), World.solo().busy(seconds):
        pass
