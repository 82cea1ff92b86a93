"""Predictions: what a simulated step comes to, and which rows its time is made of."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from maniple.runtime.timeline import Event, Kind, Timeline
from maniple.strategies.simulation.tables import DURATION, END, READY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.runtime.machine import Machine
    from maniple.strategies.simulation.ledger import Ledger
    from maniple.strategies.simulation.liveness import Liveness
    from maniple.strategies.simulation.network import Column, Network

__all__: list[str] = []

_BEGINS = frozenset({Kind.STARTED, Kind.ALLOCATED})
COPY_ENGINE = "copy engine"
"""The lane of movements in a timeline."""


@final
@dataclass(frozen=True, slots=True)
class Named:
    """A row of a ledger and what people call it.

    Args:
        number: the row.
        name: the task or movement.
        category: ``task``, ``fold``, ``copy`` or a collective's name.
        source: where its duration comes from.
        lanes: (rank, lane) where it is drawn.
    """

    number: int
    name: str
    category: str
    source: str
    lanes: tuple[tuple[int, str], ...]


@final
@dataclass(frozen=True, slots=True)
class Peak:
    """The most that lives in a memory at once.

    Args:
        bytes: how much it is.
        at_ns: when that is first reached.
        residents: (region, bytes) of what lives then, the largest first.
    """

    bytes: int
    at_ns: int
    residents: tuple[tuple[str, int], ...]


@final
@dataclass(frozen=True, slots=True)
class MemoryTimeline:
    """What lives in the memories while a step runs, by name.

    Args:
        liveness: the columns.
        names: of its regions.
    """

    liveness: Liveness
    names: tuple[str, ...]

    def peak(self, memory: int) -> Peak:
        """The most that lives in a memory at once, when that is, and what makes it."""
        when, alive = self.liveness.at_peak(memory)
        residents = sorted(((self.names[region], size) for region, size in alive), key=lambda one: (-one[1], one[0]))
        return Peak(sum(size for _, size in residents), when, tuple(residents))


@final
@dataclass(frozen=True, slots=True)
class Prediction:
    """What one step under a plan comes to.

    Args:
        step_ns: nanoseconds from its first row to the end of its last.
        rows: tasks and movements.
        bytes: payload bytes that leave one memory for another.
        link_bytes: (name, bytes) of every link that carries any.
        memory_bytes: by memory what the runtime allocates for a step, if `planned`: instances that are never alive
            together take turns. Else the most that lives there at once, which is as much or a little more.
        planned: whether the step was lowered as the runtime does, to see; large ones are not.
        critical_path: (name, start, end) of the rows that leave no gap from the first to the last, in nanoseconds.
        sources: how many durations come from where, such as (``analytic``, 40).
        memory: what lives in the memories, and when.
        timeline: what runs when, and what is held.
    """

    step_ns: int
    rows: int
    bytes: int
    link_bytes: tuple[tuple[str, int], ...]
    memory_bytes: tuple[int, ...]
    planned: bool
    critical_path: tuple[tuple[str, int, int], ...]
    sources: tuple[tuple[str, int], ...]
    memory: MemoryTimeline
    timeline: Timeline


def prediction(
    machine: Machine,
    network: Network,
    ledger: Ledger,
    named: Sequence[Named],
    links: Column,
    total: int,
    memory_bytes: tuple[int, ...],
    memory: MemoryTimeline,
    *,
    planned: bool,
) -> Prediction:
    """Put a prediction together from a settled ledger.

    Args:
        machine: the machine.
        network: the lanes.
        ledger: the rows with their times.
        named: every row.
        links: bytes by lane.
        total: payload bytes.
        memory_bytes: by memory.
        memory: what lives in them.
        planned: whether these are what the runtime plans.
    """
    names = {row.number: row.name for row in named}
    routes, first = machine.routes, network.processors
    return Prediction(
        ledger.makespan,
        len(named),
        total,
        tuple((routes.name(lane - first), int(links[lane])) for lane in range(first, network.lanes) if links[lane]),
        memory_bytes,
        planned,
        tuple((names[row], *_times(ledger, row)) for row in critical_path(ledger, sorted(names))),
        tuple(sorted(Counter(row.source for row in named).items())),
        memory,
        _timeline(machine, ledger, named, memory),
    )


def critical_path(ledger: Ledger, rows: Sequence[int]) -> list[int]:
    """Give the rows that bound the makespan, first to last: each starts when the one before lets it.

    A row that started late waited for a lane: then the row that held the lane until then comes before it. Any other
    waited for its predecessor that ended last. Of several the one with the lowest key is taken.

    Args:
        ledger: the rows with their times.
        rows: those that are in the graph.
    """
    until: dict[tuple[int, int], list[int]] = {}
    for row in rows:
        start, _ = _times(ledger, row)
        for lane, span in ledger.holds(row):
            until.setdefault((int(lane), start + int(span)), []).append(row)
    before = _predecessors(ledger)
    last = [row for row in rows if ledger.times[row, END] == ledger.makespan]
    path: list[int] = []
    while last:
        row = min(last, key=lambda row: int(ledger.keys[row]))
        path.append(row)
        start, _ = _times(ledger, row)
        if start > ledger.times[row, READY]:
            holders = [other for hold in ledger.holds(row) for other in until.get((int(hold[0]), start), ())]
            last = [other for other in holders if other != row]
        else:
            last = [other for other in before.get(row, ()) if start and ledger.times[other, END] == start]
    return path[::-1]


def _predecessors(ledger: Ledger) -> dict[int, list[int]]:
    """The rows that each row waits for."""
    found: dict[int, list[int]] = {}
    for source, target in ledger.pairs.tolist():
        found.setdefault(target, []).append(source)
    return found


def _times(ledger: Ledger, row: int) -> tuple[int, int]:
    end = int(ledger.times[row, END])
    return end - int(ledger.rows[row, DURATION]), end


def _timeline(machine: Machine, ledger: Ledger, named: Sequence[Named], memory: MemoryTimeline) -> Timeline:
    """Draw tasks and folds on their processors, movements on the copy engines of all ranks, and what memories hold."""
    events = _living(machine, memory)
    for row in named:
        start, end = _times(ledger, row.number)
        for rank, lane in row.lanes:
            place = (rank, lane, row.name, row.category, 1, row.number)
            events.append(Event(Kind.STARTED, start, *place))
            events.append(Event(Kind.ENDED if lane != COPY_ENGINE else Kind.COPIED, end, *place))
    nodes = tuple(memory.host for memory in machine.memories)
    # Of one instant, what ends comes before what starts.
    order = sorted(events, key=lambda event: (event.time_ns, event.kind in _BEGINS, event.rank, event.row))
    return Timeline(tuple(order), nodes)


def _living(machine: Machine, held: MemoryTimeline) -> list[Event]:
    """What begins and ends to live in each memory."""
    found, columns = [], held.liveness
    table = zip(columns.regions.tolist(), columns.memories.tolist(), columns.bytes.tolist(), strict=True)
    spans = zip(columns.begins.tolist(), columns.ends.tolist(), strict=True)
    for (region, memory, size), (begin, end) in zip(table, spans, strict=True):
        place = (machine.memories[memory].rank, f"memory {memory}", held.names[region], "memory", 1, region, size)
        found += [Event(Kind.ALLOCATED, begin, *place), Event(Kind.FREED, end, *place)]
    return found
