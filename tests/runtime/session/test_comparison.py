"""Comparisons: they say of every launch what `Operation.take` says, and of the recorded one without asking it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from launched import add, summed, total

import maniple as mp
from maniple.regions.rectangle import Rect
from maniple.runtime.program.operation import Operation, state
from maniple.runtime.session.comparison import comparison

if TYPE_CHECKING:
    from maniple.runtime.session.session import Session

ROWS = mp.blocks((3,))


def test_a_comparison_says_what_the_operation_says(session: Session) -> None:
    x, y = session.region((9,), name="x"), session.region((9,), name="y")
    domain = Rect((0,), (3,))
    recorded = state(add, domain, (2.0, x[ROWS], y[ROWS])).without_values()
    take = comparison(recorded, (float,))
    launches: list[tuple[Any, Any, tuple[Any, ...]]] = [
        (add, domain, (2.0, x[ROWS], y[ROWS])),
        (add, Rect((0,), (3,)), (True, x[mp.blocks((3,))], y[ROWS])),
        (add, 3, (7, x[ROWS], y[ROWS])),
        (add, domain, (None, y[ROWS], x[ROWS])),
        (add, domain, (2.0, x[ROWS], y)),
        (add, domain, (2.0, x[ROWS])),
        (add, domain, (2.0, x[ROWS], y[ROWS], 1)),
        (add, domain, (x[ROWS], x[ROWS], y[ROWS])),
        (add, domain, (2.0, 3.0, y[ROWS])),
        (add, domain, (2.0, x[ROWS].shift(1), y[ROWS])),
        (add, 2, (2.0, x[ROWS], y[ROWS])),
        (add, None, (2.0, x[ROWS], y[ROWS])),
        (total, domain, (2.0, x[ROWS], y[ROWS])),
    ]
    answers = [take(*launch) for launch in launches]
    assert answers == [recorded.take(*launch) for launch in launches]
    assert answers == [(2.0,), (True,), (7,), *[None] * 10]


def test_the_recorded_launch_is_told_at_once(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    x = session.region((9,), name="x")

    def refuse(*_: object) -> None:
        raise AssertionError("it was not told at once")

    monkeypatch.setattr(Operation, "take", refuse)
    for task, args in ((summed, (x,)), (summed, (x[ROWS],))):
        assert comparison(state(task, None, args), ())(task, None, args) == ()
    with pytest.raises(AssertionError, match="at once"):
        comparison(state(summed, None, (x,)), ())(summed, None, ())
