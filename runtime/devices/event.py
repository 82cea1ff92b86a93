"""Events: when something submitted to a processor or a copy engine is done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import Protocol, final

__all__: list[str] = []

Hear = Callable[[BaseException | None], object]
"""What is told that an event is done: of nothing, or of the exception that kept its work from being done."""


class Event(Protocol):
    """The end of a piece of work, which may lie ahead.

    `begun_ns` and `ended_ns` say when the work ran, on the clock of this process; they are there once it is done.
    """

    begun_ns: int
    ended_ns: int

    @property
    def done(self) -> bool:
        """Whether the work is done, or never will be because of a failure."""
        ...

    def wait(self) -> None:
        """Block this thread until the work is done.

        Raises:
            BaseException: what kept it from being done.
        """
        ...

    def then(self, hear: Hear) -> None:
        """Have something called once the work is done: on the thread that finds out, or at once if it is done already.

        What is called must be brief and must not wait. The events of one stream are told in their order.
        """
        ...


@final
class Done:
    """The event of work that was done when its call returned, as everything on a CPU is."""

    begun_ns = 0
    ended_ns = 0
    done = True

    def wait(self) -> None:
        """Return."""

    def then(self, hear: Hear) -> None:
        """Tell at once."""
        hear(None)


DONE = Done()


class Signal:
    """An event that whoever does the work sets, once."""

    __slots__ = ("__weakref__", "_changed", "_hearers", "begun_ns", "done", "ended_ns", "error")

    def __init__(self) -> None:
        self.begun_ns = 0
        self.ended_ns = 0
        self.error: BaseException | None = None
        self.done = False
        self._changed = threading.Condition(threading.Lock())
        self._hearers: list[Hear] = []

    def set(self, error: BaseException | None = None) -> None:
        """Say that the work is done, or why it is not; a hearer that raises is a failure to those told after it."""
        with self._changed:
            if not self.ended_ns:
                self.ended_ns = perf_counter_ns()
            self.error = error
            # Told before `done` is set, and outside of the lock: an event is not told before those heard before it.
            hearers = self._hearers
        told = 0
        while True:
            for hear in hearers[told:]:
                told += 1
                try:
                    hear(self.error)
                except BaseException as failed:  # noqa: BLE001  (whoever waits must hear of it, and not wait for ever)
                    self.error = self.error or failed
            with self._changed:
                if told == len(hearers):
                    self.done = True
                    self._hearers = []
                    self._changed.notify_all()
                    return

    def wait(self) -> None:
        """Block until it is set; see `Event.wait`."""
        with self._changed:
            while not self.done:
                self._changed.wait()
        if self.error is not None:
            raise self.error

    def then(self, hear: Hear) -> None:
        """See `Event.then`."""
        with self._changed:
            if not self.done:
                self._hearers.append(hear)
                return
        hear(self.error)


def at_once(call: Callable[..., object]) -> Callable[..., Event]:
    """Make a function of the host one that takes events, all done, behind its arguments and gives its own."""

    def run(*arguments: object) -> Event:
        call(*arguments[:-1])
        return DONE

    return run


def when_all(events: Iterable[Event], hear: Hear) -> None:
    """Have something called once all of some events are done: of the first failure that was found, if any."""
    waiting = [event for event in events if event is not DONE]
    if not waiting:
        hear(None)
        return
    lock, left, failures = threading.Lock(), len(waiting), list[BaseException]()

    def one(error: BaseException | None) -> None:
        nonlocal left
        with lock:
            left -= 1
            if error is not None:
                failures.append(error)
            last = left == 0
        if last:
            hear(failures[0] if failures else None)

    for event in waiting:
        event.then(one)
