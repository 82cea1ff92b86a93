"""Predictions: what a simulated step comes to, and which rows its time is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.runtime.observe.timeline import Event, Kind, Timeline
from maniple.runtime.schedule.schedule import csr
from maniple.strategies.simulation.named_row import COPY_ENGINE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.network import Column
    from maniple.strategies.simulation.liveness import Liveness
    from maniple.strategies.simulation.named_row import Named
    from maniple.strategies.timing.steady_state import Timed

__all__: list[str] = []

_BEGINS = frozenset({Kind.STARTED, Kind.ALLOCATED})


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
        critical_path: (name, start, end) of the rows that make the step as long as it is, in nanoseconds: each starts
            when the one before has ended, or has left the lane that it waits for.
        sources: how many durations come from where, such as (``analytic``, 40).
        memory: what lives in the memories, and when.
        ramp_ns: without a flush the nanoseconds until the first mini-batch has gone through; `step_ns` is then from one
            run to the next in the steady state, and the path is of one such period.
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
    ramp_ns: int = 0


def link_bytes(machine: Machine, carried: Column, first: int) -> tuple[tuple[str, int], ...]:
    """Give (name, bytes) of every link that carries any; lanes from the first on are links."""
    return tuple(
        (machine.routes.name(lane - first), int(carried[lane])) for lane in range(first, len(carried)) if carried[lane]
    )


def critical_path(timed: Timed, since: int = 0) -> list[tuple[int, int, int]]:
    """Give (row, start, end) of the rows that bound the makespan: each starts when the one before lets it.

    A row that started late waited for a lane: then the row that held the lane until then comes before it. Any other
    waited for its predecessor that ended last. Of several the one with the lowest key is taken, and of those that hold
    a lane for no time only one that came before; so the path ends.

    Args:
        timed: the rows with their times.
        since: when it begins.
    """
    _, (first, lanes, spans), (starts, after), _ = timed.columns
    begin, end, ready = timed.begin, timed.end, timed.ready
    owners = np.repeat(np.arange(len(begin)), np.diff(first))
    until, width = begin[owners] + spans, int(end.max(initial=0)) + 1
    by_lane = np.argsort(lanes * width + until, kind="stable")
    freed = (lanes * width + until)[by_lane]
    before = csr(len(begin), np.stack([after, np.repeat(np.arange(len(begin)), np.diff(starts))], axis=1))
    last = np.flatnonzero(end == end.max(initial=0))
    path: list[tuple[int, int, int]] = []
    while len(last):
        row = int(last.min())
        if end[row] <= since:
            break
        path.append((row, int(begin[row]), int(end[row])))
        if begin[row] > ready[row]:
            ends = lanes[first[row] : first[row + 1]] * width + begin[row]
            sides = zip(np.searchsorted(freed, ends, "left"), np.searchsorted(freed, ends, "right"), strict=True)
            holders = owners[np.concatenate([by_lane[left:right] for left, right in sides])]
            earlier = (ready[holders] < ready[row]) | ((ready[holders] == ready[row]) & (holders < row))
            last = holders[earlier]
        else:
            last = before[1][before[0][row] : before[0][row + 1]]
            last = last[end[last] == begin[row]]
    return path[::-1]


def timeline(
    machine: Machine, named: Iterable[Named], runs: Sequence[tuple[Column, Column]], memory: MemoryTimeline | None
) -> Timeline:
    """Draw tasks and folds on their processors, movements on the copy engines of all ranks, and what memories hold.

    Args:
        machine: the machine.
        named: the rows of a run.
        runs: of each the begins and ends of rows, by their numbers; a row that takes no time has nothing to do.
        memory: what lives when; None where it is not drawn.
    """
    events = [] if memory is None else _living(machine, memory)
    for row in named:
        for run, (begins, ends) in enumerate(runs, 1):
            start, end = int(begins[row.number]), int(ends[row.number])
            for rank, lane in row.lanes if end > start else ():
                place = (rank, lane, row.name, row.category, run, row.number)
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
