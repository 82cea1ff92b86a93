"""Traffic: how long a movement takes and what it holds meanwhile, from what it sends from where to where.

A transfer holds every link of its route from its start, each for as long as that link needs for the bytes, and ends
when the slowest link has passed them and the last one has arrived. A collective sends what the runtime sends (every
contribution straight to its owner, then every block straight to all others): on each link for the sum of it, at
different times on different links, so it ends a latency per phase after the busiest link is free:

    4 bytes from 0 over switch s to 1; links 0-s: 2 B/s, s-1: 1 B/s, 1 s of latency each
    0-s  ##..        held for 2 s
    s-1  ####        held for 4 s; the transfer ends at 6 s

A GPU has engines that copy while it computes. A CPU processor copies what it sends (it reads and writes each byte) and
folds what a reduction sends it, and computes nothing meanwhile: it is held as a link is. To copy a byte it reads and
writes the whole cache line, so a tile touches at least a line for each of its runs, which is what lies together (see
`regions/row_major.py`). The region's bounds stand in for the instances at both ends, and nobody knows where in a line a
run begins:

    8 x 8 elements of 4 bytes, lines of 64 bytes      runs           bytes     touched to read, and again to write
    a fourth by x (the inner axis)                    8 of 8 bytes   64        512
    a fourth by y                                     1 of 64        64        64
    all                                               1 of 256       256       256
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maniple.regions.row_major import runs
from maniple.runtime.schedule.roofline import bandwidth

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maniple.regions.index_space import IndexSpace
    from maniple.regions.rectangle import Rect
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.machine.route import Routes

__all__: list[str] = []

ENGINE = -1
"""The carrier of a memory whose processors need not copy themselves."""
LINE = 64
"""Bytes of a cache line: a CPU's caches and memory pass no less (so with all x86 and most Arm processors)."""


@dataclass(frozen=True, slots=True)
class Carrier:
    """What copies out of a memory, and folds into it.

    Args:
        processor: the first processor of the memory, or ENGINE.
        bandwidth: bytes per second that it reads and writes.
    """

    processor: int
    bandwidth: float


def carriers(machine: Machine) -> tuple[Carrier, ...]:
    """Give the carrier of each memory."""
    found = []
    for memory in machine.memories:
        users = machine.processors_of(memory.id)
        if users and machine.processor(users[0]).kind == "cpu":
            found.append(Carrier(users[0], bandwidth(machine, machine.processor(users[0]))))
        else:
            found.append(Carrier(ENGINE, 1.0))
    return tuple(found)


def touched_bytes(space: IndexSpace, bounds: Rect, itemsize: int) -> int:
    """Give the bytes that a processor touches to read or to write a tile: a cache line for each run, and all its own.

    Args:
        space: the tile.
        bounds: the region.
        itemsize: bytes of an element.
    """
    return max(space.volume * itemsize, runs(space, bounds) * LINE)


def traffic_ns(
    routes: Routes,
    pushes: Iterable[tuple[int, int, int, int]],
    phases: int,
    carried: tuple[Sequence[Carrier], dict[int, int]] = ((), {}),
) -> tuple[int, tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    """Give the nanoseconds of a movement (at least 1), and for how many of them it holds what.

    Args:
        routes: the routes of the machine.
        pushes: (source memory, target memory, bytes, bytes touched to read them, or to write them).
        phases: 2 where some pushes wait for others of the same movement, else 1.
        carried: the carriers of the memories, none where only links count; and by memory the bytes that folds of the
            movement read and write.

    Returns:
        The nanoseconds; (processor, nanoseconds) and (link, nanoseconds), ascending.
    """
    load: dict[int, int] = {}
    by_memory = dict(carried[1])
    latency = 0.0
    for source, target, size, touched in pushes:
        arrival = 0.0
        for link in routes.route(source, target):
            load[link] = load.get(link, 0) + size
            arrival += routes.rate(link)[0]  # sum() rounds otherwise from Python 3.12 on, and compiled code never does
        latency = max(latency, arrival)
        by_memory[source] = by_memory.get(source, 0) + 2 * touched
    busy = tuple(
        sorted(
            (carrier.processor, int(1e9 * total / carrier.bandwidth))
            for memory, total in by_memory.items()
            if carried[0] and total and (carrier := carried[0][memory]).processor != ENGINE
        )
    )
    held = tuple((link, int(1e9 * size / routes.rate(link)[1])) for link, size in sorted(load.items()))
    longest = max(span for _, span in (*busy, *held))
    return max(1, longest + int(1e9 * latency) * phases), busy, held
