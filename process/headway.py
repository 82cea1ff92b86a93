"""Headway: how far this rank has come, and whether it only waits, as what watches it is told."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, contextmanager
from time import monotonic
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from maniple.process.clock import Clock

__all__: list[str] = []


@final
class Headway:
    """What of a rank gets on, and what of it waits.

    Progress is a sum of counts that only grow: it says nothing but whether anything has happened. A rank *waits* while
    its program is inside a wait of the runtime and none of its processors does anything but wait itself.

    Args:
        clock: what patience is measured by.
    """

    def __init__(self, clock: Clock = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._steps = 0
        self._waits, self._wait = 0, _Wait(self)
        self._excuses: dict[int, float] = {}
        self._counts: list[Callable[[], int]] = []
        self._workers: list[Callable[[], int]] = []
        self._doers: list[Callable[[], str]] = []
        self.steps_before, self.steps_done = 0, 0
        """The steps of a training that were done before this run, and those that are done, from its beginning on."""

    def step(self) -> None:
        """Count something that got on; from the program's thread."""
        self._steps += 1

    def count(self, counted: Callable[[], int], working: Callable[[], int]) -> None:
        """Take in what else there is to ask, from another thread and without a lock.

        Args:
            counted: gives a count that only grows.
            working: gives how many threads are at work that is no wait.
        """
        self._counts.append(counted)
        self._workers.append(working)

    def name(self, doing: Callable[[], str]) -> None:
        """Take in what names the task that a thread is in, asked as those are; it gives an empty text for none."""
        self._doers.append(doing)

    def train(self, before: int) -> None:
        """Take in that a training goes on, of which so many steps were done before."""
        self.steps_before = self.steps_done = before

    def reach(self, steps: int) -> None:
        """Take in that so many steps of a training are done."""
        self.steps_done = steps

    def waiting(self) -> AbstractContextManager[None]:
        """Say that a thread of the program waits, inside."""
        return self._wait

    def wait(self, change: int) -> None:
        """Say that so many more threads of the program wait, or fewer: one whose wait ended has got on."""
        with self._lock:
            self._waits += change
            self._steps += change < 0

    @contextmanager
    def busy(self, seconds: float) -> Iterator[None]:
        """Say that the program expects no progress for so long, inside."""
        with self._lock:
            number = max(self._excuses, default=0) + 1
            self._excuses[number] = self._clock() + seconds
        try:
            yield
        finally:
            with self._lock:
                del self._excuses[number]
                self._steps += 1

    def progress(self) -> int:
        """Sum up all counts, to 63 bits."""
        return (self._steps + sum(counted() for counted in self._counts)) & (2**63 - 1)

    def waits(self) -> bool:
        """Say whether this rank does nothing but wait."""
        return self._waits > 0 and not any(working() > 0 for working in self._workers)

    def doing(self) -> str:
        """Name the task that a thread of this rank is in; empty where there is none, or it has no name."""
        return next((name for doing in self._doers if (name := doing())), "")

    def patience_s(self) -> float:
        """Give for how long, from now, the program expects no progress."""
        with self._lock:
            latest = max(self._excuses.values(), default=0.0)
        return max(0.0, latest - self._clock())


@final
class _Wait:
    """A wait of a program, entered by every thread that waits: a step has one, so none is made for each."""

    __slots__ = ("_headway",)

    def __init__(self, headway: Headway) -> None:
        self._headway = headway

    def __enter__(self) -> None:
        self._headway.wait(1)

    def __exit__(self, *_: object) -> None:
        self._headway.wait(-1)
