"""Timelines: what happened when on every rank, or what a simulator says would, as events that Perfetto opens."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

from maniple.process.error import RequestError
from maniple.process.file_entry import write_atomically
from maniple.runtime.observe.chrome import chrome_trace
from maniple.runtime.observe.critical_path import critical_path
from maniple.runtime.schedule.schedule import RowKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from maniple.runtime.schedule.schedule import Schedule

__all__: list[str] = []


class Kind(StrEnum):
    """What can happen: to a launch of the program, to a row that runs, to storage."""

    LAUNCHED = "launched"
    MAPPED = "mapped"
    ANALYSED = "analysed"
    READY = "ready"
    STARTED = "started"
    ENDED = "ended"
    COPIED = "copied"
    ALLOCATED = "allocated"
    FREED = "freed"


_BEGINS = frozenset({Kind.LAUNCHED, Kind.STARTED})
_ENDS = frozenset({Kind.ANALYSED, Kind.ENDED, Kind.COPIED})

Item = tuple[int, int]
"""What an event is about: a run, and a row of it. Run 0 is whatever is not replayed, numbered as it comes."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened at one instant.

    Args:
        kind: what.
        time_ns: when, on the clock of rank 0.
        rank: where.
        lane: the row of a picture: `program`, `p1`, `copy engine` or `memory`.
        name: the task, movement or region.
        category: `launch`, `task`, `fold`, `copy`, a collective's name, or `memory`.
        run: the submission of a schedule, or 0.
        row: the row of the schedule; in run 0 a number that events of one thing share. A movement has the same on
            each rank that takes part.
        size: bytes allocated or freed.
    """

    kind: Kind
    time_ns: int
    rank: int
    lane: str
    name: str
    category: str
    run: int
    row: int
    size: int = 0

    @property
    def item(self) -> Item:
        """What it is about."""
        return self.run, self.row


@dataclass(frozen=True, slots=True)
class Span:
    """What took time: a launch from call to analysis, a row from start to end.

    Args:
        begin: its first event.
        end_ns: when it ended.
        marks: times of what else happened to it: when it was mapped, or ready.
    """

    begin: Event
    end_ns: int
    marks: tuple[tuple[Kind, int], ...] = ()

    @property
    def start_ns(self) -> int:
        """When it began."""
        return self.begin.time_ns

    @property
    def rank(self) -> int:
        """Where."""
        return self.begin.rank

    @property
    def lane(self) -> str:
        """The row of a picture."""
        return self.begin.lane

    @property
    def name(self) -> str:
        """The task, movement or launch."""
        return self.begin.name

    @property
    def category(self) -> str:
        """What it is."""
        return self.begin.category

    @property
    def item(self) -> Item:
        """The run and the row."""
        return self.begin.item


@dataclass(frozen=True)
class Timeline:
    """The events of all ranks.

    Args:
        events: ordered by time.
        nodes: the node of each rank.
        dependences: (item, item that waits for it), as far as both ran from a schedule.
        dropped: how many events each rank's ring had no room for; the oldest went.
    """

    events: tuple[Event, ...]
    nodes: tuple[int, ...]
    dependences: tuple[tuple[Item, Item], ...] = ()
    dropped: tuple[int, ...] = ()

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """What took time, ordered by start; of what began or ended outside the timeline there is none."""
        begun: dict[tuple[int, str, Item], Event] = {}
        marks: dict[tuple[int, str, Item], list[tuple[Kind, int]]] = {}
        found = []
        for event in self.events:
            key = (event.rank, event.category, event.item)
            if event.kind in _BEGINS:
                begun[key] = event
            elif event.kind in _ENDS and key in begun:
                found.append(Span(begun.pop(key), event.time_ns, tuple(marks.pop(key, ()))))
            else:
                marks.setdefault(key, []).append((event.kind, event.time_ns))
        return tuple(sorted(found, key=lambda span: (span.start_ns, span.rank, span.item)))

    @cached_property
    def critical_path(self) -> tuple[Span, ...]:
        """The chain of spans that made the last one end when it did, from the first on.

        Before a span comes, of the spans that it waited for (its dependences, the sender's share of the same movement,
        the span before it on its processor), the one that ended last:

            p0           write 0-3   .             .
            copy engine  .           copy x 3-5    .
            p1           other 0-1   .             read 5-6      path: write, copy x, read
        """
        return critical_path([span for span in self.spans if span.category != "launch"], self.dependences)

    def to_chrome(self) -> dict[str, object]:
        """Give Chrome's trace event format; `maniple.runtime.observe.chrome` says what is drawn."""
        return chrome_trace(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the Chrome trace.

        Raises:
            RequestError: the file cannot be written there.
        """
        try:
            write_atomically(path, json.dumps(self.to_chrome()))
        except RequestError as error:
            msg = f"cannot write the timeline to {path}: {error}"
            raise RequestError(msg) from error

    def to_json(self) -> list[dict[str, object]]:
        """Give the events as plain data."""
        return [asdict(event) for event in self.events]


def events_of_run(
    schedule: Schedule, times: tuple[Sequence[int], Sequence[int]], rank: int, run: int, rows: Iterable[int]
) -> Iterator[Event]:
    """Make the events of the rows of a run that one rank took part in.

    A row was ready when the last of those that it waits for had ended here; one that waits for none has no such event.

    Args:
        schedule: what ran.
        times: start and end of every row, in nanoseconds.
        rank: the rank.
        run: the submission.
        rows: the rows.
    """
    here = set(rows)
    ready: dict[int, int] = {}
    for before, row in schedule.edges():
        if before in here and row in here:
            ready[row] = max(ready.get(row, 0), times[1][before])
    for row in sorted(here):
        processor = int(schedule.processor[row])
        lane = f"p{processor}" if processor >= 0 else "copy engine"
        category = RowKind(int(schedule.kind[row])).name.lower()
        place = (rank, lane, schedule.label(row), category, run, row)
        if row in ready:
            yield Event(Kind.READY, ready[row], *place)
        yield Event(Kind.STARTED, times[0][row], *place)
        yield Event(Kind.ENDED if processor >= 0 else Kind.COPIED, times[1][row], *place)


def dependences_of_run(schedule: Schedule, run: int) -> Iterator[tuple[Item, Item]]:
    """Give what waited for what within a run."""
    return (((run, before), (run, row)) for before, row in schedule.edges())
