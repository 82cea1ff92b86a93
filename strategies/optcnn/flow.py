"""Flows: how long it takes from the tasks that make parts of a region to the tasks that read parts of it, compiled.

Every element goes from each task that writes it, or adds to it, to each task that reads it, if these have not the same
memory: the movements that the rules of validity derive where each element is read by one memory. They take as long as
the busiest link needs (or the busiest processor, where processors copy), after the latency of the longest route, and
then as the busiest of those that add up what more than one task gave them. That is direct: where a collective goes by
another movement plan, links carry no more than is said here, and perhaps less.

    a matrix of 4 x 4 floats, written by rows on processors 0 and 1, read by columns there
    0 -> 1   16 bytes        1 -> 0   16 bytes        in 2 runs of 8 bytes: CPU processors touch 2 lines of 64

How a region is cut is written down in shares of its extents, for equal splits of all regions are alike: what flows from
one cut to another is worked out once for all regions, and multiplied by a region's bytes. Where processors copy, that
holds only for regions of one layout, for how many bytes a run has decides what it costs to copy.
"""

# pyright: reportArgumentType=false, reportReturnType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.process.compilation.compiled import inner, kernel
from maniple.process.inventory import available_cores
from maniple.regions.columns import boxes
from maniple.regions.columns.boxes import AXES, HIGH, LOW, Boxes
from maniple.regions.columns.validity import READ
from maniple.runtime.schedule.network import ENGINE, LINE, Column, Network, Rates, Wires
from maniple.strategies.optcnn.cut_shares import ROUNDING, CutTable, overlap
from maniple.strategies.optcnn.host_flow import add_by_host, ends_of, is_known
from maniple.strategies.simulation.region_cache import NOWHERE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.runtime.machine.machine import Machine
    from maniple.strategies.optcnn.cut_shares import Cuts, Shares
    from maniple.strategies.optcnn.host_flow import Ends
    from maniple.strategies.optcnn.use_table import BoxLists
    from maniple.strategies.simulation.region_cache import Use

__all__: list[str] = []

Spans = np.ndarray[tuple[int, int], np.dtype[np.float64]]
NOTHING = -1.0
"""Stands for no time in a table whose 0 says that it is not known."""
TOGETHER = 4096
"""So many pairs of cuts one thread looks at."""
Layout = tuple[tuple[int, ...], int]
"""The shape of a region, and the bytes of an element."""
ANY: Layout = (), LINE
"""Stands for all layouts where nobody copies."""
Folders = tuple[Column, Rates, Rates]
"""By processor: its memory, the nanoseconds of a launch, and of a byte that it reads or writes."""


@final
class Flows:
    """The flows of a machine.

    Args:
        machine: the machine.
    """

    def __init__(self, machine: Machine) -> None:
        network = Network.of(machine)
        self._cores = available_cores()
        self._wires, self._copying = network.wires, network.copies
        memory_of = np.asarray([processor.memory for processor in machine.processors], dtype=np.int64)
        self._folders = memory_of, 1e9 * network.rooflines.launch_s, 1e9 / network.rooflines.bandwidth
        self._ends = ends_of(network.wires)
        self._cuts = CutTable(network.wires[7][memory_of])
        self._times: dict[Layout, tuple[Spans, Spans]] = {}

    def find_made_and_read(self, uses: Sequence[Use]) -> tuple[Boxes, list[Boxes]]:
        """What the uses of a region make of it, and what each that reads needs of others, as boxes by processor.

        Args:
            uses: in program order; what a memory has read it holds.
        """
        made, read, held = [NOWHERE], [], NOWHERE
        for use in uses:
            if use.shape.access == READ:
                read.append(_lacking(_label(use), held, self._folders[0]))
                held = np.concatenate([held, read[-1]])
            else:
                made.append(_label(use))
        # Parts that one memory gives to a sum are added up before they are sent.
        return _lacking(np.concatenate(made), NOWHERE, self._folders[0]), read

    def cut(self, shape: tuple[int, ...], table: Boxes) -> int:
        """The number of a cut: equal for all regions that are cut alike.

        Args:
            shape: the region's.
            table: boxes by processor.
        """
        return self._cuts.number(_shares(shape, table, np.argsort(table[:, LOW], kind="stable")))

    def cut_all(self, shape: tuple[int, ...], lists: BoxLists) -> Column:
        """The number of each cut of some, see `cut`.

        Args:
            shape: the region's.
            lists: of each cut the boxes by processor.
        """
        shares = _shares(shape, lists.boxes, np.lexsort((lists.boxes[:, LOW], lists.owner)))
        cuts = [self._cuts.number(shares[first:last]) for first, last in pairwise(lists.starts.tolist())]
        return np.asarray(cuts, dtype=np.int64)

    def times_ns(self, layout: Layout, sources: Sequence[int] | Column, targets: Sequence[int] | Column) -> Spans:
        """The nanoseconds from each of some cuts of a region, as it is made, to each of others, as it is read.

        Args:
            layout: the region's.
            sources: the numbers of the cuts by those that make it.
            targets: the numbers of the cuts by those that read it.
        """
        made, read = np.asarray(sources, dtype=np.int64), np.asarray(targets, dtype=np.int64)
        found = self.between_ns(layout, np.repeat(made, len(read)), np.tile(read, len(made)))
        return found.reshape(len(made), len(read))

    def between_ns(self, layout: Layout, sources: Column, targets: Column) -> Rates:
        """The nanoseconds from the first of some cuts to the first of others, from the second to the second, and so on.

        Args:
            layout: the region's.
            sources: the numbers of the cuts by those that make it.
            targets: the numbers of the cuts by those that read it.
        """
        shape, itemsize = layout
        arranged = _arrange(layout if self._copying else ANY)
        moving, always = self._tables(layout if self._copying else ANY)
        found, size = np.empty(len(sources)), float(itemsize * prod(shape))
        network, cuts = (self._wires, self._folders, self._ends), self._cuts.columns

        def fill(part: slice) -> None:
            _fill(network, arranged, cuts, sources[part], targets[part], size, moving, always, found[part])

        parts = [slice(first, first + TOGETHER) for first in range(0, len(sources), TOGETHER)]
        if len(parts) > 1 and self._cores > 1:  # two that are asked for the same pair write the same
            with ThreadPoolExecutor(self._cores) as threads:
                list(threads.map(fill, parts))
        else:
            for part in parts:
                fill(part)
        return found

    def _tables(self, layout: Layout) -> tuple[Spans, Spans]:
        """The nanoseconds of a byte and those of any size from each cut to each, as far as they are known.

        What is not known is 0, of which no memory is taken before it is written; what is known to be 0 is NOTHING.
        """
        known = self._times.get(layout) or (np.zeros((0, 0)), np.zeros((0, 0)))
        count = len(known[0])
        if count < len(self._cuts):
            moving, always = (np.zeros((2 * len(self._cuts), 2 * len(self._cuts))) for _ in known)
            moving[:count, :count], always[:count, :count] = known
            known = self._times[layout] = moving, always
        return known


def _arrange(layout: Layout) -> Rates:
    """The extents of a region, the bytes of an element and those of a cache line."""
    shape, itemsize = layout
    return np.asarray((*shape, *(1,) * (AXES - len(shape)), itemsize, LINE), dtype=np.float64)


def _shares(shape: tuple[int, ...], table: Boxes, order: Column) -> Shares:
    """Boxes in shares of a region's extents, in some order."""
    extents = np.ones(2 * AXES)
    extents[: len(shape)] = extents[AXES : AXES + len(shape)] = shape
    shares: Shares = table[order].astype(np.float64)
    shares[:, LOW:] /= extents
    return shares


def _label(use: Use) -> Boxes:
    table = use.shape.boxes.copy()
    table[:, 0] = use.processors
    return table


@kernel
def _lacking(table: Boxes, held: Boxes, memory_of: Column) -> Boxes:
    """The boxes that no other box of the same memory contains, neither held nor earlier in the table."""
    kept = np.empty_like(table)
    count = 0
    for row in range(len(table)):
        memory = memory_of[table[row, 0]]
        there = False
        for other in range(len(held)):
            there |= memory_of[held[other, 0]] == memory and boxes.contains(held, other, table, row)
        for other in range(count):
            there |= memory_of[kept[other, 0]] == memory and boxes.contains(kept, other, table, row)
        if not there:
            boxes.put(kept, count, table, row)
            count += 1
    return kept[:count].copy()


@kernel
def _fill(
    network: tuple[Wires, Folders, Ends],
    layout: Rates,
    cuts: Cuts,
    sources: Column,
    targets: Column,
    size: float,
    moving: Spans,
    always: Spans,
    found: Rates,
) -> None:
    """Write the nanoseconds from each of some cuts of a region to one of others, and keep what was not known.

    Args:
        network: the links, the processors, and the ends of routes between hosts.
        layout: see `_arrange`.
        cuts: all cuts.
        sources: the numbers of those that are made.
        targets: the numbers of those that are read.
        size: the bytes of the region.
        moving: by both cuts the nanoseconds of a byte of a region; 0 where they are not known.
        always: by both cuts the nanoseconds whatever its size is; the same.
        found: by pair the nanoseconds of this region.
    """
    wires, folders, ends = network
    starts = cuts[1]
    loads, copied = np.zeros(len(wires[2])), np.zeros(len(wires[4]))
    folding, begun = np.zeros(len(folders[0])), np.zeros(len(folders[0]))
    leaving, coming = np.zeros(len(copied)), np.zeros(len(copied))
    most = 1
    for row in range(len(sources)):
        most = max(most, starts[sources[row] + 1] - starts[sources[row]])
        most = max(most, starts[targets[row] + 1] - starts[targets[row]])
    overlaps = np.empty((most, most))
    copies = False  # whether any processor does, which alone asks for the runs of what is shared
    for memory in range(len(copied)):
        copies |= wires[4][memory] != ENGINE
    for row in range(len(sources)):
        source, target = sources[row], targets[row]
        # Another thread that finds the same may have written one and not the other yet.
        if moving[source, target] == 0.0 or always[source, target] == 0.0:
            loads[:], copied[:], folding[:], begun[:] = 0.0, 0.0, 0.0, 0.0
            if not copies and is_known(ends, cuts, source, target):
                added = loads, folding, begun, leaving, coming
                latency = add_by_host(wires, folders, ends, cuts, source, target, added)
            else:
                latency = _add_loads(
                    wires, folders, layout, cuts, source, target, overlaps, copies, loads, copied, folding, begun
                )
            each, once = _busiest(wires, loads, copied) + folding.max(), 1e9 * latency + begun.max()
            moving[source, target] = each if each > 0.0 else NOTHING
            always[source, target] = once if once > 0.0 else NOTHING
        found[row] = max(moving[source, target], 0.0) * size + max(always[source, target], 0.0)


@inner
def _add_loads(
    wires: Wires,
    folders: Folders,
    layout: Rates,
    cuts: Cuts,
    source_cut: int,
    target_cut: int,
    overlaps: Spans,
    copies: bool,  # noqa: FBT001  (compiled functions take positional arguments)
    loads: Rates,
    copied: Rates,
    folding: Rates,
    begun: Rates,
) -> float:
    """Add up the shares on each link, what each memory copies and what each processor folds; gives the latency."""
    boxes, edges, alike = cuts[0], cuts[1], cuts[2]
    made, mine = boxes[edges[source_cut] : edges[source_cut + 1]], alike[edges[source_cut] : edges[source_cut + 1]]
    read, theirs = boxes[edges[target_cut] : edges[target_cut + 1]], alike[edges[target_cut] : edges[target_cut + 1]]
    starts, links, latencies = wires[0], wires[1], wires[2]
    memory_of, launch, byte = folders
    longest, first = 0.0, 0
    overlaps[: len(made), : len(read)] = -1.0  # of boxes that are the same they are found once
    for target in range(len(read)):
        by = int(read[target, 0])
        to, whole, given = memory_of[by], overlap(read, target, read, target), 0.0
        # What ends before this target begins ends before all later ones, too.
        while first < len(made) and made[first, HIGH] <= read[target, LOW]:
            first += 1
        for source in range(first, len(made)):
            if made[source, LOW] >= read[target, HIGH]:
                break
            one, other = mine[source], theirs[target]
            if overlaps[one, other] < 0.0:
                overlaps[one, other] = overlap(made, one, read, other)
            shared = overlaps[one, other]
            given += shared
            at = memory_of[int(made[source, 0])]
            if shared == 0.0 or at == to:
                continue
            if copies:
                copied[at] += 2.0 * shared * max(1.0, layout[AXES + 1] / _run(made, source, read, target, layout))
            pair, latency = at * len(wires[4]) + to, 0.0
            for place in range(starts[pair], starts[pair + 1]):
                loads[links[place]] += shared
                latency += latencies[links[place]]
            longest = max(longest, latency)
        if given > whole * (1.0 + ROUNDING):
            folding[by] += (given + whole) * byte[by]
            begun[by] += launch[by]
    return longest


@inner
def _run(a: Shares, i: int, b: Shares, j: int, layout: Rates) -> float:
    """The bytes that lie together in what two boxes have in common: whole inner axes, and a part of the next one."""
    run = layout[AXES]
    for axis in range(AXES - 1, -1, -1):
        span = min(a[i, HIGH + axis], b[j, HIGH + axis]) - max(a[i, LOW + axis], b[j, LOW + axis])
        run *= span * layout[axis]
        if span < 1.0 - ROUNDING:
            break
    return run


@inner
def _busiest(wires: Wires, loads: Rates, copied: Rates) -> float:
    """The nanoseconds of the busiest link or, where processors copy, processor."""
    busiest = 0.0
    for link in range(len(loads)):
        if loads[link] > 0.0:
            busiest = max(busiest, 1e9 * loads[link] / wires[3][link])
    for memory in range(len(copied)):
        if wires[4][memory] != ENGINE:
            busiest = max(busiest, 1e9 * copied[memory] / wires[5][memory])
    return busiest
