"""Interruption: SIGINT waits for the end of a block and reaches the program's handler once; then all is as before."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType

import pytest
from interrupted import interruptions

from maniple.process import interruption
from maniple.process.interruption import Hold, hold_interrupts


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
    with hold_interrupts():
        with hold_interrupts():
            interrupt()
        assert heard == []
        interrupt()
        assert heard == []
    assert heard == ["first"]
    interrupt()
    assert heard == ["first", "first"]


def test_an_interrupt_at_any_instruction_comes_before_the_block_or_after_it() -> None:
    done: list[bool] = []

    def block() -> None:
        with hold_interrupts():
            done.append(True)
            done.append(True)

    def attempt() -> Callable[[], None]:
        done.clear()
        return block

    seen = set()
    for _ in interruptions(attempt, {block.__code__, Hold.__enter__.__code__, Hold.__exit__.__code__}):
        seen.add(len(done))
        with pytest.raises(KeyboardInterrupt):
            interrupt()
    assert seen == {0, 2}


def test_handlers_that_the_program_chains_are_each_called_once(heard: list[str]) -> None:
    def chained(name: str, before: Callable[..., object], number: int, frame: FrameType | None) -> None:
        heard.append(name)
        before(number, frame)

    for name in ("second", "third"):
        with hold_interrupts():
            pass
        before = signal.getsignal(signal.SIGINT)
        assert callable(before)

        signal.signal(signal.SIGINT, partial(chained, name, before))
    with hold_interrupts():
        interrupt()
        assert heard == []
    assert heard == ["third", "second", "first"]


def test_asyncio_cancels_its_main_task_as_ever() -> None:
    seen: list[str] = []

    async def main() -> None:
        try:
            with hold_interrupts():
                interrupt()
                seen.append("the block went on")
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with hold_interrupts():
            pass
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(main())
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == ["the block went on", "cancelled"]


@pytest.mark.parametrize("left", [signal.SIG_IGN, signal.SIG_DFL])
def test_what_is_left_to_the_system_stays_there(left: signal.Handlers) -> None:
    before = signal.signal(signal.SIGINT, left)
    try:
        with hold_interrupts():
            assert signal.getsignal(signal.SIGINT) is left
        assert signal.getsignal(signal.SIGINT) is left
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_handler_that_gives_way_to_the_system_as_a_block_begins(
    heard: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first Ctrl-C comes after the block has looked what is there, and is the program's last."""
    look = signal.getsignal

    def last(*_: object) -> None:
        heard.append("last")
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def looked(number: int) -> object:
        found = look(number)
        interrupt()
        return found

    signal.signal(signal.SIGINT, last)
    monkeypatch.setattr(interruption, "handler_of", looked)
    with hold_interrupts():
        interrupt()
    assert heard == ["last"]
    assert look(signal.SIGINT) == signal.SIG_IGN


def test_other_threads_hold_nothing_back(heard: list[str]) -> None:
    inside, go = threading.Event(), threading.Event()

    def block() -> None:
        with hold_interrupts():
            inside.set()
            assert go.wait(30.0)

    thread = threading.Thread(target=block)
    thread.start()
    assert inside.wait(30.0)
    interrupt()
    assert heard == ["first"]
    go.set()
    thread.join()
