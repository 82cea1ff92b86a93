"""The recorder of one rank: the last events that happened there, in a ring of bounded length."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from itertools import count
from time import perf_counter_ns
from typing import TYPE_CHECKING, Protocol, final

from maniple.process.error import RequestError
from maniple.runtime.observe.timeline import Event, Kind, dependences_of_run, events_of_run

if TYPE_CHECKING:
    import torch

    from maniple.runtime.execution.run import Run
    from maniple.runtime.observe.timeline import Item
    from maniple.runtime.schedule.schedule import Schedule

__all__: list[str] = []

CAPACITY = 1 << 18


class Tell(Protocol):
    """Notes that something happens to one thing, now or at a time that a device told."""

    def __call__(self, kind: Kind, time_ns: int | None = None, /) -> object:
        """Note it."""
        ...


def silent(kind: Kind, time_ns: int | None = None, /) -> None:
    """Note nothing: nobody records."""


class Recorder:
    """A ring of events; any thread may add to it.

        capacity 3:   a   a b   a b c   b c d (1 dropped)

    A row that is replayed has its times written in any case; its events are made of them when its run has ended, so
    recording costs a row nothing while it runs.

    Args:
        rank: the rank.
        capacity: how many events are kept.
        clock: nanoseconds.
    """

    def __init__(self, rank: int, capacity: int = CAPACITY, clock: Callable[[], int] = perf_counter_ns) -> None:
        if capacity < 1:
            raise RequestError(f"a recording's capacity: expected at least 1 event, got {capacity}")
        self.rank = rank
        self.clock = clock
        self._ring: deque[Event] = deque(maxlen=capacity)
        self._runs: deque[tuple[int, Schedule]] = deque(maxlen=capacity)
        self._noted = count()
        self._last = -1
        self._numbers = count()

    @property
    def dropped(self) -> int:
        """How many events the ring had no room for."""
        return self._last + 1 - len(self._ring)

    def events(self) -> tuple[Event, ...]:
        """Give what is kept, ordered by time."""
        return tuple(sorted(self._ring, key=lambda event: event.time_ns))

    def dependences(self) -> tuple[tuple[Item, Item], ...]:
        """Give those of the runs that have ended and of which an event is kept."""
        kept = {event.run for event in self._ring}
        return tuple(pair for run, schedule in self._runs if run in kept for pair in dependences_of_run(schedule, run))

    def add(self, event: Event) -> None:
        """Add an event."""
        self._ring.append(event)
        self._last = next(self._noted)

    def teller(self, lane: str, name: str, category: str, item: Item | None = None) -> Tell:
        """Give what adds the events of one thing outside of replayed schedules.

        Args:
            lane: where it is drawn.
            name: what it is called.
            category: what it is.
            item: a number for it that other ranks know too; default one of this rank's own.
        """
        run, row = (0, next(self._numbers)) if item is None else item

        def tell(kind: Kind, time_ns: int | None = None, /) -> None:
            at = self.clock() if time_ns is None else time_ns
            self.add(Event(kind, at, self.rank, lane, name, category, run, row))

        return tell

    def ran(self, run: Run) -> None:
        """Add the events of a run that has ended here."""
        replay = run.replay
        rows = [row for row in range(len(replay.schedule)) if replay.here(row)]
        for event in events_of_run(replay.schedule, replay.times[run.slot], self.rank, run.number, rows):
            self.add(event)
        self._runs.append((run.number, replay.schedule))

    def note_allocation(self, name: str, storage: torch.Tensor) -> None:
        """Add that storage was made; and later, by itself, that it went."""
        size = storage.numel() * storage.element_size()
        self.resize(Kind.ALLOCATED, name, size)
        weakref.finalize(storage.untyped_storage(), _note_free, weakref.ref(self), name, size).atexit = False

    def resize(self, kind: Kind, name: str, size: int) -> None:
        """Add that so many bytes were allocated or freed."""
        self.add(Event(kind, self.clock(), self.rank, "memory", name, "memory", 0, next(self._numbers), size))


@final
class Journal:
    """What records at a rank, if anything does."""

    def __init__(self) -> None:
        self._recorder: Recorder | None = None

    @property
    def recorder(self) -> Recorder | None:
        """What records now."""
        return self._recorder

    def open(self, recorder: Recorder) -> None:
        """Have something record from now on."""
        self._recorder = recorder

    def close(self) -> None:
        """Record no more."""
        self._recorder = None

    def teller(self, lane: str, name: Callable[[], str], category: str) -> Tell:
        """Give what notes the events of one thing, if anything records; takes what `Recorder.teller` takes."""
        recorder = self._recorder  # another thread may close it meanwhile
        return silent if recorder is None else recorder.teller(lane, name(), category)

    def ran(self, run: Run) -> None:
        """Take note of a run that has ended here, if anything records."""
        recorder = self._recorder
        if recorder is not None:
            recorder.ran(run)


def _note_free(recorder: weakref.ref[Recorder], name: str, size: int) -> None:
    found = recorder()
    if found is not None:
        found.resize(Kind.FREED, name, size)
