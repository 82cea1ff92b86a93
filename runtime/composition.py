"""Composition: a schedule put together from launches and the fragments of their regions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from maniple.runtime.order import order
from maniple.runtime.roofline import fold_ns, task_ns
from maniple.runtime.schedule import Instance, Piece, RowKind, Schedule, csr
from maniple.runtime.traffic import carriers, traffic_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.regions.index_space import IndexSpace
    from maniple.regions.logical_region import LogicalRegion
    from maniple.runtime.analysis import Move, Node
    from maniple.runtime.fragment import Fragment
    from maniple.runtime.launch import Launch
    from maniple.runtime.machine import Machine
    from maniple.runtime.schedule import Access, Column, Transfer

__all__: list[str] = []


class _Table:
    """Columns that grow a value at a time, grouped by row."""

    def __init__(self, width: int) -> None:
        self.counts: list[int] = []
        self.columns: list[list[int]] = [[] for _ in range(width)]

    def group(self, values: Sequence[tuple[int, ...]]) -> None:
        self.counts.append(len(values))
        for value in values:
            for column, item in zip(self.columns, value, strict=True):
                column.append(item)

    def arrays(self) -> tuple[Column, ...]:
        starts = np.zeros(len(self.counts) + 1, dtype=np.int64)
        np.cumsum(self.counts, out=starts[1:])
        return (starts, *(np.asarray(column, dtype=np.int64) for column in self.columns))


class Composer:
    """Lays out the rows of launches and fragments: for each launch the movements it needs, then its tasks.

    Args:
        machine: the machine.
        launches: the program of one step, in order.
        regions: the regions that it uses.
        fragments: one for each region, its uses in the order of the launches' requirements.
    """

    def __init__(
        self,
        machine: Machine,
        launches: Sequence[Launch],
        regions: Sequence[LogicalRegion],
        fragments: Sequence[Fragment],
    ) -> None:
        self.machine, self.launches, self.regions, self.fragments = machine, launches, regions, fragments
        self.carriers = carriers(machine)
        self.index = {region.id: number for number, region in enumerate(regions)}
        self.rects: dict[IndexSpace, int] = {}
        self.instances: list[Instance] = []
        self.offsets: list[int] = []
        for number, fragment in enumerate(fragments):
            self.offsets.append(len(self.instances))
            self.instances += [Instance(number, memory, kind, rect) for memory, kind, rect in fragment.instances]
        self.rows: list[tuple[int, int, int, int, int, int]] = []
        self.access = _Table(4)
        self.transfer = _Table(5)
        self.pieces: dict[int, tuple[Piece, ...]] = {}
        self.folds: dict[int, str] = {}
        self.durations: list[int] = []
        self.holds: list[tuple[tuple[int, int], ...]] = []
        self.move_rows: list[list[int]] = [[] for _ in fragments]
        self.use_rows: list[list[int]] = [[] for _ in fragments]

    def compose(self) -> Schedule:
        """Lay out every row, translate the fragments' dependences to rows, and order them."""
        for number, launch in enumerate(self.launches):
            self._launch(number, launch)
        count = len(self.rows)
        successors = csr(count, self._pairs([fragment.edges for fragment in self.fragments]))
        carried = csr(count, self._pairs([fragment.carried for fragment in self.fragments]))
        position, _ = order(self.durations, self.holds, successors)
        columns = np.asarray(self.rows, dtype=np.int64).reshape(count, 6)
        kind, launch_of, point, processor, region, size = (np.ascontiguousarray(columns[:, i]) for i in range(6))
        return Schedule(
            machine=self.machine,
            launches=tuple(self.launches),
            regions=tuple(self.regions),
            instances=tuple(self.instances),
            kind=kind,
            launch=launch_of,
            point=point,
            processor=processor,
            region=region,
            bytes=size,
            order=position,
            successors=successors,
            carried=carried,
            rects=tuple(self.rects),
            access=self.access.arrays(),
            transfer=self.transfer.arrays(),
            pieces=self.pieces,
            folds=self.folds,
        )

    def _launch(self, number: int, launch: Launch) -> None:
        slots: list[dict[int, Access]] = []
        for requirement in launch.requirements:
            region = self.index[requirement.region.id]
            use = len(self.use_rows[region])
            self.use_rows[region].append(-1)
            fragment = self.fragments[region]
            moves = self.move_rows[region]
            while len(moves) < len(fragment.moves) and fragment.moves[len(moves)].use == use:
                moves.append(self._move(number, region, fragment.moves[len(moves)]))
            slots.append(dict(fragment.accesses[use]))
        first = len(self.rows)
        seen: dict[int, int] = {}
        for requirement in launch.requirements:
            region = self.index[requirement.region.id]
            uses = self.use_rows[region]
            seen[region] = seen.get(region, 0) + 1
            total = sum(self.index[other.region.id] == region for other in launch.requirements)
            uses[len(uses) - total + seen[region] - 1] = first
        for point, placed in enumerate(launch.points):
            self.rows.append((int(RowKind.TASK), number, point, placed.processor, -1, 0))
            self._accesses(
                [
                    (self.offsets[self.index[requirement.region.id]], slot, slots[slot][point])
                    for slot, requirement in enumerate(launch.requirements)
                    if point in slots[slot]
                ]
            )
            self.transfer.group(())
            duration = task_ns(launch, point, self.machine)
            self.durations.append(duration)
            self.holds.append(((placed.processor, duration),))

    def _move(self, launch: int, region: int, move: Move) -> int:
        row = len(self.rows)
        offset = self.offsets[region]
        itemsize = self.regions[region].itemsize
        size = move.elements * itemsize
        self.rows.append((int(move.kind), launch, -1, move.processor, region, size))
        self._accesses([(offset, access.slot, access) for access in move.accesses])
        self.transfer.group([self._push(offset, push) for push in move.transfers])
        if move.pieces:
            self.pieces[row] = tuple(
                Piece(p.memory, p.target + offset, p.rect, tuple(part + offset for part in p.parts), p.op)
                for p in move.pieces
            )
        if move.kind == RowKind.FOLD:
            self.folds[row] = move.op
            touched = sum(access.rect.volume for access in move.accesses) * itemsize
            duration = fold_ns(touched, self.machine, self.machine.processor(move.processor))
            self.durations.append(duration)
            self.holds.append(((move.processor, duration),))
        else:
            self._traffic_cost(offset, move, itemsize)
        return row

    def _push(self, offset: int, push: Transfer) -> tuple[int, int, int, int, int]:
        return (push.source + offset, push.target + offset, self._rect(push.rect), push.feeds, push.after)

    def _traffic_cost(self, offset: int, move: Move, itemsize: int) -> None:
        """Charge every link on the way of each push, and who copies and folds; links are numbered after processors."""
        pushes = (
            (
                self.instances[push.source + offset].memory,
                self.instances[push.target + offset].memory,
                push.rect.volume * itemsize,
            )
            for push in move.transfers
        )
        folded: dict[int, int] = {}
        for piece in move.pieces:
            touched = (len(piece.parts) + 1) * piece.rect.volume * itemsize
            folded[piece.memory] = folded.get(piece.memory, 0) + touched
        phases = 2 if move.kind == RowKind.ALL_REDUCE else 1
        duration, busy, held = traffic_ns(self.machine.routes, pushes, phases, (self.carriers, folded))
        base = len(self.machine.processors)
        self.durations.append(duration)
        self.holds.append((*busy, *((base + link, span) for link, span in held)))

    def _accesses(self, accesses: Sequence[tuple[int, int, Access]]) -> None:
        self.access.group(
            [(a.instance + offset, self._rect(a.rect), int(a.writes), slot) for offset, slot, a in accesses]
        )

    def _rect(self, rect: IndexSpace) -> int:
        return self.rects.setdefault(rect, len(self.rects))

    def _pairs(self, edges: Sequence[Sequence[tuple[Node, Node]]]) -> list[tuple[int, int]]:
        """Translate the dependences of every region from its nodes to rows."""
        pairs = (
            (self._row(region, before), self._row(region, after))
            for region, found in enumerate(edges)
            for before, after in found
        )
        return [(before, after) for before, after in pairs if before != after]

    def _row(self, region: int, node: Node) -> int:
        if node.use < 0:
            return self.move_rows[region][node.item]
        return self.use_rows[region][node.use] + node.item
