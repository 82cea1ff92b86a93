"""Flows: how long it takes from the tasks that make parts of a region to the tasks that read parts of it, compiled.

Every element goes from each task that writes it, or adds to it, to each task that reads it, if these have not the same
memory: the movements that the rules of validity derive where each element is read by one memory. They take as long as
the busiest link needs (or the busiest processor, where processors copy), after the latency of the longest route, and
then as the busiest of those that add up what more than one task gave them.

    a matrix of 4 x 4 floats, written by rows on processors 0 and 1, read by columns there
    0 -> 1   16 bytes        1 -> 0   16 bytes
"""

# pyright: reportArgumentType=false, reportReturnType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.runtime.roofline import bandwidth
from maniple.runtime.traffic import ENGINE
from maniple.strategies.simulation import boxes
from maniple.strategies.simulation.boxes import AXES, HIGH, LOW, Boxes
from maniple.strategies.simulation.kernel import inner, kernel
from maniple.strategies.simulation.network import Column, Network, Rates, Wires
from maniple.strategies.simulation.region import READ
from maniple.strategies.simulation.use import NOWHERE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.runtime.machine import Machine
    from maniple.strategies.simulation.use import Use

__all__: list[str] = []

Spans = np.ndarray[tuple[int, int], np.dtype[np.float64]]
Folders = tuple[Column, Rates, Rates]
"""By processor: its memory, the nanoseconds of a launch, and of a byte that it reads or writes."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The parts of a region that tasks make, or read, under each of some choices.

    Args:
        boxes: labelled by processor, choice after choice.
        starts: by choice the first of its boxes; and how many there are.
    """

    boxes: Boxes
    starts: Column

    @classmethod
    def of(cls, tables: Sequence[Boxes]) -> Parts:
        """The parts under each choice."""
        return cls(np.concatenate(tables), np.cumsum([0, *map(len, tables)]))


@final
class Flows:
    """The flows of a machine.

    Args:
        machine: the machine.
    """

    def __init__(self, machine: Machine) -> None:
        self._wires = Network.of(machine).wires
        memory_of = np.asarray([processor.memory for processor in machine.processors], dtype=np.int64)
        launch = np.asarray([1e9 * processor.launch_s for processor in machine.processors])
        byte = np.asarray([1e9 / bandwidth(machine, processor) for processor in machine.processors])
        self._folders = memory_of, launch, byte

    def made_and_read(self, uses: Sequence[Use]) -> tuple[Boxes, list[Boxes]]:
        """What the uses of a region make of it, and what each that reads needs of others, as boxes by processor.

        Args:
            uses: in program order; what a memory wrote or read it holds.
        """
        made = [_labelled(use) for use in uses if use.shape.access != READ]
        held = self._lacking(np.concatenate([NOWHERE, *made]), NOWHERE)
        found, read = held, []
        for use in uses:
            if use.shape.access == READ:
                read.append(self._lacking(_labelled(use), held))
                held = np.concatenate([held, read[-1]])
        return found, read

    def times_ns(self, itemsize: int, sources: Parts, targets: Parts) -> Spans:
        """The nanoseconds from what is made to what is read, for each choice of the one and of the other.

        Args:
            itemsize: bytes of an element.
            sources: what is made.
            targets: what is read.
        """
        ends = sources.boxes, sources.starts, targets.boxes, targets.starts
        return _times(self._wires, self._folders, itemsize, *ends)

    def _lacking(self, table: Boxes, held: Boxes) -> Boxes:
        return _lacking(table, held, self._folders[0])


def _labelled(use: Use) -> Boxes:
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
def _times(
    wires: Wires,
    folders: Folders,
    itemsize: int,
    made: Boxes,
    made_starts: Column,
    read: Boxes,
    read_starts: Column,
) -> Spans:
    """See ``Flows.times_ns``."""
    result = np.zeros((len(made_starts) - 1, len(read_starts) - 1))
    loads = np.zeros(len(wires[2]), dtype=np.int64)
    copied = np.zeros(len(wires[4]), dtype=np.int64)
    folding = np.zeros(len(folders[0]))
    for one in range(len(made_starts) - 1):
        for other in range(len(read_starts) - 1):
            sources = made[made_starts[one] : made_starts[one + 1]]
            targets = read[read_starts[other] : read_starts[other + 1]]
            latency = _loaded(wires, folders, itemsize, sources, targets, loads, copied, folding)
            result[one, other] = _busiest(wires, itemsize, loads, copied) + 1e9 * latency + folding.max()
            loads[:] = 0
            copied[:] = 0
            folding[:] = 0.0
    return result


@inner
def _loaded(
    wires: Wires,
    folders: Folders,
    itemsize: int,
    sources: Boxes,
    targets: Boxes,
    loads: Column,
    copied: Column,
    folding: Rates,
) -> float:
    """Add up the elements on each link, what each memory copies and what each processor folds; gives the latency."""
    starts, links, latencies = wires[0], wires[1], wires[2]
    memory_of, launch, byte = folders
    longest = 0.0
    for target in range(len(targets)):
        to, whole = memory_of[targets[target, 0]], boxes.volume(targets, target)
        given = 0
        for source in range(len(sources)):
            shared = _shared(sources, source, targets, target)
            if shared == 0:
                continue
            given += shared
            at = memory_of[sources[source, 0]]
            if at == to:
                continue
            copied[at] += 2 * shared
            pair, latency = at * len(wires[4]) + to, 0.0
            for place in range(starts[pair], starts[pair + 1]):
                loads[links[place]] += shared
                latency += latencies[links[place]]
            longest = max(longest, latency)
        if given > whole:
            by = targets[target, 0]
            folding[by] += launch[by] + (given + whole) * itemsize * byte[by]
    return longest


@inner
def _shared(a: Boxes, i: int, b: Boxes, j: int) -> int:
    """The number of points that two boxes share."""
    product = 1
    for axis in range(AXES):
        span = min(a[i, HIGH + axis], b[j, HIGH + axis]) - max(a[i, LOW + axis], b[j, LOW + axis])
        if span <= 0:
            return 0
        product *= span
    return product


@inner
def _busiest(wires: Wires, itemsize: int, loads: Column, copied: Column) -> float:
    """The nanoseconds of the busiest link or, where processors copy, processor."""
    busiest = 0.0
    for link in range(len(loads)):
        busiest = max(busiest, 1e9 * loads[link] * itemsize / wires[3][link])
    for memory in range(len(copied)):
        if wires[4][memory] != ENGINE:
            busiest = max(busiest, 1e9 * copied[memory] * itemsize / wires[5][memory])
    return busiest
