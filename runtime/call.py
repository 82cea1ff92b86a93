"""Calls: single executions of launches, with the values that they were given and what their tasks returned."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from maniple.runtime.launch import Launch
    from maniple.runtime.rank import RankRuntime

__all__: list[str] = []

PENDING = object()
"""Stands for the value of a task that has not returned."""


class Call:
    """One execution of a launch. The program makes it, tasks put their values in, futures take them out.

    Args:
        values: the arguments given by value, in the order of the signature.
        points: how many tasks there are.
        launch: the mapped launch; None until it is known.
        begin: called before somebody waits, to have tasks started that are held back; None once nothing holds them.
    """

    __slots__ = ("_waiters", "begin", "launch", "results", "shared", "values")

    def __init__(
        self,
        values: tuple[object, ...],
        points: int,
        launch: Launch | None = None,
        begin: Callable[[], object] | None = None,
    ) -> None:
        self.values = values
        self.results: list[object] = [PENDING] * points
        self.launch = launch
        self.begin = begin
        self.shared = False
        self._waiters: dict[int, threading.Event] | None = None

    def put(self, point: int, value: object) -> None:
        """Give what a task returned; the task's own thread calls this."""
        self.results[point] = value
        # A waiter enters itself before it looks again, so one of the two threads sees the other.
        if self._waiters is not None and point in self._waiters:
            self._waiters[point].set()

    def await_result(self, runtime: RankRuntime, point: int) -> object:
        """Block until a task of this rank has returned, and give its value.

        Raises:
            RunError: a task failed, here or on another rank.
        """
        if self.results[point] is PENDING:
            if self._waiters is None:
                self._waiters = {}
            event = self._waiters.setdefault(point, threading.Event())
            if self.results[point] is PENDING:
                runtime.await_event(event)
        return self.results[point]


class Frames:
    """The calls of a sequence of launches that runs again and again; runs that are under way together take turns.

    Args:
        runs: as many lists of calls as runs may be under way, one call per launch.
    """

    __slots__ = ("runs", "turn")

    def __init__(self, runs: list[list[Call]]) -> None:
        self.runs = runs
        self.turn = 0

    def enter(self, calls: list[Call]) -> None:
        """Put the calls of the next run in place; the one whose place they take has ended."""
        self.runs[self.turn] = calls
        self.turn = (self.turn + 1) % len(self.runs)
