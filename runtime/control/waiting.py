"""Waiting: the first failure of a rank, and the waits that it ends."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, final

from maniple.runtime.control.control import RankStopped

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from maniple.runtime.control.world import World

__all__: list[str] = []

PATIENCE_S = 0.1  # how often a wait for a value looks for a failure elsewhere; the value itself wakes it at once


@final
class Waiting:
    """How the threads of a rank wait for each other, for as long as the rank has not failed.

    Whoever ends what others may wait for does so under `lock` and notifies `finished`. The first failure is kept, wakes
    all who wait, and is raised to everybody who waits or asks from then on.

    Args:
        world: the rank.
    """

    def __init__(self, world: World) -> None:
        self.lock = threading.Lock()
        self.finished = threading.Condition(self.lock)
        self._world = world
        self.error: BaseException | None = None
        """The first failure; None while there was none."""
        self._raised_in: TracebackType | None = None
        self.told = False
        """Whether the failure was raised to the program."""

    def fail(self, error: BaseException) -> None:
        """Record the first failure, wake everybody who waits, and have the other ranks stopped."""
        with self.lock:
            first = self.error is None
            if first:
                self.error, self._raised_in = error, error.__traceback__
            self.finished.notify_all()
        if first and not isinstance(error, RankStopped):
            self._world.control.fail("", f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """End all waits, for the runtime of the rank goes: a lane must not wait for one that is dropped."""
        with self.lock:
            self.error = self.error or RankStopped("the runtime of this rank was closed")
            self.finished.notify_all()

    def check(self) -> None:
        """Raise the failure to the program, if there was one."""
        if self.error is not None:
            self.told = True
        self.give_up()

    def give_up(self) -> None:
        """Raise the failure to a lane or a spinning wait, if there was one: the program has not been told by that."""
        if self.error is not None:
            # One exception for all who ask; its traceback must not grow with each.
            raise self.error.with_traceback(self._raised_in)

    def await_done(self, done: Callable[[], bool]) -> None:
        """Block until something is done at this rank.

        Args:
            done: says so; whoever makes it so notifies `finished`.

        Raises:
            RunError: a task failed, here or on another rank.
        """
        stepper = self._world.stepper
        if stepper is not None:
            stepper.until(lambda: done() or self.error is not None)
        with self._world.headway.waiting(), self.finished:
            while not done():
                self.check()
                self.finished.wait()

    def await_event(self, event: threading.Event) -> None:
        """Block until an event is set.

        Raises:
            RunError: a task failed, here or on another rank.
        """
        if self._world.stepper is not None:
            self._world.stepper.until(lambda: event.is_set() or self.error is not None)
        with self._world.headway.waiting():
            while not event.wait(PATIENCE_S):
                self.check()
        self.check()
