"""Binding: the lanes of one rank tied to its storage, to the bodies of its tasks, and to the memories of its peers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgpack
import numpy as np

from maniple.process.error import RunError
from maniple.regions.rectangle import Rect
from maniple.runtime.lanes import piecewise
from maniple.runtime.lanes.accumulation_binding import AccumulationBinding
from maniple.runtime.lanes.exchange_binding import Instances
from maniple.runtime.lanes.movement_binding import Place, bind_movement
from maniple.runtime.schedule.lane import StepKind
from maniple.runtime.schedule.memory.rank_instances import RankInstances
from maniple.runtime.schedule.schedule import RowKind
from maniple.runtime.storage.copy_kernels import Wire, bind_fold, bind_push, bits_of
from maniple.runtime.transports import record
from maniple.runtime.transports.message import MAX_INTEGER, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from contextlib import AbstractContextManager

    import torch

    from maniple.regions.index_space import IndexSpace
    from maniple.regions.logical_region import LogicalRegion
    from maniple.runtime.lanes.exchange_binding import ExchangeBinder, View
    from maniple.runtime.schedule.lane import Lanes, Step
    from maniple.runtime.schedule.memory.lifetime import Lifetimes
    from maniple.runtime.schedule.memory.memory_plan import MemoryPlan
    from maniple.runtime.schedule.schedule import Schedule
    from maniple.runtime.storage.memory import Memory
    from maniple.runtime.storage.push import Incoming, Movement, Outgoing
    from maniple.runtime.transports.shared_memory import Arena, SharedMemory

__all__: list[str] = []

_PLACE = np.dtype(np.int64).itemsize


class Storage:
    """The instances of a schedule in one rank's memories.

    Instances that other ranks of the host write into lie in memory that they can map, at places that a table tells:

        bytes 0..7   size of what follows
        then         msgpack: [[instance, place, start in the file, lo, hi, order of axes in memory], ...]

    What takes turns has several places, of which a run says by its turn which one is meant; all else has place 0.

    Args:
        schedule: what runs.
        memories: the rank's memories.
        lasting: ids of the regions whose valid instances outlive the schedule.
        near: the memories of this host.
    """

    def __init__(
        self, schedule: Schedule, memories: Mapping[int, Memory], lasting: Collection[int], near: Collection[int]
    ) -> None:
        self.schedule = schedule
        self.memories = memories
        self.table = 0
        self._version = -1
        self._instances = RankInstances(schedule, memories, lasting)
        self._lasting, self.temporary = self._instances.lasting, self._instances.temporary
        self._landing = sorted(self._targets(near))
        self._rotating = {
            number: place
            for number, place in (schedule.rotation.places if schedule.rings else {}).items()
            if place[0].memory in memories
        }
        self._turned: dict[int, tuple[tuple[Rect, torch.Tensor], ...]] = {}
        self._held: dict[int, tuple[Rect, torch.Tensor]] = {}
        self._told: object = None
        self._blocks: dict[int, torch.Tensor] = {}
        self.plans: dict[int, MemoryPlan] = {}

    def plan(self, lifetimes: Lifetimes) -> None:
        """Decide where the instances that live within a run will lie."""
        self.plans = self._instances.plan(lifetimes)

    def _targets(self, near: Collection[int]) -> set[int]:
        """Find the instances here that other ranks of this host write into."""
        _, sources, targets, *_ = self.schedule.transfer
        memory = self.schedule.instances.memory
        comes = np.isin(memory[targets], list(self.memories)) & np.isin(memory[sources], list(near))
        return set(targets[comes].tolist())

    def needs(self) -> dict[int, int]:
        """Sum the bytes that a run takes in each memory of this rank."""
        return self._instances.needs(self.plans)

    def shared_sizes(self) -> list[int]:
        """Give what `bind` will allocate in memory that is shared: what lasts, what others write into, the table."""
        sizes = [
            plan.size
            for memory, plan in self.plans.items()
            if self._shares(memory) and not self.memories[memory].has_block(plan.size, shared=True)
        ]
        for number, (region, rect) in self._kept():
            memory = self.memory_of(number)
            held = memory.lasting_instance(region)
            if memory.arena is not None and (held is None or not held[0].contains(rect)):
                sizes.append(rect.volume * region.itemsize)
        places = sum(len(self._rotating[n][0].regions) if n in self._rotating else 1 for n in self._landing)
        return [*sizes, 64 * (1 + places)]

    def _kept(self) -> Iterator[tuple[int, tuple[LogicalRegion, Rect]]]:
        """Give what lasts: an instance, and the region and rectangle of each place that it has."""
        told: set[int] = set()
        for number in self._lasting:
            instance = self.schedule.instances[number]
            if number not in self._rotating:
                yield number, (self.schedule.regions[instance.region], instance.rect)
                continue
            ring, _ = self._rotating[number]
            if id(ring) not in told:
                told.add(id(ring))
                yield from ((number, (region, self.schedule.rotation.rects[ring])) for region in ring.regions)

    def _shares(self, memory: int) -> bool:
        """Say whether other ranks write into instances of a memory that live within a run."""
        return not self.plans[memory].offsets.keys().isdisjoint(self._landing)

    def stale(self) -> bool:
        """Say whether something is to be allocated yet, or lies elsewhere than when it was bound."""
        return self._version != self._versions()

    def _versions(self) -> int:
        return sum(memory.version for memory in self.memories.values())

    def memory_of(self, instance: int) -> Memory:
        """Give the memory of an instance of this rank."""
        return self.memories[self.schedule.instances[instance].memory]

    def blank(self, instance: int, rect: IndexSpace) -> torch.Tensor:
        """View the bounds of an index space in an instance as it will lie, before there is storage for it."""
        described, memory = self.schedule.instances[instance], self.memory_of(instance)
        region, covered = self.schedule.regions[described.region], described.rect
        if instance in self._rotating:
            covered = self.schedule.rotation.rects[self._rotating[instance][0]]
        elif instance in self._lasting and (held := memory.lasting_instance(region)) is not None:
            covered = held[0].hull(covered)
        return memory.blank(region, covered)[rect.slices(covered.lo)]

    def bind(self) -> None:
        """Allocate what is missing, and find what lasts."""
        instances, regions = self.schedule.instances, self.schedule.regions
        self.keep()
        for number, plan in self.plans.items():
            if plan.size:
                self._place(self.memories[number], plan)
        for number in self._lasting:  # once all have grown
            memory = self.memory_of(number)
            if number in self._rotating:
                ring, _ = self._rotating[number]
                rect = self.schedule.rotation.rects[ring]
                self._turned[number] = tuple([memory.keep(region, rect) for region in ring.regions])
            else:
                self._held[number] = memory.keep(regions[instances[number].region], instances[number].rect)
        self._version = self._versions()
        arenas = {id(arena): arena for number in self._landing if (arena := self.memory_of(number).arena) is not None}
        for arena in arenas.values():  # at most one: that of the host's memory
            self._tell(arena)

    def keep(self) -> None:
        """Allocate what lasts, whole, or have it grow; what is written before it is whole is copied when it grows."""
        for number, (region, rect) in self._kept():
            self.memory_of(number).keep(region, rect)

    def _place(self, memory: Memory, plan: MemoryPlan) -> None:
        """Give every instance its place in the block of a memory."""
        block = memory.block(plan.size, shared=self._shares(memory.id))
        if self._blocks.get(memory.id) is block:
            return
        self._blocks[memory.id] = block
        for number, offset in plan.offsets.items():
            instance = self.schedule.instances[number]
            region = self.schedule.regions[instance.region]
            self._held[number] = (instance.rect, memory.place(block, offset, region, instance.rect))

    def _tell(self, arena: Arena) -> None:
        """Write the table of places anew; the one before is let go of only then, so that theirs differ."""
        places = []
        for number in self._landing:
            order = self.memory_of(number).layout(self.schedule.regions[self.schedule.instances[number].region])
            found = self._turned[number] if number in self._turned else (self._held[number],)
            for place, (covered, storage) in enumerate(found):
                places.append((number, place, arena.start_of(storage.data_ptr()), covered.lo, covered.hi, order))
        packed = cast("bytes", msgpack.packb(places))
        block = arena.allocate(_PLACE + len(packed))
        block[:_PLACE] = np.frombuffer(len(packed).to_bytes(_PLACE, "little"), np.uint8)
        block[_PLACE:] = np.frombuffer(packed, np.uint8)
        self.table = arena.start_of(int(block.ctypes.data))
        self._told = block

    def view(self, instance: int, rect: IndexSpace, turn: int = 0) -> torch.Tensor:
        """View the bounds of an index space in an instance.

        Args:
            instance: the instance.
            rect: the index space.
            turn: the number of the run, where the instance takes turns.
        """
        if instance in self._turned:
            ring, age = self._rotating[instance]
            covered, storage = self._turned[instance][ring.place(age, turn)]
        else:
            covered, storage = self._held[instance]
        return storage[rect.slices(covered.lo)]


def read_table(shared: SharedMemory, rank: int, table: int) -> dict[tuple[int, int], tuple[int, Rect, tuple[int, ...]]]:
    """Read where another rank's instances start in its file, what they cover, and in which order, by place."""
    size = int.from_bytes(shared.window(rank, table, _PLACE).tobytes(), "little")
    packed = shared.window(rank, table + _PLACE, size).tobytes()
    places: dict[tuple[int, int], tuple[int, Rect, tuple[int, ...]]] = {}
    for number, place, start, lo, hi, order in (
        row.items(6) for row in record.unpack(packed, f"table of rank {rank}").items()
    ):
        axes = order.integers()
        signed = -MAX_INTEGER
        covered = Rect(lo.integers(signed, len(axes)), hi.integers(signed, len(axes)))
        if sorted(axes) != list(range(len(axes))):
            raise ProtocolError(f"{order.place}: expected an order of {len(axes)} axes, got {axes}")
        places[number.integer(), place.integer()] = (start.integer(), covered, axes)
    return places


class Binder:
    """Binds the steps of one rank's lanes.

    Args:
        storage: where its instances are.
        lanes: its lanes.
        shared: the memory of this host's ranks, if they share any.
        binding: what bodies for a processor are bound inside.
        exchanges: binds what a fabric makes; None where there is none.
    """

    def __init__(
        self,
        storage: Storage,
        lanes: Lanes,
        shared: SharedMemory | None,
        binding: Callable[[int], AbstractContextManager[object]],
        exchanges: ExchangeBinder | None = None,
    ) -> None:
        self.storage = storage
        self.schedule = storage.schedule
        self.lanes = lanes
        self.shared = shared
        self.binding = binding
        self._exchanges = exchanges
        self.wires = {processor: Wire() for processor in lanes.steps}
        self._accumulation = AccumulationBinding(self.schedule)

    def call(self, processor: int, step: Step, turn: int = 0) -> Callable[[], object]:
        """Bind a task or fold of the schedule, or a fold inside a collective, as it is in a run of some number."""
        with self.binding(processor):
            return self._call(step, turn)

    def _call(self, step: Step, turn: int) -> Callable[[], object]:
        schedule, view = self.schedule, partial(self.storage.view, turn=turn)
        if step.kind == StepKind.FOLD:
            piece = schedule.pieces[step.row][step.item]
            parts = [view(part, piece.rect) for part in piece.parts]
            return bind_fold(piece.op, view(piece.target, piece.rect), parts, piece.rect)
        accesses = schedule.accesses(step.row)
        if schedule.kind[step.row] == RowKind.FOLD:
            target, *parts = (view(access.instance, access.rect) for access in accesses)
            return bind_fold(schedule.folds[step.row], target, parts, accesses[0].rect)
        launch = schedule.launches[int(schedule.launch[step.row])]
        if launch.binder is None:
            msg = f"{schedule.label(step.row)} has no body: the schedule was made for planning"
            raise TypeError(msg)
        views: list[torch.Tensor | None] = [None] * len(launch.requirements)
        for access in accesses:
            views[access.slot] = view(access.instance, access.rect)
        cores = schedule.machine.processors[int(schedule.processor[step.row])].cores
        return self._accumulation.bind(step.row, launch.binder, views, cores)

    def pushes(
        self, processor: int, rank: int, table: int, turn: int = 0, idle: Collection[int] = ()
    ) -> dict[int, Callable[[], object]]:
        """Bind a lane's pushes to one rank, by step, to where that rank's table says that its instances are.

        Args:
            processor: whose lane.
            rank: the other rank.
            table: of that rank.
            turn: the number of the run, where instances take turns.
            idle: the rows that do nothing in it.

        Raises:
            RunError: the table does not have them: the ranks do not run the same schedule.
        """
        if self.shared is None:
            return {}
        places = read_table(self.shared, rank, table)
        found = {}
        for index, step in enumerate(self.lanes.steps[processor]):
            if step.kind != StepKind.PUSH or step.row in idle:
                continue
            transfer = self.schedule.transfers(step.row)[step.item]
            target = self.schedule.instances[transfer.target]
            if target.memory != rank:
                continue
            place_of = self._place(transfer.target, turn)
            if place_of not in places:
                raise RunError(f"rank {rank} expects no tile of {self.schedule.label(step.row)}; the ranks differ")
            start, covered, order = places[place_of]
            region = self.schedule.regions[target.region]
            size = covered.volume * region.itemsize
            window = self.shared.window(rank, start, size)
            inside = covered.ndim == transfer.rect.bounds.ndim and covered.contains(transfer.rect.bounds)
            if window.nbytes != size or not inside:
                raise RunError(
                    f"rank {rank} says that instance {transfer.target} covers {covered} from byte {start} on: "
                    f"{transfer.rect} is not in it, or it ends behind that rank's file; the ranks differ"
                )
            # The ellipsis keeps a scalar's place a view.
            place: tuple[Any, ...] = (*transfer.rect.slices(covered.lo), ...)
            packed: np.ndarray[Any, Any] = bits_of(window, region.dtype, tuple(covered.shape[axis] for axis in order))
            there = packed.transpose([order.index(axis) for axis in range(len(order))])[place]
            source = self.storage.view(transfer.source, transfer.rect, turn)
            found[index] = bind_push(source, there, self.wires[processor], transfer.rect)
        return found

    def _place(self, instance: int, turn: int) -> tuple[int, int]:
        """Give what a table has an instance of any rank under, in a run of some number."""
        ring = self.schedule.rotation.places.get(instance) if self.schedule.rings else None
        return instance, 0 if ring is None else ring[0].place(ring[1], turn)

    def needs(self) -> dict[int, int]:
        """Sum the bytes that a run takes in each memory of this rank, rows of exchanges among them."""
        found = self.storage.needs()
        if self._exchanges is not None:
            here, instances = self.storage.memories, self._instances(self.storage.blank)
            for row in self.lanes.engine:
                moved = self.schedule.transfers(row), self.schedule.pieces.get(row, ())
                share = self._exchanges.share(row, *moved, here, instances)
                if share is not None:
                    found[share.memory] += share.row_bytes()
        return found

    def _instances(self, view: View) -> Instances:
        """Give what is known of instances, with what views them."""
        memory, kind = self.schedule.instances.memory, self.schedule.instances.kind
        memories = self.storage.memories
        return Instances(
            lambda instance: int(memory[instance]),
            lambda instance: int(kind[instance]),
            view,
            lambda number, size: memories[number].row(size),
        )

    def movements(
        self, finished: Callable[[int], None], turn: int = 0, idle: Collection[int] = ()
    ) -> tuple[dict[int, Movement], list[Outgoing], list[Incoming]]:
        """Bind what the copy engine moves, by row, with its pushes on the way out and in, in order.

        Args:
            finished: called with a row that has ended here.
            turn: the number of the run, where instances take turns.
            idle: the rows that do nothing in it.
        """
        movements: dict[int, Movement] = {}
        outgoing: list[Outgoing] = []
        incoming: list[Incoming] = []
        schedule, place = self.schedule, Place.of(self.schedule.machine, self.storage.memories)
        size = piecewise.piece_bytes(schedule.machine)
        instances = self._instances(partial(self.storage.view, turn=turn))
        for row in (row for row in self.lanes.engine if row not in idle):
            moved = schedule.transfers(row), schedule.pieces.get(row, ())
            share = None
            if self._exchanges is not None and row in self._exchanges.wholes:
                share = self._exchanges.share(row, *moved, place.devices, instances)
            elif schedule.pieces.op(row) and row not in schedule.plans and not place.of_gpus:
                moved = piecewise.cut(*moved, schedule.regions[schedule.region[row]].itemsize, size)
            movement, out, into = bind_movement(row, *moved, instances.view, instances.memory_of, place, share)
            movement.finished = partial(finished, row)
            movements[row] = movement
            outgoing += out
            incoming += into
        return movements, outgoing, incoming
