"""Interruption: SIGINT waits for the end of a block, reaches the program's handler once, and follows new handlers."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from maniple.runtime.interruption import LOOK_S, Hold


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """What the program's handler noted."""
    found: list[str] = []
    before = signal.signal(signal.SIGINT, lambda *_: found.append("first"))
    yield found
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_a_signal_waits_for_the_end_of_the_outermost_block(heard: list[str]) -> None:
    hold = Hold()
    with hold:
        with hold:
            interrupt()
        assert heard == []
        interrupt()
    assert heard == ["first"]
    interrupt()
    assert heard == ["first", "first"]


def test_an_interrupt_that_raises_does_so_after_the_block() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    done: list[bool] = []

    def block() -> None:
        with Hold():
            interrupt()
            done.append(True)

    try:
        with pytest.raises(KeyboardInterrupt):
            block()
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == [True]


def test_a_handler_that_the_program_puts_there_later_is_held_back_too(
    heard: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hold, now = Hold(), 0.0
    monkeypatch.setattr("maniple.runtime.interruption.monotonic", lambda: now)
    with hold:
        pass
    signal.signal(signal.SIGINT, lambda *_: heard.append("second"))
    now = LOOK_S
    with hold:
        interrupt()
        assert heard == []
    assert heard == ["second"]


def test_other_threads_hold_nothing_back(heard: list[str]) -> None:
    hold = Hold()
    thread = threading.Thread(target=hold.__enter__)
    thread.start()
    thread.join()
    interrupt()
    assert heard == ["first"]
