"""The network of a machine as columns: the links of every route, and the rates of links and processors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

import numpy as np

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
Wires = tuple[Column, Column, Rates, Rates, Column, Rates, Column, Column]
"""Starts of routes (by source * memories + target) and their links; latency (s) and bandwidth (bytes/s) of links; by
memory the processor that copies and folds, or ENGINE, and the bytes per second that it reads and writes; the links of
each route again, by rising number; by memory its host."""


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
        wires = (starts, passed, speeds[0].copy(), speeds[1].copy(), carrier, carried, ordered, hosts)
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
