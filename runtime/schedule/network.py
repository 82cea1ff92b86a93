"""The network of a machine as columns: the links of every route, and the rates of links and processors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

import numpy as np

from maniple.process.compilation.compiled import kernel
from maniple.runtime.schedule.roofline import Rooflines

if TYPE_CHECKING:
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []

ENGINE = -1
"""Instead of a processor: the memory's processors need not copy themselves."""
LINE = 64
"""Bytes of a cache line: a CPU's caches and memory pass no less (so with all x86 and most Arm processors)."""

Column = np.ndarray[tuple[int], np.dtype[np.int64]]
Rates = np.ndarray[tuple[int], np.dtype[np.float64]]
Wires = tuple[Column, Column, Rates, Rates, Column, Rates, Column, Column, Rates, Column, Column, Column]
"""Starts of routes (by source * memories + target) and their links; latency (s) and bandwidth (bytes/s) of links; by
memory the processor that copies and folds, or ENGINE, and the bytes per second that it reads and writes; the links of
each route again, by rising number; by memory its host, the seconds that sending one more message takes there (a launch
of the processor), its place in the tour, and its kind; by kind * kinds + kind whether all routes from one to the other
are over switches: such differ in their first and last links alone."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """Routes and rates as arrays. Lanes, which a row may hold, are processors first, then links.

    Args:
        wires: the routes and the links' rates.
        rooflines: what the processors reach.
    """

    wires: Wires
    rooflines: Rooflines

    @classmethod
    def of(cls, machine: Machine) -> Self:
        """The network of a machine."""
        routes, count = machine.routes, len(machine.memories)
        starts = np.zeros(count * count + 1, dtype=np.int64)
        links: list[int] = []
        rising: list[int] = []
        for source in range(count):
            for target in range(count):
                if source != target:
                    route = routes.route(source, target)
                    links += route
                    rising += sorted(route)
                starts[source * count + target + 1] = len(links)
        speeds = np.ones((2, 1 + max(links, default=-1)))
        for link in sorted(set(links)):
            speeds[:, link] = routes.rate(link)
        rooflines = Rooflines.of(machine)
        carrier, carried = np.full(count, ENGINE, dtype=np.int64), np.ones(count)
        # The first processor of a memory carries, so it is the last that is entered.
        for processor in reversed(machine.processors):
            copies = processor.kind == "cpu"
            carrier[processor.memory] = processor.id if copies else ENGINE
            carried[processor.memory] = rooflines.bandwidth[processor.id] if copies else 1.0
        passed, ordered = np.asarray(links, dtype=np.int64), np.asarray(rising, dtype=np.int64)
        hosts = np.asarray([memory.host for memory in machine.memories], dtype=np.int64)
        launch = np.zeros(count)
        for processor in reversed(machine.processors):
            launch[processor.memory] = processor.launch_s
        latencies, bandwidths = speeds[0].copy(), speeds[1].copy()
        kinds = np.asarray(routes.kinds, dtype=np.int64)
        places = tour(starts, passed, latencies, bandwidths, count)
        wires = (
            starts,
            passed,
            latencies,
            bandwidths,
            carrier,
            carried,
            ordered,
            hosts,
            launch,
            places,
            kinds,
            switched(starts, kinds),
        )
        return cls(wires, rooflines)

    @property
    def processors(self) -> int:
        """How many processors the machine has."""
        return len(self.rooflines.launch_s)

    @property
    def lanes(self) -> int:
        """How many lanes there are."""
        return self.processors + len(self.wires[2])

    @property
    def copies(self) -> bool:
        """Whether a processor copies what it sends."""
        return bool((self.wires[4] != ENGINE).any())

    @property
    def line(self) -> int:
        """Bytes of a cache line; 0 where no processor copies, so that nobody counts lines."""
        return LINE if self.copies else 0


@kernel
def switched(starts: Column, kinds: Column) -> Column:
    """For each pair of kinds, whether all routes from memories of one to memories of the other are over switches."""
    count = len(kinds)
    most = 0
    for memory in range(count):
        most = max(most, kinds[memory] + 1)
    found = np.ones(most * most, dtype=np.int64)
    for source in range(count):
        for target in range(count):
            pair = source * count + target
            if source != target and starts[pair + 1] - starts[pair] < 2:
                found[kinds[source] * most + kinds[target]] = 0
    return found


@kernel
def tour(starts: Column, links: Column, latencies: Rates, bandwidths: Rates, count: int) -> Column:
    """The place of each memory in a tour that begins at memory 0 and goes on to the nearest that was not there yet.

    The nearest is the one that the widest route leads to, of these the one of least latency, of these the lowest. So
    memories of a host follow each other where nothing within it is slower than the network.
    """
    places = np.full(count, -1, dtype=np.int64)
    at = 0
    for place in range(count):
        places[at] = place
        found, widest, least = -1, -1.0, 0.0
        for target in range(count):
            if places[target] >= 0:
                continue
            width, latency = np.inf, 0.0
            pair = at * count + target
            for number in range(starts[pair], starts[pair + 1]):
                width = min(width, bandwidths[links[number]])
                latency += latencies[links[number]]
            if width > widest or (width == widest and latency < least):
                found, widest, least = target, width, latency
        at = found
    return places
