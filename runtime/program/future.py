"""Futures: values that tasks will return, the same on every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgpack

from maniple.process.error import RequestError, RunError, nearest
from maniple.runtime.program.in_turn import in_turn
from maniple.runtime.program.launch_execution import PENDING, Call
from maniple.runtime.transports import record

if TYPE_CHECKING:
    import threading

    from maniple.runtime.control.turn import Turn
    from maniple.runtime.control.world import World
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.program.launch_execution import Calls
    from maniple.runtime.schedule.launch import Launch, Point

__all__: list[str] = []

_FOLDS: dict[str, Callable[..., Any]] = {
    "+": lambda one, other: one + other,
    "*": lambda one, other: one * other,
    "min": min,
    "max": max,
}


class Failures(Protocol):
    """What futures ask of what has failed in a program."""

    def fate(self, serial: int, index: int, point: Point) -> None:
        """Raise what has reached a task, if anything has that the program has heard of."""
        ...

    def hear(self) -> None:
        """Raise what failed, in a program of one rank."""
        ...

    def exchange(self, payload: bytes) -> list[bytes]:
        """Give the bytes of all ranks, in rank order, unless something that was launched has failed."""
        ...


class Rank(Protocol):
    """What futures ask of the rank that they wait at."""

    @property
    def world(self) -> World:
        """Its place among the others."""
        ...

    @property
    def turn(self) -> Turn:
        """Which thread makes its program."""
        ...

    @property
    def recovery(self) -> Failures:
        """What has failed."""
        ...

    def refuse_inside_a_task(self, what: str) -> None:
        """Refuse what only the program may do."""
        ...

    def check(self) -> None:
        """Raise what ended the rank, if anything has."""
        ...

    def await_event(self, event: threading.Event) -> None:
        """Block until an event is set, or raise if it never will be."""
        ...


class Program(Protocol):
    """Where a launch was made."""

    @property
    def runtime(self) -> Rank:
        """The rank."""
        ...

    @property
    def machine(self) -> Machine:
        """Says which rank runs a task."""
        ...


class Launched:
    """What a launch gives before it has ended.

    Args:
        program: where it was launched.
        made: the execution of its launch, or of a sequence of launches.
        number: which of the sequence.
    """

    __slots__ = ("_made", "_number", "_program")

    def __init__(self, program: Program, made: Call | Calls, number: int = 0) -> None:
        self._program = program
        self._made = made
        self._number = number

    @property
    def _call(self) -> Call:
        return _call_of(self._made, self._number)

    def _start(self) -> Launch:
        """Give the launch, started if something held it back."""
        return _start(self._program.runtime, self._call)

    def _vouch(self, *numbers: int) -> None:
        """Raise what reached one of some tasks, which then has no value."""
        call = self._call
        for number in numbers:
            launch = call.launch or self._start()
            self._program.runtime.recovery.fate(*call.standing, launch.points[number])


class Future(Launched):
    """The value that one task will return; a plain number, string, truth value, None, or a list of these."""

    __slots__ = ()

    @property
    def done(self) -> bool:
        """Whether the value is at this rank."""
        return self._call.look(0) is not PENDING

    def get(self) -> Any:
        """Wait for the value and give it, the same on every rank.

        Raises:
            RunError: the task failed, or returned what no message can carry.
        """
        call = self._call
        share(self._program, call)
        self._vouch(0)
        return call.results[0]


class FutureMap(Launched, Mapping[tuple[int, ...], Any]):
    """The values of an index launch by point; the first look at one brings all of them to every rank."""

    __slots__ = ()

    @property
    def _colors(self) -> tuple[tuple[int, ...], ...]:
        launch = self._call.launch or self._start()
        return tuple(point.color for point in launch.points)

    def __getitem__(self, color: tuple[int, ...] | int) -> Any:
        """Wait for all points and give the value of one."""
        chosen = (color,) if isinstance(color, int) else color
        colors = self._colors
        if chosen not in colors:
            msg = f"the launch had no point {chosen}; it had {', '.join(map(str, colors))}"
            raise RequestError(msg)
        share(self._program, self._call)
        self._vouch(colors.index(chosen))
        return self._call.results[colors.index(chosen)]

    def reduce(self, op: str) -> Any:
        """Wait for all points and fold their values, in the order of the points.

        Args:
            op: `+`, `*`, `min` or `max`.

        Raises:
            RequestError: the operation is none of these.
        """
        if op not in _FOLDS:
            raise RequestError(f"unknown reduction {op!r}{nearest(op, tuple(_FOLDS))}")
        share(self._program, self._call)
        self._vouch(*range(len(self)))
        found, *rest = self._call.results
        for value in rest:
            found = _FOLDS[op](found, value)
        return found

    def placed(self) -> dict[tuple[int, ...], str]:
        """Say where each point runs, such as `p1 of node 0 (rank 0)`."""
        world = self._program.runtime.world
        points = self._start().points
        owners = [self._program.machine.rank_of(point.processor) for point in points]
        return {
            point.color: f"p{point.processor} of node {owner // world.ranks_per_node} (rank {owner})"
            for point, owner in zip(points, owners, strict=True)
        }

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """Give the points."""
        return iter(self._colors)

    def __len__(self) -> int:
        """Count the points."""
        return len(self._colors)


def _call_of(made: Call | Calls, number: int) -> Call:
    return made if isinstance(made, Call) else made[number]


@in_turn
def _start(rank: Rank, call: Call) -> Launch:
    """Give the launch that a call of a rank executes, started if something held it back."""
    if call.begin is not None:
        call.begin()
    if call.launch is None:
        raise RunError("the launch of this future was given up after an error; launch again")
    return call.launch


def share(program: Program, call: Call) -> None:
    """Wait for the values of a call and give every rank all of them.

    Raises:
        TaskFailed: a task failed.
        RunError: it returned what no message can carry.
    """
    if not call.shared:  # a value that is here is any thread's to look at
        _exchange(program.runtime, program.machine, call)


@in_turn
def _exchange(rank: Rank, machine: Machine, call: Call) -> None:
    rank.refuse_inside_a_task("future.get")
    launch = _start(rank, call)
    mine = [
        [number, call.await_result(rank.await_event, number)]
        for number, point in enumerate(launch.points)
        if machine.rank_of(point.processor) == rank.world.rank
    ]
    rank.check()
    rank.recovery.hear()
    try:
        packed = cast("bytes", msgpack.packb(mine))
    except (TypeError, ValueError, OverflowError) as error:
        msg = (
            f"{launch.label(0)} returned a value that no message can carry: {error}; "
            "return plain numbers, strings or lists of them, and write tensors to regions"
        )
        raise RunError(msg) from error
    for part in rank.recovery.exchange(packed):
        for number, value in (pair.items(2) for pair in record.unpack(part, "results").items()):
            call.results[number.integer()] = value.value
    call.shared = True
