"""Traffic, push by push: what a movement holds and how long it takes, from all that it sends and folds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from counted_runs import touched_bytes
from naive_roofline import bandwidth, fold_ns

from maniple.regions.rectangle import Rect
from maniple.runtime.analysis.fragment import Fragment, Table
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.network import ENGINE, LINE
from maniple.runtime.schedule.schedule import RowKind

Pushes = Iterable[tuple[int, int, int, int]]
Price = tuple[int, list[tuple[int, int]]]
"""Nanoseconds, and (lane, nanoseconds) of what is held: processors and then links, ascending."""


def move_price(machine: Machine, fragment: Fragment, number: int, bounds: Rect, itemsize: int) -> Price:
    """The price of a movement of a region's fragment."""
    memories, spaces = fragment.instances[:, 0].tolist(), fragment.spaces

    def rows(table: Table) -> list[list[int]]:
        return [row for row in table.tolist() if row[0] == number]

    if fragment.kinds[number] == RowKind.FOLD:
        touched = sum(spaces[space].volume for _, space, *_ in rows(fragment.accesses)) * itemsize
        processor = int(fragment.processors[number])
        duration = fold_ns(touched, machine, machine.processor(processor))
        return duration, [(processor, duration)]
    pushes = [
        (
            memories[source],
            memories[target],
            spaces[space].volume * itemsize,
            touched_bytes(spaces[space], bounds, itemsize, LINE),
        )
        for _, space, source, target, *_ in rows(fragment.transfers)
    ]
    folded: dict[int, int] = {}
    for _, space, memory, _, first, last in rows(fragment.pieces):
        folded[memory] = folded.get(memory, 0) + (last - first + 1) * spaces[space].volume * itemsize
    return traffic_price(machine, pushes, 2 if fragment.kinds[number] == RowKind.ALL_REDUCE else 1, folded)


def traffic_price(machine: Machine, pushes: Pushes, phases: int, folded: Mapping[int, int]) -> Price:
    """The price of a movement.

    Args:
        machine: the machine.
        pushes: (source memory, target memory, bytes, bytes touched to read them, or to write them).
        phases: 2 where some pushes wait for others of the same movement, else 1.
        folded: by memory the bytes that folds of the movement read and write.
    """
    routes = machine.routes
    load: dict[int, int] = {}
    by_memory = dict(folded)
    latency = 0.0
    for source, target, size, touched in pushes:
        arrival = 0.0
        for link in routes.route(source, target):
            load[link] = load.get(link, 0) + size
            arrival += routes.rate(link)[0]  # sum() rounds otherwise from Python 3.12 on, and compiled code never does
        latency = max(latency, arrival)
        by_memory[source] = by_memory.get(source, 0) + 2 * touched
    held = []
    for memory, total in sorted(by_memory.items()):
        carrier, speed = carrier_of(machine, memory)
        if total and carrier != ENGINE:
            held.append((carrier, int(1e9 * total / speed)))
    base = len(machine.processors)
    held += [(base + link, int(1e9 * size / routes.rate(link)[1])) for link, size in sorted(load.items())]
    return max(1, max(span for _, span in held) + int(1e9 * latency) * phases), held


def carrier_of(machine: Machine, memory: int) -> tuple[int, float]:
    """The processor that copies out of a memory and folds into it, or ENGINE, and its bytes per second."""
    users = machine.processors_of(memory)
    if users and machine.processor(users[0]).kind == "cpu":
        return users[0], bandwidth(machine, machine.processor(users[0]))
    return ENGINE, 1.0
