"""The ready queue: rows of launches as they come, which run as soon as what they wait for is done; see `ready_row`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import TYPE_CHECKING

from maniple.runtime.analysis.dependence import Node
from maniple.runtime.execution.engine import CopyEngine
from maniple.runtime.execution.ready_row import DONE, DeviceTask, ReadyRow, ReadyTask, count_down
from maniple.runtime.execution.recorder import silent
from maniple.runtime.lanes.movement_binding import BoundMove, Place, bind_movement
from maniple.runtime.observe.timeline import Kind
from maniple.runtime.schedule.schedule import InstanceKind, RowKind
from maniple.runtime.storage.copy_kernels import bind_fold

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch

    from maniple.regions.index_space import IndexSpace
    from maniple.regions.logical_region import LogicalRegion
    from maniple.regions.rectangle import Rect
    from maniple.runtime.analysis.dependence import Move, RegionAnalysis
    from maniple.runtime.analysis.placed_use import AnalysedUse
    from maniple.runtime.control.waiting import Waiting
    from maniple.runtime.devices.event import Event
    from maniple.runtime.execution.recorder import Journal, Tell
    from maniple.runtime.execution.resources import Resources
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.launch import Launch
    from maniple.runtime.storage.memory import Memory
    from maniple.runtime.storage.push import Incoming, Movement, Outgoing

__all__: list[str] = []

# Beyond this many remembered rows and tiles of a region, those that are done with are forgotten.
FORGET_AT = 64
# A program that is this many rows ahead of its processors waits until half of them are done. What is ahead is held, and
# looked at by Python's collector: without a bound most of the time of a long program went there.
WINDOW = 1024


class LiveRegion:
    """A region of the running program at one rank: its analysis, its storage, and the rows that use it.

    The instance of valid values has room for what is used of it here, and is made anew when that grows: the analysis
    says when, and has a row bring the values over. Contributions and staged tiles get instances of their own, which go
    when nothing refers to them.

    Args:
        region: the region.
        analysis: what is valid where.
    """

    def __init__(self, region: LogicalRegion, analysis: RegionAnalysis) -> None:
        self.region = region
        self.analysis = analysis
        self.rows: dict[Node, ReadyRow] = {}
        self.temporary: dict[int, tuple[Rect, torch.Tensor]] = {}
        self.moves: dict[int, BoundMove] = {}
        self._current: dict[int, int] = {}  # by memory
        self._former: dict[int, tuple[Rect, torch.Tensor]] = {}
        self._tidy_at = FORGET_AT

    def view(self, memories: Mapping[int, Memory], instance: int, rect: IndexSpace) -> torch.Tensor:
        """View the bounds of an index space in an instance that lies in one of some memories."""
        number, kind, extent = self.analysis.extents[instance]
        memory = memories[number]
        if kind == InstanceKind.MAIN:
            covered, storage = self._former.get(instance) or self._valid(memory, instance, extent)
        else:
            if instance not in self.temporary:
                self.temporary[instance] = (extent, memory.allocate(self.region, extent))
            covered, storage = self.temporary[instance]
        return storage[rect.slices(covered.lo)]

    def storage(self, memory: Memory, instance: int) -> torch.Tensor | None:
        """Give the storage of the instance of valid values, if it is that instance and views of it may be kept."""
        kept = memory.lasting_instance(self.region) if instance == self._current.get(memory.id) else None
        return None if kept is None else kept[1]

    def _valid(self, memory: Memory, instance: int, extent: Rect) -> tuple[Rect, torch.Tensor]:
        """Give the storage of the instance of valid values, made if it is another than the one before."""
        kept, current = memory.lasting_instance(self.region), self._current.get(memory.id, instance)
        self._current[memory.id] = instance
        if kept is not None and current != instance:
            self._former[current] = kept
            self.moves.clear()
            return memory.renew(self.region, extent)
        return memory.keep(self.region, extent)

    def resume(self, memories: Iterable[int]) -> None:
        """Go on after a replay, which used the storage that is kept, whatever its instance was called."""
        rooms = {memory: self.analysis.instances.room(memory) for memory in memories}
        self._current = {memory: room[0] for memory, room in rooms.items() if room is not None}

    def release_bound(self, memories: Mapping[int, Memory], evicted: int) -> None:
        """Let go of what only rows that are bound by now still refer to.

        Args:
            memories: this rank's.
            evicted: the instance that gives up its room, of whatever memory.
        """
        self._former.clear()
        if evicted >= 0:
            for memory in [memory for memory, current in self._current.items() if current == evicted]:
                del self._current[memory]
                self.moves.clear()
                memories[memory].drop(self.region)

    def busy(self) -> bool:
        """Say whether a row that uses the region is not done yet."""
        return any(row.state is not DONE for row in self.rows.values())

    def has_instance(self, memory: int) -> bool:
        """Whether a memory has an instance of valid values."""
        return self.analysis.instances.room(memory) is not None

    def forget(self) -> None:
        """Drop all rows; every one is done, and nothing is left to fold."""
        self.rows.clear()
        self.temporary.clear()
        self.analysis.forget(lambda _: False)

    def tidy(self) -> None:
        """Now and then drop what only rows that are done, or of other ranks, still refer to."""
        if len(self.rows) + len(self.temporary) < self._tidy_at:
            return
        self.rows = {node: row for node, row in self.rows.items() if row.state is not DONE}
        self.analysis.forget(self.rows.__contains__)
        pending = self.analysis.pending_instances()
        self.temporary = {index: kept for index, kept in self.temporary.items() if index in pending}
        self._tidy_at = FORGET_AT + 2 * (len(self.rows) + len(self.temporary))


@dataclass(frozen=True, eq=False, slots=True)
class BoundLaunch:
    """The bodies of a launch that run here, tied to views of instances, to be run for every launch like it.

    Args:
        launch: the launch; told by identity, so it is kept.
        bodies: (point, processor, body).
        held: (requirement, which of its accesses, the memory, the storage viewed); None where views are of this launch
            only.
        heard: the points whose scratch was measured, or cannot be.
    """

    launch: Launch
    bodies: tuple[tuple[int, int, Callable[[], object]], ...]
    held: tuple[tuple[int, int, int, torch.Tensor], ...] | None
    heard: set[int] = field(default_factory=set)

    def fits(
        self, found: Sequence[AnalysedUse], live: Mapping[int, LiveRegion], memories: Mapping[int, Memory]
    ) -> bool:
        """Whether a launch that came to this uses the same storage."""
        return self.held is not None and all(
            live[found[slot].region].storage(memories[memory], found[slot].accesses[place][2].instance) is storage
            for slot, place, memory, storage in self.held
        )


class ReadyQueue:
    """Links rows to those they wait for and starts them; safe to call from the program's thread only.

    Args:
        machine: whose memories there are.
        resources: the rank's processors and memories.
        waiting: how its threads wait.
        journal: what records there.
        in_order: whether every row waits for the one before.
    """

    def __init__(
        self, machine: Machine, resources: Resources, waiting: Waiting, journal: Journal, *, in_order: bool
    ) -> None:
        self.rows = 0
        """How many rows were released and are not done."""
        self._resources, self._memories = resources, resources.memories
        self._waiting, self._lock = waiting, waiting.lock
        self._journal = journal
        self._in_order = in_order
        self._place = Place.of(machine, resources.memories)
        self._last: Sequence[ReadyRow] = ()
        self._together: Sequence[ReadyRow] = ()

    def movements(self, live: LiveRegion, moves: Sequence[Move], first: int) -> list[ReadyRow]:
        """Make rows of the movements of one use of a region, as far as this rank takes part.

        Args:
            live: the region.
            moves: the movements, in program order.
            first: the number of the first of them in the region's analysis.
        """
        rows: list[ReadyRow | None] = []
        for number, move in enumerate(moves, first):
            node = Node(live.analysis.step, -1, number)
            make = self._fold if move.kind == RowKind.FOLD else self._movement
            rows.append(make(live, node, move))
        return [row for row in rows if row is not None]

    def _fold(self, live: LiveRegion, node: Node, move: Move) -> ReadyRow | None:
        if move.processor not in self._resources.processors:
            return None
        target, *parts = (live.view(self._memories, access.instance, access.rect) for access in move.accesses)
        with self._resources.binding(move.processor):
            call = bind_fold(move.op, target, parts, move.accesses[0].rect)
        tell = self._journal.teller(f"p{move.processor}", lambda: f"fold {live.region.name}", "fold")
        return self.task(move.processor, call, [(live, node)], 0, tell)

    def task(
        self,
        processor: int,
        call: Callable[[], object],
        nodes: Sequence[tuple[LiveRegion, Node]],
        priority: int,
        tell: Tell = silent,
        measure: Callable[[int], object] | None = None,
    ) -> ReadyRow:
        """Make a row of a task or fold of this rank; `release` has it start.

        Args:
            processor: where it runs.
            call: what it does.
            nodes: the region nodes that stand for it.
            priority: order among ready rows.
            tell: notes when it is ready, starts and ends.
            measure: told for how many nanoseconds it ran, on a device.
        """
        place = self._resources.processors[processor]
        if place.device is None:
            row: ReadyRow = ReadyTask(self, place, call, priority, tell)
        else:
            row = DeviceTask(self, place, call, priority, tell, measure)
        for live, node in nodes:
            live.rows[node] = row
        return row

    def _movement(self, live: LiveRegion, node: Node, move: Move) -> ReadyRow | None:
        bound = live.moves.get(id(move)) or self._bind(live, move)
        here = not bound.memories.isdisjoint(self._memories)
        engine = self._resources.mover(bound.memories) if here else None
        if engine is None:
            return None
        movement, outgoing, incoming = self._share(live, node.item, bound)
        engine.submit(outgoing, incoming)
        recorder = self._journal.recorder
        tell: Tell = silent
        if recorder is not None:
            kind = move.kind.name.lower()
            tell = recorder.teller("copy engine", f"{kind} {live.region.name}", kind, (-1 - live.region.id, node.item))

        begun: list[int] = []

        def start() -> None:
            begun.append(perf_counter_ns())
            if isinstance(engine, CopyEngine):
                engine.start(movement, 0, row.events)
            else:
                engine.start(movement, 0)

        def finish() -> None:
            tell(Kind.STARTED, movement.begun_ns or begun[0])
            tell(Kind.COPIED, movement.ended_ns or None)
            self.complete(row)

        row = ReadyRow(start, takes=isinstance(engine, CopyEngine))
        movement.finished = finish
        live.rows[node] = row
        return row

    def _bind(self, live: LiveRegion, move: Move) -> BoundMove:
        """Find who takes part in a movement."""
        ends = [end for push in move.transfers for end in (push.source, push.target)]
        return BoundMove(move, frozenset([live.analysis.extents[end][0] for end in ends]), None)

    def _share(self, live: LiveRegion, row: int, bound: BoundMove) -> tuple[Movement, list[Outgoing], list[Incoming]]:
        """Tie this rank's share of a movement to storage, or take what was tied the last time."""
        move, memories, extents = bound.move, self._memories, live.analysis.extents
        ends = [end for push in move.transfers for end in (push.source, push.target) if extents[end][0] in memories]
        memory = memories[extents[ends[0]][0]]
        if bound.storage is not None and bound.storage is live.storage(memory, ends[0]):
            return bound.again(row)
        movement, outgoing, incoming = bind_movement(
            row,
            move.transfers,
            move.pieces,
            lambda instance, rect: live.view(memories, instance, rect),
            lambda instance: extents[instance][0],
            self._place,
        )
        again = not move.pieces and len(set(ends)) == 1 and memory.device is None
        if again and extents[ends[0]][1] == InstanceKind.MAIN:
            if len(live.moves) >= FORGET_AT:
                live.moves.clear()
            storage = live.storage(memory, ends[0])
            live.moves[id(move)] = BoundMove(move, bound.memories, storage, tuple(outgoing), tuple(incoming))
        return movement, outgoing, incoming

    def link(self, live: LiveRegion, edges: Sequence[tuple[Node, Node]]) -> None:
        """Link rows to those they wait for, as far as both run here."""
        find = live.rows.get
        last: Node | None = None
        then: ReadyRow | None = None
        with self._lock:
            for before, after in edges:
                if after is not last:  # those of one node follow one another
                    last, then = after, find(after)
                first = None if then is None else find(before)
                if first is not None and then is not None and first is not then and first.state is not DONE:
                    first.lead(then)

    def line_up(self, moves: Sequence[ReadyRow], tasks: Sequence[ReadyRow], *, together: bool) -> None:
        """Order the rows of a launch after others that no dependence orders them after.

        In a deterministic world every row waits for the one before. Tasks that must run at the same time wait for the
        last such tasks, so that no two groups can wait for each other's processors.

        Args:
            moves: the movements of the launch here, in order.
            tasks: its tasks here, in order.
            together: whether the tasks must run at the same time.
        """
        if not (together or self._in_order):
            return
        with self._lock:
            if together:
                for row in self._together:
                    row.precede(tasks)
                self._together = tasks
            if self._in_order:
                for group in (*([row] for row in moves), *([tasks] if together else ([row] for row in tasks))):
                    for row in self._last:
                        row.precede(group)
                    self._last = group

    def release(self, rows: Sequence[ReadyRow]) -> None:
        """Let rows start that are linked to all they wait for."""
        with self._lock:
            self.rows += len(rows)
            ready = count_down(rows)
        for row in ready:
            row.begin()

    def await_room(self) -> None:
        """Block while the program is too far ahead.

        Raises:
            RunError: a task failed, here or on another rank.
        """
        if self.rows >= WINDOW:
            self._waiting.await_done(lambda: self.rows <= WINDOW // 2)

    def submit(self, row: DeviceTask, event: Event) -> None:
        """Note the event of a row that its device was given, and start what waited only for that."""
        with self._lock:
            ready = row.submitted(event)
        for later in ready:
            later.begin()

    def complete(self, row: ReadyRow) -> None:
        """Mark a row done and start what waited only for it."""
        with self._lock:
            ready = row.end()
            self.rows -= 1
            if not self.rows or self.rows == WINDOW // 2:
                self._waiting.finished.notify_all()
        for later in ready:
            later.begin()

    def fail(self, error: BaseException) -> None:
        """End the rank with what broke a row off."""
        self._waiting.fail(error)
