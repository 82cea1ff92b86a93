"""Comparisons: they say of every launch what `Operation.take` says, and of the recorded one without asking it."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
import torch
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


@pytest.mark.parametrize("count", range(8))
def test_every_form_of_arguments_is_compared(session: Session, count: int) -> None:
    """Values and regions in any order, as many as there are; a launch is told in which any one argument differs."""
    x, y = session.region((9,), name="x"), session.region((9,), name="y")
    for form in product((False, True), repeat=count):
        recorded = Operation(summed, None, tuple(x.tiles if named else None for named in form), ())
        take = comparison(recorded, (float,) * form.count(False))
        same = tuple(x if named else float(place) for place, named in enumerate(form))
        assert take(summed, None, same) == tuple(value for value in same if isinstance(value, float))
        for place in range(count):
            for other in (x, y, 2, None):
                args = (*same[:place], other, *same[place + 1 :])
                assert take(summed, None, args) == recorded.take(summed, None, args), (form, place, other)


def test_a_value_that_is_not_plain_is_taken_as_well(session: Session) -> None:
    x, y = session.region((9,), name="x"), session.region((9,), name="y")
    recorded = state(add, 3, (torch.ones(2), x[ROWS], y[ROWS])).without_values()
    other = torch.zeros(3)
    found = comparison(recorded, (torch.Tensor,))(add, recorded.domain, (other, x[ROWS], y[ROWS]))
    assert found is not None
    assert found[0] is other
