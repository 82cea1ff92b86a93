"""The recorder of one rank: the last events that happened there, in a ring of bounded length."""

from __future__ import annotations

import weakref
from collections import deque
from itertools import count
from time import perf_counter_ns
from typing import TYPE_CHECKING

from maniple.regions.error import RequestError
from maniple.runtime.timeline import Event, Kind, events_of_run

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from maniple.runtime.replay import Run
    from maniple.runtime.timeline import Item

__all__: list[str] = []

CAPACITY = 1 << 18


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
        self.dependences: dict[tuple[Item, Item], None] = {}
        self._ring: deque[Event] = deque(maxlen=capacity)
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

    def number(self) -> int:
        """Give a number that the events of one thing share."""
        return next(self._numbers)

    def add(self, event: Event) -> None:
        """Add an event."""
        self._ring.append(event)
        self._last = next(self._noted)

    def note(self, kind: Kind, lane: str, name: str, category: str, number: int, size: int = 0) -> None:
        """Add an event that happens now, outside of a replayed schedule."""
        self.add(Event(kind, self.clock(), self.rank, lane, name, category, 0, number, size))

    def ran(self, run: Run) -> None:
        """Add the events of a run that has ended here, and its dependences."""
        replay, number = run.replay, run.number
        rows = [row for row in range(len(replay.schedule)) if replay.here(row)]
        for event in events_of_run(replay.schedule, replay.times[run.slot], self.rank, number, rows):
            self.add(event)
        for before, after in replay.schedule.edges():
            self.dependences[(number, before), (number, after)] = None

    def allocated(self, name: str, storage: torch.Tensor) -> None:
        """Add that storage was made; and later, by itself, that it went."""
        number, size = self.number(), storage.numel() * storage.element_size()
        self.note(Kind.ALLOCATED, "memory", name, "memory", number, size)
        weakref.finalize(storage, self.note, Kind.FREED, "memory", name, "memory", number, size).atexit = False
