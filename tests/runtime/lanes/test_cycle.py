"""Cycles: which rows of a run have something to do, in ramp, steady state and drain."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from maniple.runtime.lanes.cycle import Cycle, Moment


def ran(lags: tuple[int, ...], gives: list[bool]) -> list[list[int | None]]:
    """By run and row the number of the batch that it works on."""
    cycle, found = Cycle(cast("Any", SimpleNamespace(lags=lags, rings=()))), []
    for run, new in enumerate(gives):
        moment = cycle.next(gives=new)
        idle = cycle.idle(moment)
        assert moment.turn == run
        found.append([None if row in idle else run - lag for row, lag in enumerate(lags)])
        cycle.advance(gives=new)
    assert cycle.is_drained
    return found


def test_three_batches_pass_rows_of_three_lags() -> None:
    """The table of the module."""
    assert ran((0, 1, 2), [True, True, True, False, False]) == [
        [0, None, None],
        [1, 0, None],
        [2, 1, 0],
        [None, 2, 1],
        [None, None, 2],
    ]


def test_one_batch_alone_passes_them_one_by_one() -> None:
    assert ran((0, 1, 2), [True, False, False]) == [[0, None, None], [None, 0, None], [None, None, 0]]


def test_after_a_drain_the_next_ramp_begins_and_turns_go_on() -> None:
    cycle = Cycle(cast("Any", SimpleNamespace(lags=(0, 1), rings=())))
    for gives in (True, False):
        cycle.advance(gives=gives)
    assert cycle.is_drained
    assert cycle.next(gives=True) == Moment(2, 0, 0)
    cycle.advance(gives=True)
    assert not cycle.is_drained
    assert cycle.next(gives=True) == Moment(3, 0, 1)
    assert cycle.next(gives=False) == Moment(3, 1, 1)
