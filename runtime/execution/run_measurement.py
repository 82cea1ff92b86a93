"""Measurements of a run, gathered from all ranks: bytes that transports were handed, and events."""

from __future__ import annotations

from dataclasses import astuple, fields, replace
from time import perf_counter_ns
from typing import TYPE_CHECKING

from maniple.process.error import RequestError
from maniple.runtime.observe.clock_offset import clock_offsets
from maniple.runtime.observe.timeline import Event, Kind, Timeline, dependences_of_run, events_of_run
from maniple.runtime.transports import record
from maniple.runtime.transports.message import MAX_INTEGER, ProtocolError
from maniple.runtime.transports.transport import REMEMBERED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.runtime.control.world import World
    from maniple.runtime.execution.recorder import Recorder
    from maniple.runtime.execution.run import Run

__all__: list[str] = []

# Events that a rank tells at a time: an exchange among many ranks carries little from each.
CHUNK_EVENTS = 2000


def gather_bytes(world: World, account: int | None) -> int:
    """Sum the bytes that all ranks handed to transports or wrote into other memories: of an account, or ever.

    Raises:
        RequestError: the account is too long ago to be known, at some rank.
    """
    ways = [way for way in (world.transport, world.shared) if way is not None]
    if account is None:
        mine: list[int | None] = [world.local.total, *(way.total() for way in ways)]
    else:
        mine = [world.local.of(account), *(way.count_bytes(account) for way in ways)]
    told = [size.optional_integer() for part in _gather_fields(world, mine, "bytes") for size in part.items()]
    known = [size for size in told if size is not None]
    if len(known) < len(told):
        raise RequestError(
            f"the bytes of run {account} are known no more: only those of the latest {REMEMBERED:,} runs are kept; "
            "ask right after the run"
        )
    return sum(known)


def _gather_fields(world: World, mine: object, what: str) -> list[record.Field]:
    """What every rank says, in rank order."""
    return record.parts(world.control.gather(record.pack(mine)), what)


def gather_timeline(world: World, run: Run) -> Timeline:
    """Collect the events of one run from all ranks."""
    replay, number = run.replay, run.number
    rows = [row for row in range(len(replay.schedule)) if replay.here(row)]
    mine = tuple(events_of_run(replay.schedule, replay.times[run.slot], world.rank, number, rows))
    dependences = tuple(dependences_of_run(replay.schedule, number))
    return Timeline(gather_events(world, mine), _nodes(world), dependences, (0,) * world.size)


def gather_recording(world: World, recorder: Recorder) -> Timeline:
    """Collect what all ranks recorded."""
    dropped = tuple(part.integer() for part in _gather_fields(world, recorder.dropped, "dropped events"))
    return Timeline(gather_events(world, recorder.events()), _nodes(world), recorder.dependences(), dropped)


def _nodes(world: World) -> tuple[int, ...]:
    return tuple(rank // world.ranks_per_node for rank in range(world.size))


def _event(item: record.Field) -> Event:
    kind, time_ns, rank, lane, name, category, run, row, size = item.items(len(fields(Event)))
    if kind.value not in set(Kind):
        raise ProtocolError(f"{kind.place}: expected one of {', '.join(Kind)}, got {kind.value!r}")
    return Event(
        Kind(kind.string()),
        time_ns.integer(least=-MAX_INTEGER),
        rank.integer(),
        lane.string(),
        name.string(),
        category.string(),
        run.integer(least=-MAX_INTEGER),
        row.integer(least=-MAX_INTEGER),
        size.integer(),
    )


def gather_events(world: World, mine: Sequence[Event]) -> tuple[Event, ...]:
    """Give every rank's events, on the clock of rank 0."""
    offsets = clock_offsets(world.control, world.hosts, perf_counter_ns)
    longest = max(part.integer() for part in _gather_fields(world, len(mine), "number of events"))
    events: list[Event] = []
    for first in range(0, longest, CHUNK_EVENTS):
        told = _gather_fields(world, [astuple(event) for event in mine[first : first + CHUNK_EVENTS]], "events")
        for offset, part in zip(offsets, told, strict=True):
            found = (_event(item) for item in part.items())
            events += (replace(event, time_ns=event.time_ns + offset) for event in found)
    return tuple(sorted(events, key=lambda event: (event.time_ns, event.rank, event.item)))
