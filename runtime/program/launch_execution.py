"""Executions of launches: what each was given by value, what its tasks returned, and who waits for that."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from maniple.runtime.program.value_table import ValueTable
    from maniple.runtime.schedule.launch import Launch

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
        run: the run of a recorded sequence that it is part of, if any.
        number: which of the sequence.
    """

    __slots__ = ("_run", "_waiters", "begin", "launch", "number", "results", "serial", "shared", "values")

    def __init__(
        self,
        values: tuple[object, ...],
        points: int,
        launch: Launch | None = None,
        begin: Callable[[], object] | None = None,
        run: Calls | None = None,
        number: int = 0,
    ) -> None:
        self.values = values
        self.serial = 0
        self.number = number
        self.results: list[object] = [PENDING] * points
        self.launch = launch
        self.begin = begin
        self.shared = False
        self._run = run
        self._waiters: dict[int, threading.Event] | None = None

    @property
    def standing(self) -> tuple[int, int]:
        """The number of the launch in the program and 0, or that of its run of a trace and its place in it."""
        return (self.serial, 0) if self.serial or self._run is None else (self._run.serial, self.number)

    def put(self, point: int, value: object) -> None:
        """Give what a task returned; the task's own thread calls this."""
        self.results[point] = value
        # A waiter enters itself before it looks again, so one of the two threads sees the other.
        self.wake(point)

    def wake(self, point: int) -> None:
        """Have who waits for a task look again."""
        if self._waiters is not None and point in self._waiters:
            self._waiters[point].set()

    def look(self, point: int) -> object:
        """Give what a task of this rank returned; `PENDING` if it has not yet."""
        run = self._run
        if run is not None and self.results[point] is PENDING and run.processor(self, point) in run.returned:
            self.results[point] = None  # compiled code, which puts nothing, has called the body
        return self.results[point]

    def await_result(self, wait: Callable[[threading.Event], object], point: int) -> object:
        """Block until a task of this rank has returned, and give its value.

        Args:
            wait: blocks until an event is set, or raises if it never will be.
            point: which task.

        Raises:
            RunError: a task failed, here or on another rank.
        """
        if self.look(point) is PENDING:
            if self._waiters is None:
                self._waiters = {}
            event = self._waiters.setdefault(point, threading.Event())
            if self._run is not None:
                self._run.awaited.append((self, point))
            if self.look(point) is PENDING:
                wait(event)
        return self.look(point)


class Calls:
    """One run of a sequence of launches: what each was given, and the calls of those that somebody asked for.

    A run of thousands of launches costs a tuple of values for each, and no object, where bodies are compiled and nobody
    looks at the futures.

    Args:
        launches: the sequence; empty where its calls are made by somebody else.
        values: what each launch was given by value; grows as the program makes them.
        begin: see `Call`.
    """

    __slots__ = ("_begin", "_launches", "_made", "awaited", "returned", "serial", "table", "values")

    def __init__(
        self,
        launches: Sequence[Launch] = (),
        values: list[tuple[object, ...]] | None = None,
        begin: Callable[[], object] | None = None,
    ) -> None:
        self.values: list[tuple[object, ...]] = [] if values is None else values
        self.serial = 0
        self.returned: set[int] = set()
        """The processors of this rank on which all tasks of the run have returned."""
        self.awaited: list[tuple[Call, int]] = []
        self.table = 0
        """Address of the run in the sequence's table of values; 0 where its values do not fit that."""
        self._launches = launches
        self._begin = begin
        self._made: dict[int, Call] = {}

    @classmethod
    def of(cls, calls: Iterable[Call]) -> Calls:
        """Make a run of calls that exist."""
        run = cls()
        for number, call in enumerate(calls):
            run.values.append(call.values)
            run._made[number] = call
        return run

    def __getitem__(self, number: int) -> Call:
        """Give the call of a launch, made when it is first asked for; from any thread."""
        made = self._made.get(number)
        if made is None:
            launch = self._launches[number]
            call = Call(self.values[number], len(launch.points), launch, self._begin, self, number)
            made = self._made.setdefault(number, call)  # of two threads one makes it
        return made

    def give_up(self) -> None:
        """Say that nothing of the run will start."""
        for number in range(len(self.values)):
            self[number].launch = None

    @staticmethod
    def processor(call: Call, point: int) -> int:
        """The processor of a task; -1 while it is not placed."""
        return -1 if call.launch is None else call.launch.points[point].processor

    def end(self, processor: int) -> None:
        """Note that all tasks on a processor have returned."""
        self.returned.add(processor)
        for call, point in tuple(self.awaited):
            if self.processor(call, point) == processor:
                call.wake(point)


class Frames:
    """The calls of a sequence of launches that runs again and again; runs that are under way together take turns.

    Args:
        runs: as many runs as may be under way, each with one call per launch.
    """

    __slots__ = ("now", "runs", "table", "turn")

    def __init__(self, runs: list[Calls]) -> None:
        self.runs = runs
        self.turn = 0
        self.table: ValueTable | None = None
        """How values are laid out for compiled bodies; known from the first replay on."""
        self.now: dict[int, Calls] = {}
        """By processor the run that it is at; the first, where it takes no lanes."""

    def enter(self, calls: Calls) -> None:
        """Put the calls of the next run in place; the one whose place they take has ended."""
        self.runs[self.turn] = calls
        self.turn = (self.turn + 1) % len(self.runs)
