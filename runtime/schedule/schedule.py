"""The Schedule: what will run, as columns, for the executor and the simulator alike."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from maniple.regions.columns.adjacency import csr as csr
from maniple.regions.columns.storage import ADDS
from maniple.regions.index_space import union
from maniple.runtime.schedule.instance import Instance as Instance
from maniple.runtime.schedule.instance import InstanceKind as InstanceKind
from maniple.runtime.schedule.turns.rotation import Rotation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maniple.regions.index_space import IndexSpace
    from maniple.regions.logical_region import LogicalRegion
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.instance import Instances
    from maniple.runtime.schedule.launch import Launch
    from maniple.runtime.schedule.turns.ring import Ring

    Column = np.ndarray[tuple[int], np.dtype[np.int64]]
    Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]

__all__: list[str] = []


class RowKind(IntEnum):
    """What a row of the schedule does. All kinds after FOLD move tiles between memories."""

    TASK = 0
    FOLD = 1
    COPY = 2
    ALL_REDUCE = 3
    REDUCE_SCATTER = 4
    ALL_GATHER = 5
    BROADCAST = 6


@dataclass(frozen=True, slots=True)
class Access:
    """One use of one instance by a row.

    Args:
        instance: index in `Schedule.instances`.
        rect: the elements used.
        writes: whether they are written.
        slot: for a task the number of its requirement; for a fold 0 is the target and 1.. the parts in fold order.
        adds: whether a task adds to what is there, and does not write over it.
    """

    instance: int
    rect: IndexSpace
    writes: bool
    slot: int
    adds: bool = False


@dataclass(frozen=True, slots=True)
class Transfer:
    """One push: a rectangle that leaves one memory for an instance in another.

    Args:
        source: instance read, in the sending memory.
        target: instance written, in the receiving memory.
        rect: the elements moved.
        feeds: index of the piece, in the same row, whose fold waits for it; -1 when it lands in its final place.
        after: index of the piece whose fold it sends on; -1 when the source is ready as the row begins.
        follows: index of the transfer, in the same row and before it, whose tile it sends on; -1 for none.
    """

    source: int
    target: int
    rect: IndexSpace
    feeds: int = -1
    after: int = -1
    follows: int = -1


@dataclass(frozen=True, slots=True)
class Piece:
    """A fold inside a collective: `target` becomes the fold of `parts`, in this order.

    Args:
        memory: where it is folded.
        target: instance written.
        rect: the elements folded.
        parts: instances read, one per contributing memory in fixed order; transfers bring the far ones.
        op: symbol of the reduction operator.
    """

    memory: int
    target: int
    rect: IndexSpace
    parts: tuple[int, ...]
    op: str


class Pieces(Mapping[int, tuple[Piece, ...]]):
    """The folds inside collectives by row, as columns; those of a row are made when somebody asks for them.

    Args:
        columns: starts (by row), memory, target, rect, and where the parts of each begin and end.
        parts: the instances that they fold.
        ops: the symbol of the reduction operator of each row that has any.
        rects: the rectangles that they refer to.
    """

    def __init__(
        self, columns: tuple[Column, ...], parts: Column, ops: Mapping[int, str], rects: Sequence[IndexSpace]
    ) -> None:
        self.columns, self._parts, self._ops, self._rects = columns, parts, ops, rects
        self._rows: list[int] = np.flatnonzero(np.diff(columns[0])).tolist()
        self._made: dict[int, tuple[Piece, ...]] = {}

    def __getitem__(self, row: int) -> tuple[Piece, ...]:
        if row not in self._made:
            starts, *columns = self.columns
            if not 0 <= row < len(starts) - 1 or starts[row] == starts[row + 1]:
                raise KeyError(row)
            of_row = zip(*(column[starts[row] : starts[row + 1]].tolist() for column in columns), strict=True)
            self._made[row] = tuple(
                Piece(memory, target, self._rects[rect], tuple(self._parts[first:last].tolist()), self._ops[row])
                for memory, target, rect, first, last in of_row
            )
        return self._made[row]

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def op(self, row: int) -> str:
        """Give the operator of a row that folds; "" of any other, whether or not its folds are listed."""
        return self._ops.get(row, "")

    def uses(self) -> tuple[Column, Column]:
        """Give what they use: the number of a piece, and an instance, of each the target first and then its parts."""
        _, _, target, _, first, last = self.columns
        counts = 1 + last - first
        piece = np.repeat(np.arange(len(target)), counts)
        part = np.arange(len(piece)) - np.repeat(np.cumsum(counts) - counts, counts) - 1
        found = target[piece]
        found[part >= 0] = self._parts[(first[piece] + part)[part >= 0]]
        return piece, found

    def at(self, known: Flags) -> tuple[Pieces, Column]:
        """Give those in some memories; and the new number of each piece in its row, -1 of what is elsewhere."""
        columns, numbers = _kept(self.columns, known[self.columns[1]])
        return Pieces(columns, self._parts, self._ops, self._rects), numbers


def _kept(columns: tuple[Column, ...], kept: Flags) -> tuple[tuple[Column, ...], Column]:
    """Give columns behind starts by row with some items alone; and the new number of each in its row, or -1."""
    before = np.concatenate(([0], np.cumsum(kept)))
    starts = before[columns[0]]
    numbers = np.where(kept, before[:-1] - np.repeat(starts[:-1], np.diff(columns[0])), -1)
    return (starts, *(column[kept] for column in columns[1:])), numbers


def _between(taken: Flags, starts: Column, rows: Column) -> tuple[Column, Column]:
    """Give columns behind starts by row with the rows alone that are taken, of those that are."""
    stays = np.repeat(taken, np.diff(starts)) & taken[rows]
    return np.concatenate(([0], np.cumsum(stays)))[starts], rows[stays]


def _renumber(numbers: Column, first: Column, items: Column) -> Column:
    """Give new numbers of items of rows, of which each row has its first one somewhere; -1 stays."""
    found = np.full(len(items), -1, dtype=np.int64)
    some = items >= 0
    found[some] = numbers[(first + items)[some]]
    return found


@dataclass(frozen=True)
class Schedule:
    """The rows of one program or one training step, in program order, with the order in which they run.

    Row i is described by element i of every column. Rows run on a processor (tasks, folds) or on the copy engines
    between memories (all others); each of these runs its rows by ascending `order`.

    Args:
        machine: the machine that it is lowered for.
        launches: the launches that rows refer to.
        regions: the regions that instances refer to.
        instances: every instance that the rows use.
        kind: RowKind of each row.
        launch: the launch that a task belongs to, or for which a movement brings data.
        point: the point of the launch; -1 for movements.
        processor: the processor that runs a task or fold; -1 for movements between memories.
        region: the region that a movement moves; -1 for tasks.
        bytes: payload that leaves a memory.
        order: position in one order of all rows that every dependence agrees with.
        successors: starts and rows (CSR) that wait for a row of the same step.
        carried: starts and rows (CSR) of the next step that wait for a row of this one; that a row waits for its own
            run of the step before goes without saying.
        rects: the rectangles that accesses and transfers refer to.
        access: starts (by row), instance, rect, writes (2: adds), slot: the columns behind `accesses`.
        transfer: starts (by row), source, target, rect, feeds, after, follows: the columns behind `transfers`.
        pieces: the folds inside the collectives that have any, by row.
        folds: symbol of the reduction operator of each FOLD row, by row.
        plans: the name of the movement plan of each collective that has another than direct, by row.
        rings: the regions that take turns with storage from run to run.
        elsewhere: of the part that some memories have in a schedule, the bytes that further instances take in each
            memory: those of others, which are not listed. None: this is the whole.
        members: of such a part, starts (by row) and memories that take part in each collective.
        listed: of such a part, the memories of which it is told what is done there; none: all.
    """

    machine: Machine
    launches: tuple[Launch, ...]
    regions: tuple[LogicalRegion, ...]
    instances: Instances
    kind: Column
    launch: Column
    point: Column
    processor: Column
    region: Column
    bytes: Column
    order: Column
    successors: tuple[Column, Column]
    carried: tuple[Column, Column]
    rects: Sequence[IndexSpace] = field(repr=False)
    access: tuple[Column, ...] = field(repr=False)
    transfer: tuple[Column, ...] = field(repr=False)
    pieces: Pieces = field(repr=False)
    folds: dict[int, str] = field(repr=False)
    plans: dict[int, str] = field(repr=False)
    rings: tuple[Ring, ...] = ()
    elsewhere: Column | None = None
    members: tuple[Column, Column] | None = None
    listed: frozenset[int] | None = None

    def __len__(self) -> int:
        """Count its rows."""
        return len(self.kind)

    @cached_property
    def total_bytes(self) -> int:
        """Payload bytes that leave a memory in one run of the schedule, over all memories."""
        return int(self.bytes.sum())

    @cached_property
    def rotation(self) -> Rotation:
        """The instances that take turns."""
        return Rotation(self)

    @cached_property
    def lags(self) -> tuple[int, ...]:
        """How many runs ago what each row works on began."""
        return tuple([self.launches[launch].lag for launch in self.launch.tolist()])

    def accesses(self, row: int) -> tuple[Access, ...]:
        """Give the instances that a row uses, in the order of its requirements or parts."""
        starts, instance, rect, writes, slot = self.access
        return tuple(
            Access(int(instance[i]), self.rects[rect[i]], bool(writes[i]), int(slot[i]), bool(writes[i] == ADDS))
            for i in range(starts[row], starts[row + 1])
        )

    def transfers(self, row: int) -> tuple[Transfer, ...]:
        """Give the pushes of a row between memories, in fixed rank order."""
        starts, source, target, rect, feeds, after, follows = self.transfer
        return tuple(
            Transfer(int(source[i]), int(target[i]), self.rects[rect[i]], int(feeds[i]), int(after[i]), int(follows[i]))
            for i in range(starts[row], starts[row + 1])
        )

    def edges(self) -> Iterator[tuple[int, int]]:
        """Give every dependence within the step as (row, row that waits for it)."""
        starts, rows = self.successors
        yield from zip(np.repeat(np.arange(len(self)), np.diff(starts)).tolist(), rows.tolist(), strict=True)

    def carries(self) -> Iterator[tuple[int, int]]:
        """Give every dependence on the step before as (row of that step, row of this one)."""
        starts, rows = self.carried
        yield from zip(np.repeat(np.arange(len(self)), np.diff(starts)).tolist(), rows.tolist(), strict=True)

    def memories(self, row: int) -> tuple[int, ...]:
        """Give the memories where a row runs: a processor's one, or every memory that takes part in a movement."""
        if self.processor[row] >= 0:
            return (self.machine.memory_of(int(self.processor[row])),)
        if self.members is not None and self.members[0][row] < self.members[0][row + 1]:
            return tuple(self.members[1][self.members[0][row] : self.members[0][row + 1]].tolist())
        (starts, source, target, *_), (first, used, *_) = self.transfer, self.access
        pushes, uses = slice(starts[row], starts[row + 1]), slice(first[row], first[row + 1])
        ends = np.concatenate((source[pushes], target[pushes], used[uses]))
        return tuple(np.unique(self.instances.memory[ends]).tolist())

    def takes_part(self, memories: Collection[int]) -> Flags:
        """Say of each row whether it runs in one of some memories."""
        known = self._known(memories)
        place = np.asarray([processor.memory for processor in self.machine.processors], dtype=np.int64)
        found: Flags = (self.processor >= 0) & known[place[self.processor]]
        for starts, *ends in (self.transfer[:3], self.access[:2]):
            rows = np.repeat(np.arange(len(self)), np.diff(starts))
            for end in ends:
                found[rows[known[self.instances.memory[end]]]] = True
        return found

    def at(self, memories: Collection[int]) -> Schedule:
        """Give what a host with some memories has to know: all rows, but of these only what is done there.

        A row uses what lies there, pushes what leaves or comes there, and folds what is folded there, numbered anew;
        and rows that are done there wait for each other:

            an all-reduce of     pushes                                    folds
            memories 0, 1, 2     0>1 1>2 2>0  0>2 1>0 2>1, and back        0, 1, 2
            at memory 0          0>1 2>0      0>2 1>0,     and back        0
        """
        if self.listed is not None and self.listed.issubset(memories):
            return self
        known = self._known(memories)
        held = known[self.instances.memory]
        access, _ = _kept(self.access, held[self.access[1]])
        starts, source, target, _, feeds, after, follows = self.transfer
        transfer, pushes = _kept(self.transfer, held[source] | held[target])
        pieces, folds = self.pieces.at(known)
        counts, stays = np.diff(starts), pushes >= 0
        of_piece, of_push = (np.repeat(first[:-1], counts) for first in (self.pieces.columns[0], starts))
        found = [(folds, of_piece, feeds), (folds, of_piece, after), (pushes, of_push, follows)]
        transfer = (*transfer[:4], *(_renumber(*column)[stays] for column in found))
        taken = self.takes_part(memories)
        successors, carried = (_between(taken, *pairs) for pairs in (self.successors, self.carried))
        return replace(self, access=access, transfer=transfer, pieces=pieces, successors=successors, carried=carried)

    def _known(self, memories: Collection[int]) -> Flags:
        known = np.zeros(len(self.machine.memories), dtype=np.bool_)
        known[list(memories)] = True
        return known

    def label(self, row: int) -> str:
        """Name a row, such as `conv2d.forward[1]@p1` or `all_gather conv2d.weight`."""
        launch = self.launches[int(self.launch[row])]
        if self.kind[row] == RowKind.TASK:
            return launch.label(int(self.point[row]))
        return f"{RowKind(int(self.kind[row])).name.lower()} {self.regions[self.region[row]].name}"

    def memory_bytes(self) -> dict[int, int]:
        """Sum the bytes of the instances of each memory: what one step needs, known before it runs."""
        sizes = np.asarray([region.itemsize for region in self.regions], dtype=np.int64)
        need = np.zeros(len(self.machine.memories), dtype=np.int64)
        np.add.at(need, self.instances.memory, self.instances.elements * sizes[self.instances.region])
        if self.elsewhere is not None:
            need += self.elsewhere
        for ring, rect in self.rotation.rects.items() if self.rings else ():
            need[ring.memory] += sum(rect.volume * region.itemsize for region in ring.regions)
        for number in self.rotation.places if self.rings else ():
            size = sizes[self.instances.region[number]]
            need[self.instances[number].memory] -= int(self.instances.elements[number] * size)
        return {memory.id: int(need[memory.id]) for memory in self.machine.memories}

    def text(self) -> str:
        """Print a line per row, in program order: number, order, name, place, bytes, uses and predecessors.

        Behind a collective's name is its movement plan, if not direct. Instances are numbered as they are mentioned.
        """
        before: list[list[str]] = [[] for _ in range(len(self))]
        for pairs, mark in ((self.edges(), ""), (self.carries(), "'")):
            for first, then in pairs:
                before[then].append(f"{first}{mark}")
        lines, names = [], dict[int, int]()
        for row in range(len(self)):
            place = ",".join(f"m{memory}" for memory in self.memories(row))
            uses = " ".join(
                f"{way}:{self.regions[self.instances[it].region].name}{space}#{names.setdefault(it, len(names))}"
                for it, way, space in self._told(row, names)
            )
            label = f"{self.label(row)} in {self.plans[row]}" if row in self.plans else self.label(row)
            lines.append(
                f"{row:4d} {self.order[row]:4d} {label:32s} {place:8s} {self.bytes[row]:10d} B  {uses}"
                f"  <- {' '.join(before[row]) or '-'}"
            )
        return "\n".join(lines)

    def _told(self, row: int, names: Mapping[int, int]) -> list[tuple[int, str, str]]:
        """Give what a row uses, how, and which elements: a movement's uses by place, of each the hull and how many."""
        found: dict[int, dict[str, list[IndexSpace]]] = {}
        uses = [(use.instance, "w" if use.writes else "r", use.rect) for use in self.accesses(row)]
        if self.processor[row] >= 0:
            return [(number, way, str(space)) for number, way, space in uses]
        for number, way, space in uses:
            found.setdefault(number, {}).setdefault(way, []).append(space)
        told = []
        for number, ways in found.items():
            wholes = [(way, union(spaces)) for way, spaces in sorted(ways.items())]
            parts = [(way, f"{whole.bounds}/{whole.volume}") for way, whole in wholes]
            place = int(self.instances.memory[number]), int(self.instances.kind[number])
            told.append((*place, names.get(number, len(names)), parts, number))
        return [(number, *part) for *_, parts, number in sorted(told) for part in parts]
