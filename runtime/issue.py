"""Issue: untraced rows that run as soon as what they wait for is done, whatever their place in the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from maniple.runtime.analysis import Node
from maniple.runtime.kernels import bind_fold
from maniple.runtime.movement import BoundMove, bind_movement
from maniple.runtime.recorder import silent
from maniple.runtime.schedule import InstanceKind, RowKind
from maniple.runtime.timeline import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from maniple.regions.index_space import IndexSpace
    from maniple.regions.logical_region import LogicalRegion
    from maniple.regions.rectangle import Rect
    from maniple.runtime.analysis import Move, RegionAnalysis
    from maniple.runtime.engine import Incoming, Movement, Outgoing
    from maniple.runtime.memory import Memory
    from maniple.runtime.processor import CpuProcessor
    from maniple.runtime.rank import RankRuntime
    from maniple.runtime.recorder import Tell

__all__: list[str] = []

# Beyond this many remembered rows and tiles of a region, those that are done with are forgotten.
FORGET_AT = 64


def _done() -> None:
    """Stand in for the start of a row that has run, so that nothing holds its body any more."""


class Issued:
    """A row that this rank will run: a task, a fold, or its share of a movement.

    Args:
        start: called once nothing is left to wait for, by whichever thread finished last.
    """

    __slots__ = ("after", "done", "left", "start")

    def __init__(self, start: Callable[[], None]) -> None:
        self.start = start
        self.left = 1  # the issue itself, so that nothing starts half linked
        self.after: list[Issued] = []
        self.done = False

    def begin(self) -> None:
        """Start it."""
        self.start()


class IssuedTask(Issued):
    """A task or fold of this rank.

    Args:
        issuer: is told when it is done.
        processor: where it runs.
        call: what it does.
        priority: order among ready rows.
        tell: notes when it is ready, starts and ends.
    """

    __slots__ = ("_call", "_issuer", "_priority", "_processor", "_tell")

    def __init__(
        self, issuer: Issuer, processor: CpuProcessor, call: Callable[[], object], priority: int, tell: Tell
    ) -> None:
        super().__init__(_done)
        self._issuer, self._processor, self._call = issuer, processor, call
        self._priority, self._tell = priority, tell

    def begin(self) -> None:
        """Hand it to its processor."""
        self._tell(Kind.READY)
        self._processor.submit(self, self._priority)

    def __call__(self) -> None:
        """Run it."""
        self._tell(Kind.STARTED)
        self._call()
        self._tell(Kind.ENDED)
        self._call = _done
        self._issuer.complete(self)


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
        self.rows: dict[Node, Issued] = {}
        self.temporary: dict[int, tuple[Rect, torch.Tensor]] = {}
        self.moves: dict[int, BoundMove] = {}
        self._current = -1
        self._former: dict[int, tuple[Rect, torch.Tensor]] = {}
        self._tidy_at = FORGET_AT

    def view(self, runtime: RankRuntime, instance: int, rect: IndexSpace) -> torch.Tensor:
        """View the bounds of an index space in an instance in this rank's memory."""
        _, kind, extent = self.analysis.extents[instance]
        if kind == InstanceKind.MAIN:
            covered, storage = self._former.get(instance) or self._valid(runtime.memory, instance, extent)
        else:
            if instance not in self.temporary:
                self.temporary[instance] = (extent, runtime.memory.allocate(self.region, extent))
            covered, storage = self.temporary[instance]
        return storage[rect.slices(covered.lo)]

    def storage(self, memory: Memory, instance: int) -> torch.Tensor | None:
        """Give the storage of the instance of valid values, if it is that instance and views of it may be kept."""
        kept = memory.kept(self.region) if instance == self._current else None
        return None if kept is None else kept[1]

    def _valid(self, memory: Memory, instance: int, extent: Rect) -> tuple[Rect, torch.Tensor]:
        """Give the storage of the instance of valid values, made if it is another than the one before."""
        kept = memory.kept(self.region)
        if kept is not None and self._current not in {instance, -1}:
            self._former[self._current] = kept
            self._current = instance
            return memory.renew(self.region, extent)
        self._current = instance
        return memory.keep(self.region, extent)

    def resume(self, memory: int) -> None:
        """Go on after a replay, which used the storage that is kept, whatever its instance was called."""
        room = self.analysis.instances.room(memory)
        self._current = -1 if room is None else room[0]

    def bound(self, memory: Memory, evicted: int) -> None:
        """Let go of what only rows that are bound by now still refer to.

        Args:
            memory: this rank's.
            evicted: the instance that gives up its room, of whatever memory.
        """
        self._former.clear()
        if evicted == self._current:
            self._current = -1
            memory.drop(self.region)

    def busy(self) -> bool:
        """Say whether a row that uses the region is not done yet."""
        return any(not row.done for row in self.rows.values())

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
        self.rows = {node: row for node, row in self.rows.items() if not row.done}
        self.analysis.forget(self.rows.__contains__)
        pending = self.analysis.pending_instances()
        self.temporary = {index: kept for index, kept in self.temporary.items() if index in pending}
        self._tidy_at = FORGET_AT + 2 * (len(self.rows) + len(self.temporary))


class Issuer:
    """Links rows to those they wait for and starts them; safe to call from the program's thread only.

    Args:
        runtime: the rank.
    """

    def __init__(self, runtime: RankRuntime) -> None:
        self.runtime = runtime
        self._last: Sequence[Issued] = ()
        self._together: Sequence[Issued] = ()

    def movements(self, live: LiveRegion, moves: Sequence[Move], first: int) -> list[Issued]:
        """Make rows of the movements of one use of a region, as far as this rank takes part.

        Args:
            live: the region.
            moves: the movements, in program order.
            first: the number of the first of them in the region's analysis.
        """
        rows: list[Issued | None] = []
        for number, move in enumerate(moves, first):
            node = Node(live.analysis.step, -1, number)
            make = self._fold if move.kind == RowKind.FOLD else self._movement
            rows.append(make(live, node, move))
        return [row for row in rows if row is not None]

    def _fold(self, live: LiveRegion, node: Node, move: Move) -> Issued | None:
        if move.processor not in self.runtime.processors:
            return None
        target, *parts = (live.view(self.runtime, access.instance, access.rect) for access in move.accesses)
        call = bind_fold(move.op, target, parts, move.accesses[0].rect)
        tell = self.runtime.teller(f"p{move.processor}", lambda: f"fold {live.region.name}", "fold")
        return self.task(move.processor, call, [(live, node)], 0, tell)

    def task(
        self,
        processor: int,
        call: Callable[[], object],
        nodes: Sequence[tuple[LiveRegion, Node]],
        priority: int,
        tell: Tell = silent,
    ) -> Issued:
        """Make a row of a task or fold of this rank; `link` starts it.

        Args:
            processor: where it runs.
            call: what it does.
            nodes: the region nodes that stand for it.
            priority: order among ready rows.
            tell: notes when it is ready, starts and ends.
        """
        row = IssuedTask(self, self.runtime.processors[processor], call, priority, tell)
        self._enter(row, nodes)
        return row

    def _enter(self, row: Issued, nodes: Sequence[tuple[LiveRegion, Node]]) -> None:
        for live, node in nodes:
            live.rows[node] = row
        with self.runtime.lock:
            self.runtime.under_way += 1

    def _movement(self, live: LiveRegion, node: Node, move: Move) -> Issued | None:
        bound = live.moves.get(id(move)) or self._bound(live, move)
        engine = self.runtime.mover(bound.memories) if self.runtime.memory.id in bound.memories else None
        if engine is None:
            return None
        movement, outgoing, incoming = self._share(live, node.item, bound)
        engine.submit(outgoing, incoming)
        recorder = self.runtime.recorder
        tell: Tell = silent
        if recorder is not None:
            kind = move.kind.name.lower()
            tell = recorder.teller("copy engine", f"{kind} {live.region.name}", kind, (-1 - live.region.id, node.item))

        def start() -> None:
            tell(Kind.STARTED)
            engine.start(movement, 0)

        def finish() -> None:
            tell(Kind.COPIED)
            self.complete(row)

        row = Issued(start)
        movement.finished = finish
        self._enter(row, [(live, node)])
        return row

    def _bound(self, live: LiveRegion, move: Move) -> BoundMove:
        """Find who takes part in a movement."""
        ends = [end for push in move.transfers for end in (push.source, push.target)]
        return BoundMove(move, frozenset([live.analysis.extents[end][0] for end in ends]), None)

    def _share(self, live: LiveRegion, row: int, bound: BoundMove) -> tuple[Movement, list[Outgoing], list[Incoming]]:
        """Tie this rank's share of a movement to storage, or take what was tied the last time."""
        move, memory, extents = bound.move, self.runtime.memory, live.analysis.extents
        ends = [end for push in move.transfers for end in (push.source, push.target) if extents[end][0] == memory.id]
        if bound.storage is not None and bound.storage is live.storage(memory, ends[0]):
            return bound.again(row)
        movement, outgoing, incoming = bind_movement(
            row,
            move.transfers,
            move.pieces,
            lambda instance, rect: live.view(self.runtime, instance, rect),
            lambda instance: extents[instance][0],
            memory.id,
        )
        if not move.pieces and len(set(ends)) == 1 and extents[ends[0]][1] == InstanceKind.MAIN:
            if len(live.moves) >= FORGET_AT:
                live.moves.clear()
            storage = live.storage(memory, ends[0])
            live.moves[id(move)] = BoundMove(move, bound.memories, storage, tuple(outgoing), tuple(incoming))
        return movement, outgoing, incoming

    def link(self, live: LiveRegion, edges: Sequence[tuple[Node, Node]]) -> None:
        """Link rows to those they wait for, as far as both run here."""
        with self.runtime.lock:
            for before, after in edges:
                first, then = live.rows.get(before), live.rows.get(after)
                if first is None or then is None or first is then or first.done:
                    continue
                first.after.append(then)
                then.left += 1

    def line_up(self, moves: Sequence[Issued], tasks: Sequence[Issued], *, together: bool) -> None:
        """Order the rows of a launch after others that no dependence orders them after.

        In a deterministic world every row waits for the one before. Tasks that must run at the same time wait for the
        last such tasks, so that no two groups can wait for each other's processors.

        Args:
            moves: the movements of the launch here, in order.
            tasks: its tasks here, in order.
            together: whether the tasks must run at the same time.
        """
        with self.runtime.lock:
            if together:
                self._follow(self._together, tasks)
                self._together = tasks
            if self.runtime.world.deterministic:
                for group in (*([row] for row in moves), *([tasks] if together else ([row] for row in tasks))):
                    self._follow(self._last, group)
                    self._last = group

    def _follow(self, before: Sequence[Issued], rows: Sequence[Issued]) -> None:
        for first in before:
            if not first.done:
                first.after += rows
                for row in rows:
                    row.left += 1

    def release(self, rows: Sequence[Issued]) -> None:
        """Let rows start that are linked to all they wait for."""
        with self.runtime.lock:
            ready = []
            for row in rows:
                row.left -= 1
                if not row.left:
                    ready.append(row)
        for row in ready:
            row.begin()

    def complete(self, row: Issued) -> None:
        """Mark a row done and start what waited only for it."""
        ready = []
        with self.runtime.lock:
            row.done = True
            row.start = _done
            for later in row.after:
                later.left -= 1
                if not later.left:
                    ready.append(later)
            row.after = []
            self.runtime.under_way -= 1
            if not self.runtime.under_way:
                self.runtime.finished.notify_all()
        for later in ready:
            later.begin()

    def drain(self) -> None:
        """Block until every row issued so far is done.

        Raises:
            RunError: a task failed, here or on another rank.
        """
        self.runtime.await_issued()
        self.runtime.check()
