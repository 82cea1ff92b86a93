"""Measurements of a run, gathered from all ranks: bytes that transports were handed, and events."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgpack

from maniple.runtime.timeline import Event, Timeline, measured_events

if TYPE_CHECKING:
    from maniple.runtime.replay import Run
    from maniple.runtime.world import World

__all__: list[str] = []


def gather_bytes(world: World, account: int | None) -> int:
    """Sum the bytes that all ranks handed to transports or wrote into others' memories: of an account, or ever."""
    mine = 0
    for way in (world.transport, world.shared):
        if way is not None:
            mine += way.total() if account is None else way.measured(account)
    return sum(msgpack.unpackb(part) for part in world.control.gather(_packed(mine)))


def _packed(value: object) -> bytes:
    return cast("bytes", msgpack.packb(value))


def gather_timeline(world: World, run: Run) -> Timeline:
    """Collect the events of one run from all ranks."""
    replay = run.replay
    rows = [row for row in range(len(replay.schedule)) if replay.here(row)]
    mine = measured_events(replay.schedule, replay.times[run.slot], world.rank, rows)
    packed = _packed([(e.name, e.category, e.rank, e.lane, e.start_ns, e.end_ns, e.row) for e in mine])
    events = [Event(*fields) for part in world.control.gather(packed) for fields in msgpack.unpackb(part)]
    nodes = tuple(rank // world.ranks_per_node for rank in range(world.size))
    return Timeline(tuple(sorted(events, key=lambda event: (event.start_ns, event.rank, event.row))), nodes)
