"""The network of a machine as columns: the links of every route, and the rates of links and processors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

import numpy as np

from maniple.process.compilation.compiled import kernel
from maniple.runtime.schedule.roofline import Rooflines

if TYPE_CHECKING:
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.machine.route import Routes

__all__: list[str] = []

ENGINE = -1
"""Instead of a processor: the memory's processors need not copy themselves."""
LINE = 64
"""Bytes of a cache line: a CPU's caches and memory pass no less (so with all x86 and most Arm processors)."""

Column = np.ndarray[tuple[int], np.dtype[np.int64]]
Rates = np.ndarray[tuple[int], np.dtype[np.float64]]
Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]
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

    Processors that share a GPU have one lane: the device takes turns between the contexts of their ranks, so that
    together they get no further than one.

    Args:
        wires: the routes and the links' rates.
        rooflines: what the processors reach.
        devices: by processor the lane that its tasks hold: the first processor of the same device.
        run_ns: what a run takes beside its rows, before the first and after the last: that of the slowest rank.
    """

    wires: Wires
    rooflines: Rooflines
    devices: Column
    run_ns: int

    @classmethod
    def of(cls, machine: Machine) -> Self:
        """The network of a machine."""
        routes, count = machine.routes, len(machine.memories)
        kinds = np.asarray(routes.kinds, dtype=np.int64)
        starts, passed, ordered = _lay(routes, kinds, count)
        crossed = np.unique(passed)
        speeds = np.ones((2, 1 + int(crossed.max(initial=-1))))
        for link in crossed[crossed < len(machine.links)].tolist():
            speeds[:, link] = routes.rate(link)
        hosts = np.asarray([memory.host for memory in machine.memories], dtype=np.int64)
        own = crossed[crossed >= len(machine.links)]
        source, target = np.divmod(own - len(machine.links), count)
        for rate, same in ((machine.within_host, True), (machine.between_hosts, False)):
            if rate is not None:
                speeds[:, own[(hosts[source] == hosts[target]) == same]] = [[rate.latency_s], [rate.bandwidth]]
        rooflines = Rooflines.of(machine)
        carrier, carried = np.full(count, ENGINE, dtype=np.int64), np.ones(count)
        # The first processor of a memory carries, so it is the last that is entered.
        for processor in reversed(machine.processors):
            copies = processor.kind == "cpu"
            carrier[processor.memory] = processor.id if copies else ENGINE
            carried[processor.memory] = rooflines.bandwidth[processor.id] if copies else 1.0
        launch = np.zeros(count)
        for processor in reversed(machine.processors):
            launch[processor.memory] = processor.launch_s
        latencies, bandwidths = speeds[0].copy(), speeds[1].copy()
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
        fixed_s = max((each.feed.run_s for each in machine.processors if each.feed), default=0.0)
        return cls(wires, rooflines, _devices(machine), round(1e9 * fixed_s))

    def hold(self, held: Table) -> Table:
        """Give the (lane, span) of what tasks hold whose processors these are."""
        found = held.copy()
        found[:, 0] = self.devices[held[:, 0]]
        return found

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


def _devices(machine: Machine) -> Column:
    """By processor, the first one that is the same device."""
    found: dict[int, int] = {}
    lanes = np.arange(len(machine.processors))
    for processor in machine.processors:
        if processor.device is not None:
            lanes[processor.id] = found.setdefault(processor.device, processor.id)
    return lanes


def _lay(routes: Routes, kinds: Column, count: int) -> tuple[Column, Column, Column]:
    """Lay out the links of all routes: where those of each begin, in order, and by rising number."""
    most = 1 + int(kinds.max())
    ways, between = np.full((most * most, 4), -1, dtype=np.int64), list[int]()
    for first, second, (leave, middle, enter) in routes.ways():
        ways[first * most + second] = leave, enter, len(between), len(between) + len(middle)
        between += middle
    ends = []
    for links in routes.ends:
        table = np.full((count, 1 + max(map(len, links))), -1, dtype=np.int64)
        for memory, found in enumerate(links):
            table[memory, : len(found)] = found
        ends.append(table)
    joined = np.full((count, count), -1, dtype=np.int64)
    for pair, link in routes.joined.items():
        joined[pair] = link
    return lay(kinds, ways, np.asarray(between, dtype=np.int64), ends[0], ends[1], joined, len(routes.links))


@kernel
def lay(
    kinds: Column, ways: Table, between: Column, out: Table, into: Table, joined: Table, links: int
) -> tuple[Column, Column, Column]:
    """Lay out the links of routes; see `_lay`.

    Args:
        kinds: of memories.
        ways: by pair of kinds the places of the first and last links, and where those between begin and end.
        between: the links of ways that are between switches.
        out: by memory and place its links to switches.
        into: by memory and place its links from switches.
        joined: by source and target the link that joins them, or -1.
        links: how many links are listed: behind them are those of pairs that nothing joins.
    """
    count, most = len(kinds), 0
    for memory in range(count):
        most = max(most, kinds[memory] + 1)
    starts = np.zeros(count * count + 1, dtype=np.int64)
    for source in range(count):
        for target in range(count):
            way = ways[kinds[source] * most + kinds[target]]
            length = 1 if joined[source, target] >= 0 or way[0] < 0 else 2 + way[3] - way[2]
            pair = source * count + target
            starts[pair + 1] = starts[pair] + (0 if source == target else length)
    passed, rising = np.empty(starts[-1], dtype=np.int64), np.empty(starts[-1], dtype=np.int64)
    for source in range(count):
        for target in range(count):
            if source == target:
                continue
            first, last = starts[source * count + target], starts[source * count + target + 1]
            way = ways[kinds[source] * most + kinds[target]]
            if joined[source, target] >= 0:
                passed[first] = joined[source, target]
            elif way[0] < 0:
                passed[first] = links + source * count + target
            else:
                passed[first], passed[last - 1] = out[source, way[0]], into[target, way[1]]
                for place in range(way[2], way[3]):
                    passed[first + 1 + place - way[2]] = between[place]
            for number in range(first, last):
                place = number
                while place > first and rising[place - 1] > passed[number]:
                    rising[place] = rising[place - 1]
                    place -= 1
                rising[place] = passed[number]
    return starts, passed, rising


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
