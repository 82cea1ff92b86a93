"""Waits of a rank: they end with what they wait for, or with the first failure."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from maniple.process.error import RunError
from maniple.runtime.control.waiting import Waiting
from maniple.runtime.control.world import World
from maniple.testing import local_worlds

TIMEOUT_S = 30.0


def ended(wait: Callable[[], object], then: Callable[[], object]) -> str:
    """How a wait ends on a thread of its own once something has happened: what it raises, or nothing."""
    found: list[str] = []

    def body() -> None:
        try:
            wait()
        except RunError as error:
            found.append(str(error))
        else:
            found.append("")

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    then()
    thread.join(TIMEOUT_S)
    return found[0]


def test_a_wait_ends_when_somebody_notifies_that_it_is_over() -> None:
    waiting, over = Waiting(World.solo(cores=1)), threading.Event()

    def end() -> None:
        with waiting.finished:
            over.set()
            waiting.finished.notify_all()

    assert ended(lambda: waiting.await_done(over.is_set), end) == ""


@pytest.mark.parametrize("what", ["done", "event"])
def test_a_wait_ends_with_the_first_failure_and_says_that_it_was_told(what: str) -> None:
    waiting, never = Waiting(World.solo(cores=1)), threading.Event()
    wait = (lambda: waiting.await_done(never.is_set)) if what == "done" else (lambda: waiting.await_event(never))

    def fail() -> None:
        waiting.fail(RunError("first"))
        waiting.fail(RunError("second"))

    assert waiting.error is None
    assert ended(wait, fail) == "first"
    assert (str(waiting.error), waiting.told) == ("first", True)


def test_a_failure_that_nobody_asked_about_is_not_told() -> None:
    waiting = Waiting(World.solo(cores=1))
    waiting.fail(RunError("unseen"))
    assert not waiting.told


def test_who_waits_at_a_rank_that_closes_is_let_go() -> None:
    waiting = Waiting(World.solo(cores=1))
    assert "was closed" in ended(lambda: waiting.await_done(lambda: False), waiting.close)


def test_a_failure_of_this_rank_stops_the_others_and_one_of_theirs_does_not_echo() -> None:
    worlds = local_worlds(2)
    one, other = (Waiting(world) for world in worlds)
    for world, waiting in zip(worlds, (one, other), strict=True):
        world.control.on_stop(waiting.fail)
    one.fail(RunError("mine"))
    with pytest.raises(RunError, match=r"rank 0.*mine"):
        other.check()
    with pytest.raises(RunError, match=r"^mine$"):
        one.check()


def test_a_lane_that_gives_up_leaves_the_program_to_be_told() -> None:
    waiting = Waiting(World.solo(cores=1))
    waiting.give_up()
    waiting.fail(RunError("task nap[0] failed"))
    with pytest.raises(RunError, match=r"nap\[0\]"):
        waiting.give_up()
    assert not waiting.told
    with pytest.raises(RunError, match=r"nap\[0\]"):
        waiting.check()
    assert waiting.told
