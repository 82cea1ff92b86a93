"""The schedule builder: a schedule put together from launches and the fragments of their regions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from maniple.regions.columns.adjacency import csr, gathered
from maniple.runtime.analysis import fragment as columns
from maniple.runtime.analysis.arrangement import arrange
from maniple.runtime.analysis.fragment_kernels import count_items, place_items
from maniple.runtime.analysis.fragment_part import has_to_do, listed, members_of, part_of
from maniple.runtime.analysis.move_table import tabulate
from maniple.runtime.schedule.instance import Instances
from maniple.runtime.schedule.launch_columns import processors_of
from maniple.runtime.schedule.movement_plan import DIRECT, NAMES
from maniple.runtime.schedule.network import Network
from maniple.runtime.schedule.order import order
from maniple.runtime.schedule.roofline import launches_ns
from maniple.runtime.schedule.schedule import Pieces, RowKind, Schedule
from maniple.runtime.schedule.space import JoinedSpaces
from maniple.runtime.schedule.traffic import price
from maniple.runtime.schedule.turns.rotation import touches

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from maniple.regions.logical_region import LogicalRegion
    from maniple.runtime.analysis.fragment import Fragment, Table
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.launch import Launch
    from maniple.runtime.schedule.schedule import Column
    from maniple.runtime.schedule.traffic import Prices
    from maniple.runtime.schedule.turns.ring import Ring

__all__: list[str] = []


@dataclass(slots=True, eq=False)
class _Placed:
    """A fragment whose rows have numbers.

    Args:
        fragment: of one region.
        region: its number in the schedule.
        offset: the number of its first instance.
        spaces: the number of its first space.
        tasks: the numbers of those of its tasks that are listed; none: all.
        rows: of all its tasks, and then of its movements.
        moves: the rows of its movements.
    """

    fragment: Fragment
    region: int
    offset: int
    spaces: int
    tasks: Column | None = None
    rows: Column = field(init=False)
    moves: Column = field(init=False)


class ScheduleBuilder:
    """Lays out the rows of launches and fragments: for each launch the movements it needs, then its tasks.

    Args:
        machine: the machine.
        launches: the program of one step, in order.
        regions: the regions that it uses.
        fragments: one for each region, its uses in the order of the launches' requirements.
        rings: the regions that take turns with storage from run to run.
        known: the memories of a rank, whose part of the schedule is laid out, where fragments list blocks; none: all.
        lasting: ids of the regions whose valid instances outlive a run.
    """

    def __init__(
        self,
        machine: Machine,
        launches: Sequence[Launch],
        regions: Sequence[LogicalRegion],
        fragments: Sequence[Fragment],
        rings: tuple[Ring, ...] = (),
        known: Collection[int] | None = None,
        lasting: Collection[int] = (),
    ) -> None:
        self.machine, self.launches, self.regions, self._rings = machine, launches, regions, rings
        self._known = np.full(len(machine.memories), known is None)
        self._known[list(known or ())] = True
        self._sizes = [region.itemsize for region in regions]
        # A fragment that several regions share has its spaces once.
        self.network, self._analysed = Network.of(machine), tuple(fragments)
        self._prices: dict[tuple[int, int], Prices] = {}
        outlives = [region.id in lasting for region in regions]
        self._listed = listed(machine, known, [*zip(fragments, self._sizes, outlives, strict=True)], turns=bool(rings))
        fragments, chosen = self._arranged()
        different = {id(fragment): fragment for fragment in fragments}
        self._spaces = JoinedSpaces([fragment.spaces for fragment in different.values()])
        parts = {number: part for part, number in enumerate(different)}
        self._placed: list[_Placed] = []
        count = 0
        for number, fragment in enumerate(fragments):
            spaces = self._spaces.starts[parts[id(fragment)]]
            self._placed.append(_Placed(fragment, number, count, spaces, chosen[number]))
            count += len(fragment.instances)
        self._moving = [placed for placed in self._placed if len(placed.fragment.serves)]
        """Those that move something: of many regions of a step each task uses what the one before it left."""
        points = {id(launch.points): launch.points for launch in launches}
        where = {key: processors_of(found) for key, found in points.items()}
        self._processors = [where[id(launch.points)] for launch in launches]
        self._starts = self._number_rows()

    def _arranged(self) -> tuple[list[Fragment], list[Column | None]]:
        """The fragments with their collectives by the plans that take least, one for all regions that share it.

        Of a part it is what the listed memories have to do with, and with each the numbers of the tasks that are left.
        """
        places, whole = (self.network.wires[7], self.network.wires[9]), bool(self._listed.all())
        found: dict[tuple[int, int], tuple[Fragment, Column | None]] = {}
        keys = [(id(fragment), self._sizes[number]) for number, fragment in enumerate(self._analysed)]
        for number, key in enumerate(keys):
            if key not in found:
                fragment = self._analysed[number]
                if len(fragment.serves):
                    prices = self.prices(number)
                    fragment = arrange(fragment, prices.plans, prices.pieces, places, self._known)
                found[key] = (fragment, None) if whole else part_of(fragment, self._listed)
        return [found[key][0] for key in keys], [found[key][1] for key in keys]

    def compose(self) -> Schedule:
        """Lay out every row, translate the fragments' dependences to rows, and order them."""
        starts, count = self._starts, self._starts[-1]
        rows = np.full((6, count), -1, dtype=np.int64)
        rows[0], rows[5] = RowKind.TASK, 0
        for number, processors in enumerate(self._processors):
            first, last = starts[number], starts[number + 1]
            rows[1, first:last] = number
            rows[2, last - len(processors) : last] = np.arange(len(processors))
            rows[3, last - len(processors) : last] = processors
        for placed in self._moving:
            fragment, at = placed.fragment, placed.moves
            rows[0, at], rows[3, at], rows[4, at] = fragment.kinds, fragment.processors, placed.region
            rows[5, at] = fragment.elements * self._sizes[placed.region]
        pairs = self._pairs([placed.fragment.edges for placed in self._placed])
        carried = self._pairs([placed.fragment.carried for placed in self._placed])
        # Turns say who goes first where several could; nobody waits for them: each processor runs its rows in order.
        position, _ = self.order(gathered(count, np.concatenate((pairs, self._turns(rows[3])))))
        access, transfer = self._accesses(count), self._transfers(count)
        moves = [placed.moves for placed in self._placed]
        if not self._listed.all():
            taken = has_to_do(self.machine, self._listed, rows[3], access[0], transfer[0])
            pairs, carried = (each[taken[each[:, 0]] & taken[each[:, 1]]] for each in (pairs, carried))
        schedule = Schedule(
            machine=self.machine,
            launches=tuple(self.launches),
            regions=tuple(self.regions),
            instances=self._instances(),
            kind=rows[0].copy(),
            launch=rows[1].copy(),
            point=rows[2].copy(),
            processor=rows[3].copy(),
            region=rows[4].copy(),
            bytes=rows[5].copy(),
            order=position,
            successors=csr(count, pairs),
            carried=csr(count, carried),
            rects=self._spaces,
            access=access,
            transfer=transfer,
            pieces=self._pieces(count),
            folds=self._folds(),
            plans=self._plans(),
            rings=self._rings,
            elsewhere=self._elsewhere(),
            members=None if self._listed.all() else members_of(count, zip(moves, self._analysed, strict=True)),
            listed=None if self._listed.all() else frozenset(np.flatnonzero(self._listed).tolist()),
        )
        if not self._rings:
            return schedule
        turned = schedule.rotation.carried(touches(schedule, tuple(schedule.rotation.places)))
        pairs = np.asarray(turned, np.int64).reshape(len(turned), 2)
        return replace(schedule, carried=csr(count, np.concatenate((carried, pairs))))

    def _turns(self, processors: Column) -> Table:
        """The rows of launches in turn: (row, the next one of its processor)."""
        found = [
            np.arange(self._starts[number + 1] - len(self._processors[number]), self._starts[number + 1])
            for number, launch in enumerate(self.launches)
            if launch.in_turn
        ]
        rows = np.concatenate([np.empty(0, dtype=np.int64), *found])
        rows = rows[np.argsort(processors[rows], kind="stable")]
        pairs = np.stack((rows[:-1], rows[1:]), axis=1)
        turns: Table = pairs[processors[pairs[:, 0]] == processors[pairs[:, 1]]]
        return turns

    def _number_rows(self) -> list[int]:
        """Give all rows their numbers; returns where those of each launch begin, and how many there are."""
        index, fragments = {region.id: number for number, region in enumerate(self.regions)}, self._analysed
        uses = np.cumsum([0, *[fragment.uses for fragment in fragments]])
        # Movements ascend by the use that they serve.
        serves = _joined([fragment.serves + uses[number] for number, fragment in enumerate(fragments)])
        counts, following = np.bincount(serves, minlength=uses[-1]).tolist(), uses[:-1].tolist()
        first, moved, slots = np.zeros((3, uses[-1]), dtype=np.int64)
        starts, count = [0], 0
        for number, launch in enumerate(self.launches):
            found = []
            for slot, requirement in enumerate(launch.requirements):
                region = index[requirement.region.id]
                use = following[region]
                following[region] += 1
                moved[use], slots[use] = count, slot
                count += counts[use]
                found.append(use)
            first[found] = count
            count += len(self._processors[number])
            starts.append(count)
        task_uses = _joined([f.tasks[:, columns.USE] + uses[number] for number, f in enumerate(fragments)])
        tasks = first[task_uses] + _joined([fragment.tasks[:, columns.POINT] for fragment in fragments])
        moves = moved[serves] + np.arange(len(serves)) - np.searchsorted(serves, serves)
        told: list[Column] = []
        at, behind = 0, 0
        for placed, fragment in zip(self._placed, fragments, strict=True):
            own, served = len(fragment.tasks), len(fragment.serves)
            told.append(at + (np.arange(own) if placed.tasks is None else placed.tasks))
            placed.moves = moves[behind : behind + served]
            placed.rows = tasks[at : at + own]
            at, behind = at + own, behind + served
        for placed in self._moving:
            placed.rows = np.concatenate((placed.rows, placed.moves))
        chosen = _joined(told)
        self._tasks, self._slots = tasks[chosen], slots[task_uses[chosen]]
        return starts

    def _instances(self) -> Instances:
        """The instances of all regions, one region after the other."""
        tables = [placed.fragment.instances for placed in self._placed]
        table = np.concatenate([np.empty((0, 4), dtype=np.int64), *tables])
        counts = [len(found) for found in tables]
        regions = np.repeat(np.arange(len(tables)), counts)
        spaces = table[:, 2] + np.repeat(np.asarray([placed.spaces for placed in self._placed], dtype=np.int64), counts)
        return Instances(regions, table[:, 0].copy(), table[:, 1].copy(), spaces, table[:, 3].copy(), self._spaces)

    def _elsewhere(self) -> Column | None:
        """The bytes that instances take in each memory which are not listed; none where all were asked for."""
        if self._known.all():
            return None
        found = np.zeros(len(self.machine.memories), dtype=np.int64)
        alike = Counter((id(fragment), self._sizes[number]) for number, fragment in enumerate(self._analysed))
        for placed, analysed in zip(self._placed, self._analysed, strict=True):
            size = self._sizes[placed.region]
            times = alike.pop((id(analysed), size), 0)  # all regions that share the fragment at once
            if times and analysed.blocks is not None:
                elements = analysed.blocks.elements.copy()
                if len(analysed.serves):
                    elements += self.prices(placed.region).staged
                memories, listed = placed.fragment.instances[:, 0], placed.fragment.instances[:, 3]
                np.subtract.at(elements, memories, listed)
                found += elements * (size * times)
        return found

    def _accesses(self, count: int) -> tuple[Column, ...]:
        """What every row uses, those of a task by requirement."""
        starts, rows, nodes = np.zeros(count + 1, dtype=np.int64), self._tasks, self._nodes()
        count_items(rows, nodes, starts)
        for placed in self._moving:
            count_items(placed.moves, placed.fragment.accesses, starts)
        starts = np.cumsum(starts)
        cursor, found = starts[:-1].copy(), np.empty((4, starts[-1]), dtype=np.int64)
        place_items(rows, nodes, np.asarray((1, 2, 3, 4)), np.zeros(4, dtype=np.int64), cursor, found)
        wanted = np.asarray((columns.INSTANCE, columns.SPACE, columns.WRITES, columns.SLOT))
        for placed in self._moving:
            added = np.asarray((placed.offset, placed.spaces, 0, 0), dtype=np.int64)
            place_items(placed.moves, placed.fragment.accesses, wanted, added, cursor, found)
        return (starts, *found)

    def _nodes(self) -> Table:
        """What tasks use, by requirement: (number of the use, instance, space, whether it is written, slot)."""
        tables = [placed.fragment.tasks for placed in self._placed]
        tasks, counts = np.concatenate([np.empty((0, 5), dtype=np.int64), *tables]), [len(each) for each in tables]
        found = np.empty((len(tasks), 5), dtype=np.int64)
        found[:, 0], found[:, 4] = np.arange(len(tasks)), self._slots
        for column, own, added in (
            (1, columns.TASK_INSTANCE, [placed.offset for placed in self._placed]),
            (2, columns.TASK_SPACE, [placed.spaces for placed in self._placed]),
        ):
            found[:, column] = tasks[:, own] + np.repeat(np.asarray(added, dtype=np.int64), counts)
        found[:, 3] = tasks[:, columns.TASK_WRITES]
        # By requirement alone: each goes behind what its row has already. Of short integers numpy counts.
        slots = self._slots.astype(np.min_scalar_type(self._slots.max(initial=0)))
        ordered: Table = found[slots.argsort(kind="stable")]
        return ordered

    def _transfers(self, count: int) -> tuple[Column, ...]:
        """What every row pushes."""
        starts = np.zeros(count + 1, dtype=np.int64)
        for placed in self._moving:
            count_items(placed.moves, placed.fragment.transfers, starts)
        starts = np.cumsum(starts)
        cursor, found = starts[:-1].copy(), np.full((6, starts[-1]), -1, dtype=np.int64)
        wanted = np.asarray(
            (columns.SOURCE, columns.TARGET, columns.SPACE, columns.FEEDS, columns.AFTER, columns.FOLLOWS)
        )
        for placed in self._moving:
            transfers = placed.fragment.transfers
            width = transfers.shape[1] - 1  # no more where all goes direct: nothing follows anything
            added = np.asarray((placed.offset, placed.offset, placed.spaces, 0, 0, 0), dtype=np.int64)
            place_items(placed.moves, transfers, wanted[:width], added, cursor, found)
        return (starts, *found)

    def _pieces(self, count: int) -> Pieces:
        """The folds inside collectives."""
        starts, ops = np.zeros(count + 1, dtype=np.int64), dict[int, str]()
        for placed in self._moving:
            count_items(placed.moves, placed.fragment.pieces, starts)
            for move, op in enumerate(placed.fragment.ops):
                if op:  # whether or not its folds are listed
                    ops[int(placed.moves[move])] = op
        starts = np.cumsum(starts)
        cursor, found = starts[:-1].copy(), np.empty((5, starts[-1]), dtype=np.int64)
        wanted = np.asarray((columns.MEMORY, columns.FOLDED, columns.SPACE, columns.FIRST, columns.LAST))
        parts, behind = [np.empty(0, dtype=np.int64)], 0
        for placed in self._moving:
            added = np.asarray((0, placed.offset, placed.spaces, behind, behind), dtype=np.int64)
            place_items(placed.moves, placed.fragment.pieces, wanted, added, cursor, found)
            parts.append(placed.fragment.parts + placed.offset)
            behind += len(placed.fragment.parts)
        return Pieces((starts, *found), np.concatenate(parts), ops, self._spaces)

    def _folds(self) -> dict[int, str]:
        """The operator of each fold."""
        found: dict[int, str] = {}
        for placed in self._moving:
            folds = np.flatnonzero(placed.fragment.kinds == RowKind.FOLD)
            if len(folds):
                ops = [placed.fragment.ops[move] for move in folds.tolist()]
                found.update(zip(placed.moves[folds].tolist(), ops, strict=True))
        return found

    def _plans(self) -> dict[int, str]:
        """The movement plans of collectives that do not go direct."""
        found = {}
        for placed in self._moving:
            prices = self.prices(placed.region)
            for move in np.flatnonzero(prices.plans != DIRECT).tolist():
                name, pieces = NAMES[prices.plans[move]], int(prices.pieces[move])
                found[int(placed.moves[move])] = f"{name}, {pieces} pieces" if pieces > 1 else name
        return found

    def order(self, successors: tuple[Column, Column]) -> tuple[Column, Column]:
        """Give the position of each row, and its simulated start, by what it takes and holds and who waits for it."""
        count = self._starts[-1]
        durations, counts = np.zeros(count, dtype=np.int64), np.ones(count, dtype=np.int64)
        for placed in self._moving:
            prices = self.prices(placed.region)
            durations[placed.moves], counts[placed.moves] = prices.durations, np.diff(prices.starts)
        starts = np.zeros(count + 1, dtype=np.int64)
        np.cumsum(counts, out=starts[1:])
        held, devices = np.zeros((2, starts[-1]), dtype=np.int64), self.network.devices
        times = launches_ns(self.launches, self.network.rooflines)
        for number, processors in enumerate(self._processors):
            last = self._starts[number + 1]
            first = last - len(processors)
            durations[first:last] = times[number]
            held[:, starts[first:last]] = devices[processors], times[number]
        for placed in self._moving:
            prices = self.prices(placed.region)
            behind = np.repeat(starts[placed.moves] - prices.starts[:-1], np.diff(prices.starts))
            held[:, behind + np.arange(len(behind))] = prices.held[:, :2].T
        self.durations = durations
        return order(durations, (starts, held[0], held[1]), successors, self.network.lanes)

    def prices(self, number: int) -> Prices:
        """Give what the movements of a region cost, found once for all regions that share the fragment."""
        region, fragment = self.regions[number], self._analysed[number]
        key = (id(fragment), self._sizes[number])
        if key not in self._prices:
            moves, members = tabulate(fragment, region.bounds, region.itemsize, self.network.line)
            self._prices[key] = price(self.network, region.itemsize, moves, members)
        return self._prices[key]

    def _pairs(self, edges: Sequence[Table]) -> Table:
        """Translate the dependences of every region from its nodes to rows."""
        blocks = [placed.rows[found] for placed, found in zip(self._placed, edges, strict=True) if len(found)]
        pairs = np.concatenate(blocks) if blocks else np.empty((0, 2), dtype=np.int64)
        # Two points of one launch may use a region twice: a row does not wait for itself.
        translated: Table = pairs[pairs[:, 0] != pairs[:, 1]]
        return translated


def _joined(parts: Sequence[Column]) -> Column:
    """Columns, one after the other."""
    found: Column = np.concatenate([np.empty(0, dtype=np.int64), *parts])
    return found
