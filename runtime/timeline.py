"""Timelines: what ran when, or what a simulator says would, as events that Perfetto opens."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from maniple.regions.error import RequestError
from maniple.runtime.entry import write_atomically
from maniple.runtime.schedule import RowKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maniple.runtime.schedule import Schedule

__all__: list[str] = []


@dataclass(frozen=True, slots=True)
class Event:
    """One row of a schedule as it ran on one rank.

    Args:
        name: the task or movement.
        category: `task`, `fold`, `copy`, or a collective's name.
        rank: where.
        lane: the thread's name there, such as `p1` or `copy engine`.
        start_ns: when it began, on the host's monotonic clock.
        end_ns: when it ended.
        row: its row in the schedule; a movement has one event on each rank that takes part.
    """

    name: str
    category: str
    rank: int
    lane: str
    start_ns: int
    end_ns: int
    row: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """The events of one step over all ranks.

    Args:
        events: ordered by start.
        nodes: the node of each rank.
    """

    events: tuple[Event, ...]
    nodes: tuple[int, ...]

    def to_chrome(self) -> dict[str, object]:
        """Give Chrome's trace event format: a process per rank, a thread per lane, flow arrows for movements."""
        origin = min((event.start_ns for event in self.events), default=0)
        lanes = sorted({(event.rank, event.lane) for event in self.events}, key=lambda lane: (lane[0], lane[1]))
        thread = {lane: number for number, lane in enumerate(lanes)}
        found: list[dict[str, object]] = []
        for rank, node in enumerate(self.nodes):
            name = f"node {node} (rank {rank})"
            found.append({"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": name}})
        for (rank, lane), number in thread.items():
            found.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": number, "args": {"name": lane}})
        found += [
            {
                "ph": "X",
                "name": event.name,
                "cat": event.category,
                "pid": event.rank,
                "tid": thread[event.rank, event.lane],
                "ts": (event.start_ns - origin) / 1e3,
                "dur": (event.end_ns - event.start_ns) / 1e3,
                "args": {"row": event.row},
            }
            for event in self.events
        ]
        found += self._flows(thread, origin)
        return {"traceEvents": found, "displayTimeUnit": "ms"}

    def _flows(self, thread: dict[tuple[int, str], int], origin: int) -> list[dict[str, object]]:
        """Draw an arrow between the events of one movement on different ranks."""
        ends: dict[int, list[Event]] = {}
        for event in self.events:
            if event.category not in {"task", "fold"}:
                ends.setdefault(event.row, []).append(event)
        flows: list[dict[str, object]] = []
        for row, events in sorted(ends.items()):
            first, *rest = sorted(events, key=lambda event: (event.start_ns, event.rank))
            for event in rest:
                shared = {"name": first.name, "cat": "flow", "id": f"{row}.{event.rank}"}
                flows.append(
                    {**shared, "ph": "s", "pid": first.rank, "tid": thread[first.rank, first.lane],
                     "ts": (first.start_ns - origin) / 1e3}
                )  # fmt: skip
                flows.append(
                    {**shared, "ph": "f", "bp": "e", "pid": event.rank, "tid": thread[event.rank, event.lane],
                     "ts": (event.end_ns - origin) / 1e3}
                )  # fmt: skip
        return flows

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


def measured_events(
    schedule: Schedule, times: tuple[Sequence[int], Sequence[int]], rank: int, rows: Iterable[int]
) -> tuple[Event, ...]:
    """Make the events of the rows that one rank ran.

    Args:
        schedule: what ran.
        times: start and end of every row, in nanoseconds.
        rank: the rank.
        rows: the rows that it ran.
    """
    events = []
    for row in rows:
        processor = int(schedule.processor[row])
        events.append(
            Event(
                schedule.label(row),
                RowKind(int(schedule.kind[row])).name.lower(),
                rank,
                f"p{processor}" if processor >= 0 else "copy engine",
                times[0][row],
                times[1][row],
                row,
            )
        )
    return tuple(sorted(events, key=lambda event: (event.start_ns, event.row)))
