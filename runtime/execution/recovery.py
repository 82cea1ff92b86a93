"""Recovery: how a program goes on after tasks failed.

A task whose body raises ends like any other, so whatever waits for it goes on: tiles move, and ranks that wait for each
other come to where they all wait. Tasks that a failure has reached are left out where that is known in time. What they
were to write is poisoned, which `poison` works out from the launches since the program was last known to be sound:

    rank 0    launch 7   launch 8   read x: drains, tells "task 7 failed" ---> both work out the same poison from
    rank 1    launch 7   launch 8   read x: drains, tells nothing         ---> launches 7 and 8, and raise the same

A program of one rank hears of a failure at its next call. Several ranks must hear of it at the same place of the
program, so they exchange what failed wherever they wait: for a read, a future, a fence, and the end. What was launched
since the last of these is remembered, so a fence that told nothing would leave that behind. Where no values are
exchanged, one bit is: whether anything failed (`Barrier`).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple, final

from maniple.runtime.execution.poison import Failure, Poison, may_be_awaited, place_of, reads_poison
from maniple.runtime.schedule.failure import PoisonedRegion, TaskFailed
from maniple.runtime.transports import record
from maniple.runtime.transports.message import MAX_INTEGER, MAX_STRING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from maniple.runtime.control.world import World
    from maniple.runtime.execution.barrier import Barrier
    from maniple.runtime.execution.poison import Place
    from maniple.runtime.program.body import BoundTask
    from maniple.runtime.program.launch_execution import Call
    from maniple.runtime.schedule.launch import Launch, Point

__all__: list[str] = []

# A program that never waits is made to once in so many launches, for what it launched since it did is remembered: some
# KiB each.
LAUNCHES = 1 << 13
# How many failures a message tells beside the first.
SHOWN = 3


class Entry(NamedTuple):
    """Launches of the program that count as one: a launch, or a run of a trace."""

    serial: int
    launches: Sequence[Launch]


class Recovery:
    """What a program of one rank, or this rank's part of one, knows of its failures.

    Args:
        world: the rank.
        barrier: where it waits for the others of the world.
        drain: blocks until nothing is under way at the rank.
        release: starts what the program holds back.
    """

    def __init__(
        self, world: World, barrier: Barrier, drain: Callable[[], object], release: Callable[[], object]
    ) -> None:
        self.poison = Poison()
        """What the program knows to be poisoned, after all its launches so far."""
        self.noted: dict[Place, Failure] = {}
        """The failures of this rank that the program has not heard of; looked at by every lane."""
        self.possible = world.size == 1 or world.stepper is None
        """Whether the program can go on; not where one thread makes the programs of several ranks, none of which may
        wait for another."""
        self._world = world
        self._barrier = barrier
        self._drain = drain
        self._release_held = release
        self._lock = threading.Lock()
        self._serial = 0
        self._settling = False
        self._log: list[Entry] = []
        self._before = Poison()  # the first launch of the log
        self._causes: dict[Place, BaseException] = {}
        self._fates: dict[Place, Failure] = {}
        self._tally: _Tally | None = None

    def next_serial(self) -> int:
        """Number a launch, or a run of a trace; every rank numbers the same ones alike, from 1."""
        if len(self._log) >= LAUNCHES and not self._settling:
            self.agree()
        self._serial += 1
        return self._serial

    def follow(self, serial: int, launches: Sequence[Launch]) -> None:
        """Take down what is about to start."""
        with self._lock:
            self._log.append(Entry(serial, launches))
        if self.poison:
            for launch in launches:
                self.poison, _ = self.poison.after(launch, {})
            self._prune()

    def guard(self, call: Callable[[], object], launch: Launch, number: int) -> Callable[[], object]:
        """Wrap a body of a launch that ends the run if it fails, so that its failure names the task."""

        def guarded() -> None:
            try:
                call()
            except BaseException as error:
                raise self.failure(launch, number, error) from error

        return guarded

    def failure(self, launch: Launch, number: int, error: BaseException) -> TaskFailed:
        """Give what is told of the failure of a launch's task."""
        return TaskFailed.of_launch(launch, number, self._world.place(), error)

    def note(self, place: Place, error: TaskFailed) -> None:
        """Note that a task failed; from any thread, before anybody can know that it has ended."""
        with self._lock:
            self._causes[place] = error.__cause__ or error
            self.noted[place] = Failure(place, str(error), self._world.rank)
            self._tally = None

    def has_reached(self, serial: int, index: int, point: Point) -> bool:
        """Say whether a failure of this rank that is known by now has reached a task; from any thread."""
        with self._lock:
            if self._tally is None:
                self._tally = _Tally(self._before, self.noted)
            self._tally.follow(self._log)
            return place_of(serial, index, point) in self._tally.fates

    def hear(self) -> None:
        """Raise what failed, in a program of one rank: it hears of a failure at its next call.

        Raises:
            TaskFailed: a task failed.
        """
        if self.noted and self._world.size == 1:
            self._settle()

    def heed(self) -> None:
        """Raise what failed of what was waited for: a program of one rank need not wait for more.

        Raises:
            TaskFailed: a task failed, on whatever rank; the same on all.
        """
        if self._world.size > 1:
            self.agree()
        else:
            self.hear()

    def agree(self) -> None:
        """Wait for what was launched on every rank, and raise what failed of it.

        Raises:
            TaskFailed: a task failed, on whatever rank; the same on all.
        """
        if not self._log or not self.possible:
            return
        self._drain()
        if self._world.size == 1:
            self.hear()
        elif self._barrier.anybody(says=bool(self.noted)):
            self._settle()
        self._forget_log()

    def exchange(self, payload: bytes) -> list[bytes]:
        """Exchange bytes with all ranks once what was launched is done, unless some of it failed.

        Returns:
            Every rank's bytes, in rank order.

        Raises:
            TaskFailed: a task failed, on whatever rank; the same on all.
        """
        if self._world.size == 1:
            self.hear()
            return [payload]
        if not self.possible:
            return self._world.control.gather(payload)
        self._drain()
        parts = self._world.control.gather((b"!" if self.noted else b" ") + payload)
        if any(part.startswith(b"!") for part in parts):
            self._settle()
        self._forget_log()
        return [part[1:] for part in parts]

    def _forget_log(self) -> None:
        """Begin anew: all that was launched is done, on all ranks, and none of it failed."""
        with self._lock:
            self._log.clear()
            self._before = self.poison
            self._tally = None

    def _settle(self) -> None:
        """Work out with all ranks what is poisoned, and raise the failure that comes first in the program."""
        self._release()
        self._drain()
        mine = [[*failure.place, failure.text[:MAX_STRING], failure.rank] for failure in self.noted.values()]
        parts = self._world.control.gather(record.pack(mine))
        told = [_failure(row) for part in record.parts(parts, "failures") for row in part.items()]
        with self._lock:
            tally = _Tally(self._before, {failure.place: failure for failure in told})
            tally.follow(self._log)
            first, *others = sorted({tally.fates.get(failure.place, failure) for failure in told})
            self.poison = self._before = tally.poison
            self._fates |= tally.fates
            self._log.clear()
            self.noted.clear()
            self._tally = None
        raised = self._again(first, others)
        self._prune()
        raise raised from raised.__cause__

    def _release(self) -> None:
        """Start what is held back: the program launched it before it heard."""
        if not self._settling:
            self._settling = True
            try:
                self._release_held()
            finally:
                self._settling = False

    def _again(self, failure: Failure, others: Sequence[Failure] = ()) -> TaskFailed:
        """Make an exception of a failure; a new one each time, or its traceback would grow."""
        more = "".join(f"\nand {other.text}" for other in others[:SHOWN])
        more += f"\nand {len(others) - SHOWN} more" if len(others) > SHOWN else ""
        made = TaskFailed(failure.text + more)
        made.__cause__ = self._causes.get(failure.place)
        made.here = failure.rank == self._world.rank
        return made

    def _prune(self) -> None:
        """Let go of exceptions, and the storage that they refer to, that nothing is poisoned by."""
        with self._lock:
            if not self._causes:
                return
            both = (*self.poison.spots.values(), *self._before.spots.values())
            kept = {failure.place for spots in both for _, failure in spots}
            self._causes = {place: error for place, error in self._causes.items() if place in kept | self.noted.keys()}

    def check(self, launches: Sequence[Launch]) -> None:
        """Refuse launches that would read what is known to be poisoned.

        Raises:
            PoisonedRegion: names the launch, the elements, and the first cause.
        """
        if not self.poison:
            return
        found = reads_poison(self.poison, launches)
        if found is not None:
            launch, number, space, failure = found
            cause = self._again(failure)
            raise PoisonedRegion.of(launch, launch.requirements[number].region, space, cause) from cause

    def fate(self, serial: int, index: int, point: Point) -> None:
        """Raise the failure that reached a task, if one did that the program has heard of.

        Raises:
            TaskFailed: the first cause.
        """
        failure = self._fates.get(place_of(serial, index, point))
        if failure is not None:
            raised = self._again(failure)
            raise raised from raised.__cause__

    def forget(self, regions: Collection[int]) -> None:
        """Forget regions that nobody can name any more."""
        for region in regions if self.poison else ():
            self.poison, self._before = self.poison.without(region), self._before.without(region)
        self._prune()


@final
class Attempt:
    """A body of a launch with its values, left out if a failure has reached it; its own is noted.

    A program that is ahead holds thousands, so it is one object.

    Args:
        recovery: what has failed.
        body: the body; its point is the launch's.
        call: its values, and where what it returns goes: nothing, where it was left out or failed.
        launch: the launch.
        serial: its number.
        measured: runs the body with its values where that is measured; None where it is not.
    """

    __slots__ = ("_body", "_call", "_launch", "_measured", "_recovery", "_serial")

    def __init__(
        self,
        recovery: Recovery,
        body: BoundTask,
        call: Call,
        launch: Launch,
        serial: int,
        measured: Callable[[], object] | None = None,
    ) -> None:
        self._recovery, self._body, self._call = recovery, body, call
        self._launch, self._serial, self._measured = launch, serial, measured

    def __call__(self) -> None:
        """Run it."""
        recovery, launch, number = self._recovery, self._launch, self._body.point
        if recovery.noted and recovery.has_reached(self._serial, 0, launch.points[number]):
            self._call.put(number, None)
            return
        try:
            if self._measured is None:
                self._body.run(self._call)
            else:
                self._measured()
        except BaseException as error:
            failure = recovery.failure(launch, number, error)
            if may_be_awaited(launch):
                raise failure from error
            recovery.note(place_of(self._serial, 0, launch.points[number]), failure)
            self._call.put(number, None)


class _Tally:
    """The poison as launch after launch is followed.

    Args:
        poison: before the first.
        failed: the tasks whose bodies raised.
    """

    def __init__(self, poison: Poison, failed: dict[Place, Failure]) -> None:
        self.poison = poison
        self.fates: dict[Place, Failure] = {}
        self._failed = dict(failed)
        self._serials = {place[0] for place in failed}
        self._followed = 0

    def follow(self, log: Sequence[Entry]) -> None:
        """Take in the launches that were not yet."""
        for entry in log[self._followed :]:
            if not self.poison and entry.serial not in self._serials:
                continue
            for index, launch in enumerate(entry.launches):
                places = {point: place_of(entry.serial, index, point) for point in launch.points}
                failed = {point: self._failed[place] for point, place in places.items() if place in self._failed}
                self.poison, reached = self.poison.after(launch, failed)
                self.fates |= {places[point]: failure for point, failure in reached.items()}
        self._followed = len(log)


def _failure(row: record.Field) -> Failure:
    """Read what a rank told of a failure."""
    serial, index, color, replica, text, rank = row.items(6)
    place = serial.integer(), index.integer(), color.integers(least=-MAX_INTEGER), replica.integer()
    return Failure(place, text.string(), rank.integer())
