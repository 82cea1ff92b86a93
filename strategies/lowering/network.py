"""The network of a machine as compiled code needs it: routes and rates as arrays, and what movements cost on them."""

# pyright: reportArgumentType=false, reportReturnType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from maniple.runtime.schedule.traffic import ENGINE, carriers
from maniple.strategies.lowering.compiled import inner, kernel, leaf
from maniple.strategies.lowering.history import BY, ELEMENTS, FROM, GROUP, GROUP_SIZE, KIND, TO, TOUCHED, Table
from maniple.strategies.lowering.validity import ALL_REDUCE, COPY, FOLD, REDUCE_SCATTER

if TYPE_CHECKING:
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []

Column = np.ndarray[tuple[int], np.dtype[np.int64]]
Rates = np.ndarray[tuple[int], np.dtype[np.float64]]
Wires = tuple[Column, Column, Rates, Rates, Column, Rates]
"""Starts of routes (by source * memories + target) and their links; latency (s) and bandwidth (bytes/s) of links; by
memory the processor that copies and folds, or ENGINE, and the bytes per second that it reads and writes."""


@dataclass(frozen=True, slots=True)
class Network:
    """Routes and rates as arrays. Lanes are processors first, then links.

    Args:
        processors: how many processors the machine has.
        wires: the routes and the links' rates.
    """

    processors: int
    wires: Wires

    @classmethod
    def of(cls, machine: Machine) -> Network:
        """The network of a machine."""
        routes, count = machine.routes, len(machine.memories)
        starts = np.zeros(count * count + 1, dtype=np.int64)
        links: list[int] = []
        for source in range(count):
            for target in range(count):
                if source != target:
                    links += routes.route(source, target)
                starts[source * count + target + 1] = len(links)
        size = 1 + max(links, default=-1)
        rates = np.ones((2, size))
        for link in sorted(set(links)):
            rates[:, link] = routes.rate(link)
        found = carriers(machine)
        carrier = np.asarray([one.processor for one in found], dtype=np.int64)
        speed = np.asarray([one.bandwidth for one in found])
        wires = (starts, np.asarray(links, dtype=np.int64), rates[0].copy(), rates[1].copy(), carrier, speed)
        return cls(len(machine.processors), wires)

    @property
    def copies(self) -> bool:
        """Whether a processor copies what it sends."""
        return bool((self.wires[4] != ENGINE).any())

    @property
    def lanes(self) -> int:
        """How many lanes there are."""
        return self.processors + len(self.wires[2])


@leaf
def _load(
    wires: Wires, memories: int, loads: Column, touched: Column, source: int, target: int, size: int, copied: int
) -> float:
    """Add a push to the links of its route, and to what its source touches; returns the route's latency in seconds."""
    starts, links, latencies = wires[:3]
    touched[source] += 2 * copied
    latency = 0.0
    pair = source * memories + target
    for place in range(starts[pair], starts[pair + 1]):
        loads[links[place]] += size
        latency += latencies[links[place]]
    return latency


@kernel
def traffic(
    wires: Wires, memories: int, processors: int, itemsize: int, moves: Table, members: Table, fold_ns: Column
) -> tuple[Table, Table, Column]:
    """What movements cost, as `runtime/schedule/traffic.py` has it.

    Args:
        wires: routes and rates.
        memories: how many memories there are.
        processors: how many processors there are.
        itemsize: bytes of an element.
        moves: movements of one region; those of kind FOLD hold the processor that folds.
        members: of their groups.
        fold_ns: nanoseconds of each fold, by movement.

    Returns:
        (key to be set, nanoseconds, number of holds) of each movement, (lane, nanoseconds, bytes) of each hold, and the
        bytes that each movement moves.
    """
    columns = np.zeros((len(moves), 3), dtype=np.int64)
    sizes = np.zeros(len(moves), dtype=np.int64)
    held = np.zeros((4 * len(moves) + 16, 3), dtype=np.int64)
    loads = np.zeros(len(wires[3]), dtype=np.int64)
    touched = np.zeros(memories, dtype=np.int64)
    every_link = np.arange(len(wires[3]))
    used = 0
    for number in range(len(moves)):
        kind = moves[number, KIND]
        if kind == FOLD:
            columns[number, 1], columns[number, 2] = fold_ns[number], 1
            if used == len(held):
                held = _larger(held, used + 1)
            held[used, 0], held[used, 1] = moves[number, BY], fold_ns[number]
            used += 1
            continue
        sizes[number] = moves[number, ELEMENTS] * itemsize
        latency = 0.0
        if kind == COPY:
            source, target = moves[number, FROM], moves[number, TO]
            pair = source * memories + target
            used_links = np.sort(wires[1][wires[0][pair] : wires[0][pair + 1]])
            group = moves[number : number + 1, FROM : FROM + 1]
            latency = _load(wires, memories, loads, touched, source, target, sizes[number], moves[number, TOUCHED])
        else:
            used_links = every_link
            group = members[moves[number, GROUP] : moves[number, GROUP] + moves[number, GROUP_SIZE]]
            latency = _group_load(wires, memories, loads, touched, group, kind, itemsize)
        before = used
        if used + len(group) + len(used_links) > len(held):
            held = _larger(held, used + len(group) + len(used_links))
        used, slowest = _unload(wires, processors, loads, touched, group, used_links, held, used)
        phases = 2 if kind == ALL_REDUCE else 1
        columns[number, 1], columns[number, 2] = max(1, slowest + int(1e9 * latency) * phases), used - before
    return columns, held[:used], sizes


@leaf
def _unload(
    wires: Wires, processors: int, loads: Column, touched: Column, group: Table, links: Column, held: Table, used: int
) -> tuple[int, int]:
    """Write the holds of what memories and links were given, and take it from them: one past the last, the longest."""
    slowest = 0
    for place in range(len(group)):
        memory = group[place, 0]
        if touched[memory] and wires[4][memory] != ENGINE:
            held[used, 0], held[used, 1] = wires[4][memory], int(1e9 * touched[memory] / wires[5][memory])
            slowest = max(slowest, held[used, 1])
            used += 1
        touched[memory] = 0
    for link in links:
        if loads[link]:
            held[used, 0], held[used, 1] = processors + link, int(1e9 * loads[link] / wires[3][link])
            held[used, 2] = loads[link]
            slowest = max(slowest, held[used, 1])
            loads[link] = 0
            used += 1
    return used, slowest


@leaf
def _group_load(
    wires: Wires, memories: int, loads: Column, touched: Column, group: Table, kind: int, itemsize: int
) -> float:
    """Add what a collective sends and folds: contributions to the owner of each block, blocks to others, or both."""
    latency = 0.0
    for owner in range(len(group)):
        at, size, copied = group[owner, 0], group[owner, 1] * itemsize, group[owner, 2]
        if size == 0:
            continue
        if kind in (ALL_REDUCE, REDUCE_SCATTER):
            touched[at] += (len(group) + 1) * size
        for other in range(len(group)):
            if other == owner:
                continue
            member = group[other, 0]
            if kind in (ALL_REDUCE, REDUCE_SCATTER):
                latency = max(latency, _load(wires, memories, loads, touched, member, at, size, copied))
            if kind != REDUCE_SCATTER:
                latency = max(latency, _load(wires, memories, loads, touched, at, member, size, copied))
    return latency


@inner
def _larger(held: Table, need: int) -> Table:
    """A copy of the holds with room for at least so many, those that are not yet written being zero."""
    larger = np.zeros((2 * need, held.shape[1]), dtype=np.int64)
    larger[: len(held)] = held
    return larger
