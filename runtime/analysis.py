"""Dependence analysis of one region: from uses in program order to movements and dependences, nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maniple.regions.collective import recognise
from maniple.regions.rectangle import RectSet
from maniple.regions.validity import Use, Validity
from maniple.runtime.schedule import Access, InstanceKind, Piece, RowKind, Transfer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from maniple.regions.collective import Collective
    from maniple.regions.privilege import Privilege
    from maniple.regions.rectangle import Rect
    from maniple.regions.validity import Copy, Fold, Movements, Part

__all__: list[str] = []

KINDS = {
    "all_reduce": RowKind.ALL_REDUCE,
    "reduce_scatter": RowKind.REDUCE_SCATTER,
    "all_gather": RowKind.ALL_GATHER,
    "broadcast": RowKind.BROADCAST,
}


@dataclass(frozen=True, slots=True)
class PlacedUse:
    """What one task of a launch does to the region.

    Args:
        point: index of the task in its launch.
        color: the point of the launch domain; replicas of one point share it.
        processor: where the task runs.
        memory: the memory of that processor.
        rect: the elements that it uses; empty if none.
    """

    point: int
    color: tuple[int, ...]
    processor: int
    memory: int
    rect: Rect


@dataclass(frozen=True, slots=True)
class Node:
    """A task (`use` >= 0, then its point in `item`) or a movement (`use` == -1, then its number) of the region."""

    step: int
    use: int
    item: int


@dataclass(frozen=True, slots=True)
class Move:
    """A movement that one use of the region needs before its tasks run.

    Args:
        use: ordinal of the use in the step.
        kind: FOLD, COPY or a collective.
        processor: the processor of a fold; -1 between memories.
        accesses: the instances used; for a fold slot 0 is the target and 1.. the parts in fold order.
        transfers: the pushes between memories.
        pieces: the folds inside a collective.
        op: symbol of the reduction operator of a FOLD.
        elements: how many elements leave a memory.
    """

    use: int
    kind: RowKind
    processor: int
    accesses: tuple[Access, ...]
    transfers: tuple[Transfer, ...] = ()
    pieces: tuple[Piece, ...] = ()
    op: str = ""
    elements: int = 0


@dataclass(frozen=True, slots=True)
class Advance:
    """What one use of the region comes to before it is analysed further.

    Args:
        ordinal: number of the use in the step.
        movements: the folds and copies that come first.
        validity: what it leaves valid where.
    """

    ordinal: int
    movements: Movements
    validity: Validity


@dataclass(frozen=True, slots=True)
class _Touch:
    """One remembered access of an instance."""

    node: Node
    rect: Rect
    writes: bool


class RegionAnalysis:
    """The state of one region as a program uses it: what is valid where, and who used which instance last.

    Regions do not depend on each other except through the tasks that use several, so a program is analysed region by
    region or launch by launch with equal results.

    Args:
        bounds: the elements of the region.
        home: what is valid where before the first use (and, for a region that outlives steps, before every step).
        persistent: whether values outlive a step; otherwise `begin_step` forgets them.
        near: distance between two memories, for the choice of a source.
    """

    def __init__(
        self,
        bounds: Rect,
        home: Mapping[int, Iterable[Rect]],
        *,
        persistent: bool,
        near: Callable[[int, int], int] | None = None,
    ) -> None:
        self.bounds = bounds
        self.persistent = persistent
        self.near = near
        self.validity = _held(home)
        self.step = 0
        self.uses = 0
        self.moves: list[Move] = []
        self.edges: list[tuple[Node, Node]] = []
        self.extents: list[tuple[int, InstanceKind, Rect]] = []
        self._moved = 0
        self._named: dict[tuple[object, ...], int] = {}
        self._touches: dict[int, list[_Touch]] = {}
        self._contributors: dict[tuple[int, ...], tuple[int, int]] = {}

    def begin_step(self) -> None:
        """Start the next run of the same program: same instances, values forgotten unless the region is persistent."""
        self.step += 1
        self.uses = 0
        self._moved = 0
        self.moves.clear()
        self.edges.clear()
        self._contributors.clear()
        if not self.persistent:
            self.validity = Validity.initial()

    def advance(self, privilege: Privilege, uses: Sequence[PlacedUse], after: Advance | None = None) -> Advance:
        """Say what a use needs moved and leaves valid, without changing anything.

        Args:
            privilege: what every task of the launch does with its rectangle.
            uses: the tasks.
            after: an advance of this region by the same launch that comes first.

        Raises:
            RequestError: two tasks interfere, or an element is read that nothing wrote.
        """
        validity, ordinal = (self.validity, self.uses) if after is None else (after.validity, after.ordinal + 1)
        placed = [Use(use.memory, use.rect, privilege, (ordinal, *use.color)) for use in uses if not use.rect.is_empty]
        return Advance(ordinal, *validity.advance(placed, self.near))

    def use(
        self, privilege: Privilege, uses: Sequence[PlacedUse], advance: Advance | None = None
    ) -> list[tuple[int, Access]]:
        """Analyse one launch's use of the region.

        Appends the movements to `moves` and the dependences to `edges`.

        Args:
            privilege: what every task of the launch does with its rectangle.
            uses: the tasks.
            advance: what `advance` gave for them, if it was asked.

        Returns:
            (point, access) for every task with a rectangle that is not empty; the slot of the access is 0.

        Raises:
            RequestError: two tasks interfere, or an element is read that nothing wrote.
        """
        found = advance or self.advance(privilege, uses)
        ordinal, movements = found.ordinal, found.movements
        self.uses = ordinal + 1
        self.validity = found.validity
        active = [use for use in uses if not use.rect.is_empty]
        collective = recognise(movements)
        if collective is not None:
            self._collective(ordinal, collective, active)
        else:
            for fold in movements.folds:
                self._fold(ordinal, fold, active)
            for copy in movements.copies:
                self._copy(ordinal, copy)
        accesses = []
        touches = []
        for use in active:
            if privilege.reduces:
                instance = self._instance(use.memory, InstanceKind.REDUCTION, use.rect, (ordinal, use.point))
                self._contributors.setdefault((ordinal, *use.color), (instance, use.processor))
            else:
                instance = self._main(use.memory, use.rect)
            access = Access(instance, use.rect, privilege.writes or privilege.reduces, 0)
            accesses.append((use.point, access))
            touches.append((Node(self.step, ordinal, use.point), access))
        for node, access in touches:
            self._depend(node, (access,))
        for node, access in touches:
            self._record(node, (access,))
        return accesses

    def take(self) -> tuple[int, list[Move], list[tuple[Node, Node]]]:
        """Take the movements and dependences found since the last call, after the number of the first movement."""
        moves, edges = self.moves, self.edges
        self.moves, self.edges = [], []
        return self._moved - len(moves), moves, edges

    def forget(self, alive: Callable[[Node], bool]) -> None:
        """Forget the accesses of nodes that nothing can wait for any more."""
        for touches in self._touches.values():
            touches[:] = [touch for touch in touches if alive(touch.node)]

    def pending_instances(self) -> set[int]:
        """Give the instances that hold contributions not yet folded."""
        return {self._contributors[item.key][0] for item in self.validity.pending}

    def reserve(self, memory: int, rect: Rect) -> int:
        """Make room for a rectangle in a memory's instance of valid values, and give that instance."""
        return self._main(memory, rect)

    def _main(self, memory: int, rect: Rect) -> int:
        """Give the instance of valid values in a memory, grown to hold a rectangle."""
        return self._instance(memory, InstanceKind.MAIN, rect, ())

    def _instance(self, memory: int, kind: InstanceKind, rect: Rect, tag: tuple[object, ...]) -> int:
        name = (memory, kind, *tag)
        index = self._named.get(name)
        if index is None:
            index = self._named[name] = len(self.extents)
            self.extents.append((memory, kind, rect))
            self._touches[index] = []
        elif not self.extents[index][2].contains(rect):
            self.extents[index] = (memory, kind, self.extents[index][2].hull(rect))
        return index

    def _processor(self, memory: int, rect: Rect, uses: Sequence[PlacedUse]) -> int:
        """Choose who folds in a memory: the first task there that needs the rectangle."""
        for use in uses:
            if use.memory == memory and use.rect.overlaps(rect):
                return use.processor
        return next(use.processor for use in uses if use.memory == memory)

    def _sources(self, part: Part) -> list[int]:
        """Give the instances that one memory adds to a fold, in fold order."""
        base = [self._named[(part.memory, InstanceKind.MAIN)]] if part.base else []
        return base + [self._contributors[key][0] for key in part.keys]

    def _near_end(self, ordinal: int, part: Part, fold: Fold) -> int:
        """Give the one instance that a far memory sends to a fold, folded there first when it has several."""
        sources = self._sources(part)
        if len(sources) == 1:
            return sources[0]
        tag = (ordinal, "partial", fold.rect.lo)
        partial = self._instance(part.memory, InstanceKind.STAGING, fold.rect, tag)
        processor = self._contributors[part.keys[0]][1]
        self._emit_fold(ordinal, processor, partial, sources, fold)
        return partial

    def _staging(self, ordinal: int, part: Part, fold: Fold) -> int:
        tag = (ordinal, part.memory, fold.rect.lo)
        return self._instance(fold.target, InstanceKind.STAGING, fold.rect, tag)

    def _emit_fold(self, ordinal: int, processor: int, target: int, sources: Sequence[int], fold: Fold) -> None:
        accesses = [Access(target, fold.rect, writes=True, slot=0)]
        accesses += [Access(source, fold.rect, writes=False, slot=i + 1) for i, source in enumerate(sources)]
        self._emit(Move(ordinal, RowKind.FOLD, processor, tuple(accesses), op=fold.op.symbol))

    def _fold(self, ordinal: int, fold: Fold, uses: Sequence[PlacedUse]) -> None:
        items: list[int] = []
        for part in fold.parts:
            if part.memory == fold.target:
                items += self._sources(part)
                continue
            source = self._near_end(ordinal, part, fold)
            staging = self._staging(ordinal, part, fold)
            self._emit_copy(ordinal, source, staging, fold.rect)
            items.append(staging)
        processor = self._processor(fold.target, fold.rect, uses)
        self._emit_fold(ordinal, processor, self._main(fold.target, fold.rect), items, fold)

    def _copy(self, ordinal: int, copy: Copy) -> None:
        self._emit_copy(ordinal, self._main(copy.source, copy.rect), self._main(copy.target, copy.rect), copy.rect)

    def _emit_copy(self, ordinal: int, source: int, target: int, rect: Rect) -> None:
        accesses = (Access(source, rect, writes=False, slot=1), Access(target, rect, writes=True, slot=0))
        transfer = Transfer(source, target, rect)
        self._emit(Move(ordinal, RowKind.COPY, -1, accesses, (transfer,), elements=rect.volume))

    def _collective(self, ordinal: int, collective: Collective, uses: Sequence[PlacedUse]) -> None:
        transfers: list[Transfer] = []
        pieces: list[Piece] = []
        accesses: list[Access] = []
        for number, fold in enumerate(collective.folds):
            parts = []
            for part in fold.parts:
                source = self._near_end(ordinal, part, fold)
                accesses.append(Access(source, fold.rect, writes=False, slot=1))
                if part.memory != fold.target:
                    staging = self._staging(ordinal, part, fold)
                    transfers.append(Transfer(source, staging, fold.rect, feeds=number))
                    source = staging
                parts.append(source)
            target = self._main(fold.target, fold.rect)
            pieces.append(Piece(fold.target, target, fold.rect, tuple(parts), fold.op.symbol))
            accesses.append(Access(target, fold.rect, writes=True, slot=0))
        for copy in collective.copies:
            transfers += self._spread(copy, collective.folds)
        place = {memory: number for number, memory in enumerate(collective.memories)}
        transfers.sort(key=lambda push: self._turn(push, place))
        for push in transfers:
            accesses.append(Access(push.source, push.rect, writes=False, slot=1))
            accesses.append(Access(push.target, push.rect, writes=True, slot=0))
        unique = _joined(accesses)
        volume = sum(push.rect.volume for push in transfers)
        self._emit(Move(ordinal, KINDS[collective.kind], -1, unique, tuple(transfers), tuple(pieces), elements=volume))

    def _spread(self, copy: Copy, folds: Sequence[Fold]) -> list[Transfer]:
        """Cut a copy of a collective along the folds that it sends on."""
        source, target = self._main(copy.source, copy.rect), self._main(copy.target, copy.rect)
        cut = [
            Transfer(source, target, copy.rect.intersect(fold.rect), after=number)
            for number, fold in enumerate(folds)
            if fold.target == copy.source and fold.rect.overlaps(copy.rect)
        ]
        return cut or [Transfer(source, target, copy.rect)]

    def _turn(self, push: Transfer, place: Mapping[int, int]) -> tuple[int, int, int, tuple[int, ...]]:
        """Order the pushes of a collective: contributions first, then each memory to the next ones round the ring."""
        source = place[self.extents[push.source][0]]
        target = place[self.extents[push.target][0]]
        return (push.after >= 0, (target - source) % len(place), source, push.rect.lo)

    def _emit(self, move: Move) -> None:
        node = Node(self.step, -1, self._moved)
        self._moved += 1
        self.moves.append(move)
        self._depend(node, move.accesses)
        self._record(node, move.accesses)

    def _depend(self, node: Node, accesses: Sequence[Access]) -> None:
        """Add an edge from every earlier node whose access conflicts with one of these."""
        found: dict[Node, None] = {}
        for access in accesses:
            for touch in self._touches[access.instance]:
                if (access.writes or touch.writes) and touch.node != node and touch.rect.overlaps(access.rect):
                    found[touch.node] = None
        self.edges.extend((before, node) for before in found)

    def _record(self, node: Node, accesses: Sequence[Access]) -> None:
        """Remember accesses; a write hides the older ones that lie inside it, for it waits for them."""
        for access in accesses:
            touches = self._touches[access.instance]
            if access.writes:
                touches[:] = [t for t in touches if t.node == node or not access.rect.contains(t.rect)]
            touches.append(_Touch(node, access.rect, access.writes))


def _joined(accesses: Iterable[Access]) -> tuple[Access, ...]:
    """Give accesses of a collective as few as say the same: a member writes n - 1 blocks, but one rectangle."""
    rects: dict[tuple[int, bool, int], dict[Rect, None]] = {}
    for access in accesses:
        rects.setdefault((access.instance, access.writes, access.slot), {})[access.rect] = None
    return tuple(
        Access(instance, rect, writes, slot)
        for (instance, writes, slot), found in rects.items()
        for rect in RectSet.of(found).rects
    )


def _held(home: Mapping[int, Iterable[Rect]]) -> Validity:
    return Validity.held({memory: RectSet.of(tuple(rects)) for memory, rects in sorted(home.items())})
