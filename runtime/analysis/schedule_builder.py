"""The schedule builder: a schedule put together from launches and the fragments of their regions."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from maniple.runtime.schedule.order import order
from maniple.runtime.schedule.roofline import fold_ns, task_ns
from maniple.runtime.schedule.schedule import Instance, Piece, RowKind, Schedule, csr
from maniple.runtime.schedule.traffic import carriers, touched_bytes, traffic_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.regions.index_space import IndexSpace
    from maniple.regions.logical_region import LogicalRegion
    from maniple.runtime.analysis.dependence import Move, Node
    from maniple.runtime.analysis.fragment import Accesses, Fragment
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.launch import Launch
    from maniple.runtime.schedule.schedule import Column

    Block = np.ndarray[tuple[int, int], np.dtype[np.int64]]

__all__: list[str] = []


class _Table:
    """Columns that grow a block at a time, grouped by row.

    Args:
        width: how many columns there are.
        shifted: so many of them, the first ones, are instances, counted in a block from the first of its region.
    """

    def __init__(self, width: int, shifted: int) -> None:
        self.counts: list[int] = []
        self._width, self._shifted = width, shifted
        self._blocks: list[Block] = []
        self._shifts: list[int] = []

    def add(self, counts: Sequence[int], block: Block, shift: int = 0) -> None:
        """Add rows of so many items each, which are the rows of a block in turn."""
        self.counts += counts
        if len(block):
            self._blocks.append(block)
            self._shifts.append(shift)

    def arrays(self) -> tuple[Column, ...]:
        starts = np.zeros(len(self.counts) + 1, dtype=np.int64)
        np.cumsum(self.counts, out=starts[1:])
        if not self._blocks:
            return (starts, *(np.zeros(0, dtype=np.int64) for _ in range(self._width)))
        table = np.concatenate(self._blocks)
        table[:, : self._shifted] += np.repeat(self._shifts, [len(block) for block in self._blocks])[:, None]
        return (starts, *(np.ascontiguousarray(table[:, i]) for i in range(self._width)))


class _Layout(NamedTuple):
    """What one movement adds to a schedule, its instances counted from the first of its region.

    Args:
        accesses: instance, rectangle, whether it is written, slot.
        transfers: source, target, rectangle, feeds, after.
        duration: nanoseconds.
        holds: (lane, nanoseconds) for which it keeps others from the lane.
    """

    accesses: Block
    transfers: Block
    duration: int
    holds: tuple[tuple[int, int], ...]


class _Tasks(NamedTuple):
    """What the tasks of a launch add, likewise.

    Args:
        counts: how many accesses each task has.
        accesses: as those of a movement.
        durations: nanoseconds of each task.
    """

    counts: list[int]
    accesses: Block
    durations: list[int]


class ScheduleBuilder:
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
        self.access = _Table(4, 1)
        self.transfer = _Table(5, 2)
        self.pieces: dict[int, tuple[Piece, ...]] = {}
        self.folds: dict[int, str] = {}
        self.durations: list[int] = []
        self.holds: list[tuple[tuple[int, int], ...]] = []
        self.move_rows: list[list[int]] = [[] for _ in fragments]
        self.use_rows: list[list[int]] = [[] for _ in fragments]
        self._layouts: dict[tuple[int, int], _Layout] = {}
        self._tasks: dict[tuple[object, ...], _Tasks] = {}

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
        regions = [self.index[requirement.region.id] for requirement in launch.requirements]
        found: list[Accesses] = []
        for region in regions:
            use = len(self.use_rows[region])
            self.use_rows[region].append(-1)
            fragment = self.fragments[region]
            moves = self.move_rows[region]
            while len(moves) < len(fragment.moves) and fragment.serves[len(moves)] == use:
                moves.append(self._move(number, region, fragment.moves[len(moves)]))
            found.append(fragment.accesses[use])
        first = len(self.rows)
        for region in set(regions):
            uses = self.use_rows[region]
            count = regions.count(region)
            uses[len(uses) - count :] = [first] * count
        tasks = self._laid_out(launch, found)
        self.rows += [
            (int(RowKind.TASK), number, point, placed.processor, -1, 0) for point, placed in enumerate(launch.points)
        ]
        accesses = tasks.accesses
        if len(accesses):
            accesses = accesses.copy()
            accesses[:, 0] += np.asarray([self.offsets[region] for region in regions])[accesses[:, 3]]
        self.access.add(tasks.counts, accesses)
        self.transfer.add([0] * len(launch.points), NONE)
        self.durations += tasks.durations
        self.holds += [
            ((placed.processor, duration),) for placed, duration in zip(launch.points, tasks.durations, strict=True)
        ]

    def _laid_out(self, launch: Launch, found: Sequence[Accesses]) -> _Tasks:
        """Lay out the tasks of a launch, once for all launches that are alike.

        Accesses that are the same object come from one use of one fragment, of which everything is the same.
        """
        sizes = tuple([requirement.region.itemsize for requirement in launch.requirements])
        processors = tuple([point.processor for point in launch.points])
        key = (tuple(map(id, found)), sizes, processors, launch.flops, launch.kind)
        known = self._tasks.get(key)
        if known is None:
            slots = [dict(accesses) for accesses in found]
            counts: list[int] = []
            items: list[tuple[int, int, int, int]] = []
            for point in range(len(launch.points)):
                before = len(items)
                for slot, accesses in enumerate(slots):
                    access = accesses.get(point)
                    if access is not None:
                        items.append((access.instance, self._rect(access.rect), int(access.writes), slot))
                counts.append(len(items) - before)
            durations = [task_ns(launch, point, self.machine) for point in range(len(launch.points))]
            known = self._tasks[key] = _Tasks(counts, _block(items, 4), durations)
        return known

    def _move(self, launch: int, region: int, move: Move) -> int:
        row = len(self.rows)
        offset = self.offsets[region]
        itemsize = self.regions[region].itemsize
        self.rows.append((int(move.kind), launch, -1, move.processor, region, move.elements * itemsize))
        known = self._layouts.get((id(move), itemsize))
        if known is None:
            known = self._layouts[id(move), itemsize] = self._layout(region, move)
        self.access.add((len(known.accesses),), known.accesses, offset)
        self.transfer.add((len(known.transfers),), known.transfers, offset)
        self.durations.append(known.duration)
        self.holds.append(known.holds)
        if move.pieces:
            self.pieces[row] = tuple(
                Piece(p.memory, p.target + offset, p.rect, tuple(part + offset for part in p.parts), p.op)
                for p in move.pieces
            )
        if move.kind == RowKind.FOLD:
            self.folds[row] = move.op
        return row

    def _layout(self, region: int, move: Move) -> _Layout:
        itemsize = self.regions[region].itemsize
        accesses = [(a.instance, self._rect(a.rect), int(a.writes), a.slot) for a in move.accesses]
        transfers = [
            (push.source, push.target, self._rect(push.rect), push.feeds, push.after) for push in move.transfers
        ]
        if move.kind == RowKind.FOLD:
            touched = sum(access.rect.volume for access in move.accesses) * itemsize
            duration = fold_ns(touched, self.machine, self.machine.processor(move.processor))
            holds: tuple[tuple[int, int], ...] = ((move.processor, duration),)
        else:
            duration, holds = self._traffic_cost(region, move)
        return _Layout(_block(accesses, 4), _block(transfers, 5), duration, holds)

    def _traffic_cost(self, region: int, move: Move) -> tuple[int, tuple[tuple[int, int], ...]]:
        """Charge every link on the way of each push, and who copies and folds; links are numbered after processors."""
        memories = [memory for memory, _, _ in self.fragments[region].instances]
        itemsize, bounds = self.regions[region].itemsize, self.regions[region].bounds
        pushes = (
            (
                memories[push.source],
                memories[push.target],
                push.rect.volume * itemsize,
                touched_bytes(push.rect, bounds, itemsize),
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
        return duration, (*busy, *((base + link, span) for link, span in held))

    def _rect(self, rect: IndexSpace) -> int:
        return self.rects.setdefault(rect, len(self.rects))

    def _pairs(self, edges: Sequence[Sequence[tuple[Node, Node]]]) -> Block:
        """Translate the dependences of every region from its nodes to rows."""
        known: dict[int, Block] = {}
        for found in edges:
            if id(found) not in known:
                known[id(found)] = _block([(a.use, a.item, b.use, b.item) for a, b in found], 4)
        blocks = [known[id(found)] for found in edges]
        lengths = [len(block) for block in blocks]
        if not sum(lengths):
            return _block((), 2)
        table = np.concatenate(blocks)
        uses, moves = _flat(self.use_rows), _flat(self.move_rows)
        pairs = np.empty((len(table), 2), dtype=np.int64)
        for end in range(2):
            use, item = table[:, 2 * end], table[:, 2 * end + 1]
            moved = use < 0
            pairs[~moved, end] = uses.values[(use + np.repeat(uses.starts, lengths))[~moved]] + item[~moved]
            pairs[moved, end] = moves.values[(item + np.repeat(moves.starts, lengths))[moved]]
        translated: Block = pairs[pairs[:, 0] != pairs[:, 1]]
        return translated


class _Flat(NamedTuple):
    """Lists end to end, and where each begins."""

    starts: Column
    values: Column


def _flat(lists: Sequence[Sequence[int]]) -> _Flat:
    starts = np.zeros(len(lists), dtype=np.int64)
    np.cumsum([len(each) for each in lists[:-1]], out=starts[1:])
    return _Flat(starts, np.fromiter(itertools.chain.from_iterable(lists), dtype=np.int64))


def _block(items: Sequence[tuple[int, ...]], width: int) -> Block:
    return np.asarray(items, dtype=np.int64).reshape(len(items), width)


NONE = _block((), 5)
