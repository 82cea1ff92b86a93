"""Events: who hears of them, in which order, and what a hearer that raises does to those who wait."""

from __future__ import annotations

import pytest

from maniple.runtime.devices.event import DONE, Signal, when_all


def test_hearers_are_told_in_order_and_late_ones_at_once() -> None:
    event, told = Signal(), list[str]()
    event.then(lambda error: told.append(f"first {error}"))
    # Heard while the event is told: after those before it, and before the event is done.
    event.then(lambda _: event.then(lambda error: told.append(f"third {error}")))
    event.then(lambda error: told.append(f"second {error}"))
    event.set()
    event.then(lambda error: told.append(f"fourth {error}"))
    assert told == ["first None", "second None", "third None", "fourth None"]
    assert event.done


def test_a_hearer_that_raises_is_heard_of_by_all_who_wait() -> None:
    event, told = Signal(), list[BaseException | None]()

    def fail(_: BaseException | None) -> None:
        raise ZeroDivisionError("one over zero")

    event.then(told.append)
    event.then(fail)
    event.then(told.append)
    event.set()
    assert told[0] is None
    assert isinstance(told[1], ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        event.wait()


def test_all_of_some_events_fail_with_the_first_failure_that_is_found() -> None:
    events, told = [Signal(), Signal()], list[BaseException | None]()
    when_all([*events, DONE], told.append)
    events[0].set(ValueError("first"))
    assert told == []
    events[1].set(ValueError("second"))
    assert [str(error) for error in told] == ["first"]
