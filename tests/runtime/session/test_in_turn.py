"""Programs in one process: one at a time in a world, several in worlds of their own, threads one after the other."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from launched import TIMEOUT_S, made, summed, tell, wait

from maniple.regions.error import RequestError
from maniple.runtime.control.world import World
from maniple.runtime.session.session import Session


def test_another_thread_is_refused_while_one_waits(session: Session) -> None:
    """The main thread reads what a task has not written yet."""
    go, begun, me = threading.Event(), threading.Event(), threading.current_thread().name
    x, y = session.region((3,), name="x"), session.region((3,), name="y")
    x.fill(0.0)
    y.fill(0.0)

    def other() -> None:
        assert begun.wait(TIMEOUT_S)
        try:
            for call in (lambda: session.launch(summed, y), y.read, session.fence):
                with pytest.raises(RequestError, match=rf"while thread '{re.escape(me)}' does.*start a process"):
                    call()
        finally:
            go.set()

    with ThreadPoolExecutor(1) as pool:
        refused = pool.submit(other)
        session.turn.take()  # as every call does for as long as it takes
        try:
            session.launch(tell, begun, x)
            session.launch(wait, go, x)
            assert x.read().tolist() == [2.0] * 3
        finally:
            session.turn.give()
        refused.result(TIMEOUT_S)
    assert session.launch(summed, y).get() == 0.0


def test_threads_may_follow_one_another(session: Session) -> None:
    x = session.region((3,), name="x")
    x.fill(2.0)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: session.launch(summed, x).get()).result(TIMEOUT_S) == 6.0
    assert session.launch(summed, x).get() == 6.0


def test_worlds_of_their_own_run_at_once() -> None:
    """Each program waits in a task for the other's, so neither comes first."""
    sessions = [made(World.solo(processors=1, cores=1)) for _ in range(2)]
    events = [threading.Event(), threading.Event()]

    def program(number: int) -> list[float]:
        session = sessions[number]
        x = session.region((3,))
        x.fill(float(number))
        session.launch(tell, events[number], x)
        session.launch(wait, events[1 - number], x)
        found: list[float] = x.read().tolist()
        return found

    try:
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(program, range(2), timeout=TIMEOUT_S)) == [[2.0] * 3, [3.0] * 3]
    finally:
        for session in sessions:
            session.runtime.close()
