"""Liveness: what lives in each memory, and when, while a simulated step runs.

A region that does not outlive the step takes room in a memory from the first row there that uses it to the end of the
last: values, contributions and tiles on their way together. What a copy engine sends lives until somebody is known to
have received it, which a row of the memory may never learn; where none waits for that, it lives until the step ends.

Weights and optimizer state live all the time. Where CPUs of one host share memory a copy is a step of the sender's own
lane, so nothing lives longer for it.

The most that lives at once is about what the runtime's plan of the memory comes to
(`runtime/schedule/memory/memory_plan.py`): a little more, for that knows each contribution by itself; or less where
several processors share the memory, for there two instances take turns only where one processor has waited for the
other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from maniple.regions.columns.history import BY, FROM, GROUP, GROUP_SIZE, TO
from maniple.regions.columns.validity import GRADIENT
from maniple.runtime.schedule.memory.memory_plan import ALIGNMENT
from maniple.strategies.simulation.region_cache import contributions
from maniple.strategies.timing.tables import DURATION, END

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.network import Column
    from maniple.strategies.simulation.plan_free_step import RegionKey
    from maniple.strategies.simulation.region_cache import RegionRows, Use
    from maniple.strategies.timing.ledger import Placed
    from maniple.strategies.timing.tables import Table

__all__: list[str] = []

KEPT = 50_000
"""So many live ranges are kept to be found again, and then forgotten together."""
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]
Times = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, eq=False)
class LiveRange:
    """What one region takes of the memories, wherever its rows are.

    Args:
        memories: those where it takes room, ascending.
        bytes: in each of them; instances begin at cache lines.
        nodes: of each memory the nodes there, one memory after the other: node t < tasks is task t, any other is
            movement t - tasks.
        starts: where those of each memory begin.
        late: whether it lives there until the end of the step.
    """

    memories: Column
    bytes: Column
    nodes: Column
    starts: Column
    late: Flags


class PlacedRegion(Protocol):
    """A region whose rows are in a ledger."""

    @property
    def rows(self) -> RegionRows:
        """What it adds to the step."""
        ...

    @property
    def moves(self) -> Placed:
        """Where its movements are; another object whenever anything of it is."""
        ...


class TimedRows(Protocol):
    """Rows with their times."""

    @property
    def rows(self) -> Table:
        """The table of rows; see `tables`."""
        ...

    @property
    def makespan(self) -> int:
        """When the last of them ends."""
        ...


class RegionUses(NamedTuple):
    """What must be known of a region to say when it lives.

    Args:
        lasting: whether it outlives the step.
        uses: every use of it, in program order.
        first: by use, the row of its launch's first point.
    """

    lasting: bool
    uses: Sequence[Use]
    first: Column


class Locality(NamedTuple):
    """What of a machine decides how long regions live.

    Args:
        memory_of: the memory of each processor.
        hosts: the host of each memory; where memories have devices, a host for each.
    """

    memory_of: Column
    hosts: Column

    @classmethod
    def of(cls, machine: Machine) -> Locality:
        """What a machine's processors and hosts say."""
        devices = any(processor.kind == "gpu" for processor in machine.processors)
        names = sorted({host.name for host in machine.hosts})
        hosts = [m.id if devices else names.index(machine.hosts[m.host].name) for m in machine.memories]
        return cls(np.asarray([processor.memory for processor in machine.processors]), np.asarray(hosts))


def live_range(rows: RegionRows, uses: Sequence[Use], locality: Locality) -> LiveRange:
    """Find what a region takes of each memory.

    Args:
        rows: what it adds to the step.
        uses: every use of it, in program order.
        locality: of the machine.
    """
    count, width = len(rows.tasks), len(locality.hosts)
    nodes, memories, engine = _places(rows, uses, locality)
    keys, at = np.unique(memories * (count + len(rows.moves)) + nodes, return_index=True)
    nodes, memories, engine = nodes[at], memories[at], engine[at]
    behind = _is_awaited(rows.edges, nodes, memories, keys, count + len(rows.moves))
    taken = np.flatnonzero(rows.memory_bytes)
    alone = sum(use.shape.access == GRADIENT for use in uses) == 1
    instances = 1 + np.bincount(locality.memory_of[contributions(uses, alone=alone)[0]], minlength=width)
    first = np.searchsorted(memories, np.arange(width + 1))
    late = np.bincount(memories[engine & ~behind], minlength=width) > 0
    taken = taken[first[taken + 1] > first[taken]]
    kept = np.isin(memories, taken)
    starts = np.searchsorted(memories[kept], taken)
    size = rows.memory_bytes[taken] + (ALIGNMENT - 1) * instances[taken]
    return LiveRange(taken, size, nodes[kept], starts, late[taken])


def _places(rows: RegionRows, uses: Sequence[Use], locality: Locality) -> tuple[Column, Column, Flags]:
    """Give every node with each memory that it uses, and whether a copy engine moves it."""
    count, moves = len(rows.tasks), rows.moves
    tasks = locality.memory_of[np.concatenate([use.processors for use in uses])]
    numbers = np.arange(len(moves))
    ends = [(numbers[moves[:, column] >= 0], moves[moves[:, column] >= 0, column]) for column in (FROM, TO)]
    folds = moves[:, BY] >= 0
    ends.append((numbers[folds], locality.memory_of[moves[folds, BY]]))
    grouped = numbers[moves[:, GROUP] >= 0]
    sizes = moves[grouped, GROUP_SIZE]
    member = np.arange(sizes.sum()) + np.repeat(moves[grouped, GROUP] - np.cumsum(sizes) + sizes, sizes)
    ends.append((np.repeat(grouped, sizes), rows.members[member, 0]))
    which, where = (np.concatenate(column) for column in zip(*ends, strict=True))
    hosts = locality.hosts[where]
    lowest, highest = np.full(len(moves), len(locality.hosts)), np.full(len(moves), -1)
    np.minimum.at(lowest, which, hosts)
    np.maximum.at(highest, which, hosts)
    engine = (lowest < highest)[which]
    nodes = np.concatenate([np.arange(count), count + which])
    return nodes, np.concatenate([tasks, where]), np.concatenate([np.zeros(count, dtype=np.bool_), engine])


def _is_awaited(edges: Table, nodes: Column, memories: Column, keys: Column, every: int) -> Flags:
    """Say of each node in each memory whether one there waits for it."""
    order = np.argsort(nodes, kind="stable")
    first = np.searchsorted(nodes[order], np.arange(every + 1))
    sizes = (first[1:] - first[:-1])[edges[:, 0]]
    source = order[np.arange(sizes.sum()) + np.repeat(first[edges[:, 0]] - np.cumsum(sizes) + sizes, sizes)]
    wanted = memories[source] * every + np.repeat(edges[:, 1], sizes)
    target = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    found = np.zeros(len(keys), dtype=np.bool_)
    found[source[keys[target] == wanted]] = True
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Liveness:
    """What lives in the memories of a machine while a step runs, as columns.

    Args:
        regions: the region of each resident.
        memories: its memory.
        begins: nanoseconds at which it begins to live.
        ends: nanoseconds at which it has ended.
        bytes: what it takes.
        lasting: whether it outlives the step.
    """

    regions: Column
    memories: Column
    begins: Times
    ends: Times
    bytes: Column
    lasting: Flags

    def steps(self, memory: int) -> tuple[Times, Column]:
        """Give the times at which what lives in a memory changes, ascending, and the bytes from each of them on."""
        mine = self.memories == memory
        begins, ends, size = self.begins[mine], self.ends[mine], self.bytes[mine]
        times, which = np.unique(np.concatenate([begins, ends]), return_inverse=True)
        change = np.zeros(len(times), dtype=np.int64)
        np.add.at(change, which, np.concatenate([size, -size]))
        return times, np.cumsum(change)

    def peaks(self, count: int) -> Column:
        """Give the most bytes that live in each of so many memories at once."""
        change = np.concatenate([self.bytes, -self.bytes])
        memories = np.concatenate([self.memories, self.memories])
        # What ends at an instant comes before what begins then; in the end nothing is left of any memory.
        order = np.lexsort((change, np.concatenate([self.begins, self.ends]), memories))
        found = np.zeros(count, dtype=np.int64)
        np.maximum.at(found, memories[order], np.cumsum(change[order]))
        return found

    def outlasting(self, count: int) -> Column:
        """Give the bytes of what outlives the step in each of so many memories."""
        found = np.zeros(count, dtype=np.int64)
        np.add.at(found, self.memories[self.lasting], self.bytes[self.lasting])
        return found

    def at_peak(self, memory: int) -> tuple[int, list[tuple[int, int]]]:
        """Give when most lives in a memory, first, and the (region, bytes) that do then."""
        times, held = self.steps(memory)
        when = int(times[np.argmax(held)]) if len(times) else 0
        alive = np.flatnonzero((self.memories == memory) & (self.begins <= when) & (when < self.ends))
        return when, list(zip(self.regions[alive].tolist(), self.bytes[alive].tolist(), strict=True))


class _Found(NamedTuple):
    """A region as it was found last, and the rows of the nodes of its live range."""

    moves: Placed
    lasting: bool
    live_range: LiveRange
    rows: Column


class LiveRanges:
    """The live ranges of the regions of a simulation, each found again only when its rows are others.

    Args:
        machine: the machine.
    """

    def __init__(self, machine: Machine) -> None:
        self._locality = Locality.of(machine)
        self._ranges: dict[RegionRows, LiveRange] = {}
        self._placed: dict[RegionKey, _Found] = {}

    def liveness(
        self, regions: Mapping[RegionKey, PlacedRegion], uses_of: Callable[[RegionKey], RegionUses], ledger: TimedRows
    ) -> Liveness:
        """Say what lives where, and when.

        Args:
            regions: of the step, as they are now.
            uses_of: of each of them; asked for again when its rows are others.
            ledger: a settled one with their rows.
        """
        found = [self._find(key, region, uses_of) for key, region in regions.items()]
        numbers = np.repeat(np.arange(len(found)), [len(each.live_range.memories) for each in found])
        rows = np.concatenate([each.rows for each in found])
        offsets = np.cumsum([0, *[len(each.rows) for each in found]])[numbers]
        ranges = [each.live_range for each in found]
        columns = [np.concatenate(column) for column in zip(*map(_columns, ranges), strict=True)]
        memories, taken, starts, late = columns
        ends = ledger.rows[rows, END]
        begins = np.minimum.reduceat(ends - ledger.rows[rows, DURATION], starts + offsets)
        ends = np.maximum.reduceat(ends, starts + offsets)
        lasting = np.asarray([each.lasting for each in found])[numbers]
        begins[lasting] = 0
        ends[late | lasting] = ledger.makespan
        return Liveness(numbers, memories, begins, ends, taken, lasting)

    def _find(self, key: RegionKey, region: PlacedRegion, uses_of: Callable[[RegionKey], RegionUses]) -> _Found:
        known = self._placed.get(key)
        if known is not None and known.moves is region.moves:
            return known
        lasting, uses, first = uses_of(key)
        if region.rows not in self._ranges:
            if len(self._ranges) > KEPT:
                self._ranges.clear()
            self._ranges[region.rows] = live_range(region.rows, uses, self._locality)
        made = self._ranges[region.rows]
        tasks = region.rows.tasks
        every = [first[tasks[:, 0]] + tasks[:, 1], region.moves.first + np.arange(len(region.rows.moves))]
        each = self._placed[key] = _Found(region.moves, lasting, made, np.concatenate(every)[made.nodes])
        return each


def _columns(found: LiveRange) -> tuple[np.ndarray[tuple[int], np.dtype[np.generic]], ...]:
    return found.memories, found.bytes, found.starts, found.late
