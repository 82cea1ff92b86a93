"""Dependence analysis of one region: from uses in program order to movements and dependences, nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.regions.collective import Collective, recognise_groups
from maniple.regions.index_space import RectSet, as_one, intersect, meets
from maniple.regions.validity import Use, Validity
from maniple.runtime.analysis.instance_table import InstanceTable
from maniple.runtime.analysis.instance_table import Node as Node
from maniple.runtime.analysis.open_contributions import OpenContributions
from maniple.runtime.analysis.placed_use import Advance as Advance
from maniple.runtime.analysis.placed_use import AnalysedUse
from maniple.runtime.analysis.placed_use import Move as Move
from maniple.runtime.analysis.placed_use import PlacedUse as PlacedUse
from maniple.runtime.schedule.schedule import Access, InstanceKind, Piece, RowKind, Transfer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from maniple.regions.index_space import IndexSpace
    from maniple.regions.privilege import Privilege
    from maniple.regions.rectangle import Rect
    from maniple.regions.validity import Copy, Fold, Merge, Part

__all__: list[str] = []

KINDS = {
    "all_reduce": RowKind.ALL_REDUCE,
    "reduce_scatter": RowKind.REDUCE_SCATTER,
    "all_gather": RowKind.ALL_GATHER,
    "broadcast": RowKind.BROADCAST,
}


class RegionAnalysis:
    """The state of one region as a program uses it: what is valid where, and who used which instance last.

    Regions do not depend on each other except through the tasks that use several, so a program is analysed region by
    region or launch by launch with equal results.

    Args:
        bounds: the elements of the region.
        home: what is valid where before the first use.
        near: distance between two memories, for the choice of a source.
        mover: the processor of a memory that moves its instance of valid values to a larger one. Without any, an
            instance has the room that all uses together need: a step is analysed whole before it runs.
    """

    def __init__(
        self,
        bounds: Rect,
        home: Mapping[int, Iterable[Rect]],
        *,
        near: Callable[[int, int], int] | None = None,
        mover: Callable[[int], int] | None = None,
    ) -> None:
        self.bounds = bounds
        self.near = near
        self.validity = _validity_at(home)
        self.step = 0
        self.uses = 0
        self.moves: list[Move] = []
        self.edges: list[tuple[Node, Node]] = []
        self.instances = InstanceTable()
        self._mover = mover
        self.moved = 0
        self._contributors: dict[tuple[int, ...], tuple[int, int]] = {}
        self._open = OpenContributions()

    @property
    def extents(self) -> dict[int, tuple[int, InstanceKind, Rect]]:
        """The instances by number: the memory, why it is there, and the elements that it has room for."""
        return self.instances.extents

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
        joins = self._open.joins(ordinal, uses, validity) if privilege.accumulates else {}
        joined = {use.color for use in uses if use.point in joins}  # their replicas count no more than they do
        placed = [
            Use(use.memory, use.rect, privilege, (ordinal, *use.color), use.shared)
            for use in uses
            if not use.rect.is_empty and use.color not in joined
        ]
        return Advance(ordinal, *validity.advance(placed, self.near), joins)

    def make_room(self, memory: int, rect: Rect) -> None:
        """Move a memory's instance of valid values to one that holds a rectangle too, unless it does already."""
        room = self.instances.growth(memory, rect, self.bounds)
        if room is None:
            return
        if self.instances.room(memory) is None or self._mover is None:
            self.reserve(memory, room)
            return
        old = self.instances.evict(memory)
        held = self.extents[old][2]
        new = self.reserve(memory, room)
        ends = (Access(new, held, writes=True, slot=0), Access(old, held, writes=False, slot=1))
        # A fold of one part is a copy.
        self._emit(Move(RowKind.FOLD, self._mover(memory), ends, op="+"))

    def use(
        self,
        privilege: Privilege,
        uses: Sequence[PlacedUse],
        advance: Advance | None = None,
        *,
        fills: bool = False,
    ) -> list[tuple[int, Access]]:
        """Analyse one launch's use of the region.

        Appends the movements to `moves` and the dependences to `edges`.

        Args:
            privilege: what every task of the launch does with its rectangle.
            uses: the tasks.
            advance: what `advance` gave for them, if it was asked.
            fills: whether each task gives all elements one value, which an instance may also get when it is made.

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
        for merge in movements.merges:
            self._merge(merge)
        number = 0
        for group in recognise_groups(movements):
            if isinstance(group, Collective):
                self._collective(ordinal, number, group, active)
            else:
                for each, fold in enumerate(group.folds, number):
                    self._fold(ordinal, each, fold, active)
                for copy in group.copies:
                    self._copy(copy)
            number += len(group.folds)
        accesses = []
        for use in active:
            access = self._access(found, privilege, use, fills=fills)
            if access is not None:
                accesses.append((use, access))
        nodes = [(Node(self.step, ordinal, use.point), (access,), use.shared) for use, access in accesses]
        if privilege.accumulates:
            self._open.add(ordinal, active, found.joins)
        self._record(nodes, apart=apart(active) or privilege.accumulates)
        return [(use.point, access) for use, access in accesses]

    def _record(self, nodes: Sequence[tuple[Node, tuple[Access], bool]], *, apart: bool) -> None:
        """Let tasks wait for conflicting uses, and remember their own: one by one if they may wait for each other."""
        for node, used, together in nodes:
            if apart:
                self.edges += self.instances.record(node, used, shared=together)
            else:
                self.edges += self.instances.depend(node, used, shared=together)
        for node, used, together in () if apart else nodes:
            self.instances.record(node, used, shared=together)

    def _access(self, found: Advance, privilege: Privilege, use: PlacedUse, *, fills: bool) -> Access | None:
        """Give the access of one task, None if it fills what no instance has room for."""
        rect, ordinal = use.rect, found.ordinal
        if use.point in found.joins:
            return Access(self._contributors[found.joins[use.point]][0], rect, writes=True, slot=0, adds=True)
        if privilege.reduces:
            tag = (ordinal, use.point)
            instance = self.instances.other(use.memory, InstanceKind.REDUCTION, rect.bounds, tag)
            self._contributors.setdefault((ordinal, *use.color), (instance, use.processor))
        elif fills:
            room = self.instances.room(use.memory)
            if room is None:
                return None
            instance, rect = room
        else:
            instance = self.reserve(use.memory, rect.bounds)
        return Access(instance, rect, privilege.writes or privilege.reduces, 0)

    def skip(self, uses: int, moves: int) -> None:
        """Number on as if so many uses and movements had been analysed."""
        self.uses += uses
        self.moved += moves

    def take(self) -> tuple[int, list[Move], list[tuple[Node, Node]]]:
        """Take the movements and dependences found since the last call, after the number of the first movement."""
        moves, edges = self.moves, self.edges
        self.moves, self.edges = [], []
        return self.moved - len(moves), moves, edges

    def use_again(
        self,
        region: int,
        privilege: Privilege,
        uses: Sequence[PlacedUse],
        advance: Advance | None = None,
        *,
        fills: bool = False,
    ) -> AnalysedUse:
        """Do as `use` does, and take what that found.

        Args:
            region: its number, for those who follow several.
            privilege: as there.
            uses: as there.
            advance: as there.
            fills: as there.
        """
        ordinal = self.uses
        accesses = self.use(privilege, uses, advance, fills=fills)
        first, moves, edges = self.take()
        nodes = tuple([(point, Node(self.step, ordinal, point), access) for point, access in accesses])
        return AnalysedUse(region, first, tuple(moves), tuple(edges), nodes, ordinal)

    def forget(self, alive: Callable[[Node], bool]) -> None:
        """Forget the accesses of nodes that nothing can wait for any more, and what only they referred to."""
        waiting = {item.key for item in self.validity.pending}
        self._contributors = {key: made for key, made in self._contributors.items() if key in waiting}
        self.instances.forget(alive, self.pending_instances())

    def pending_instances(self) -> set[int]:
        """Give the instances that hold contributions not yet folded."""
        return {self._contributors[item.key][0] for item in self.validity.pending}

    def evict(self, memory: int, refuge: int | None) -> int:
        """Give up the instance of valid values in a memory; what is valid only there is copied to another first.

        Args:
            memory: which one.
            refuge: where to copy to.

        Returns:
            The instance that is used no more.
        """
        movements, self.validity = self.validity.evict(memory, refuge)
        for copy in movements.copies:
            self._copy(copy)
        return self.instances.evict(memory)

    def reserve(self, memory: int, rect: Rect) -> int:
        """Make room for a rectangle in a memory's instance of valid values, and give that instance."""
        return self.instances.valid(memory, rect)

    def _processor(self, memory: int, rect: IndexSpace, uses: Sequence[PlacedUse]) -> int:
        """Choose who folds in a memory: the first task there that needs the rectangle."""
        for use in uses:
            if use.memory == memory and meets(use.rect, rect):
                return use.processor
        return next(use.processor for use in uses if use.memory == memory)

    def _sources(self, part: Part, rect: IndexSpace) -> list[int]:
        """Give the instances that one memory adds to a fold, in fold order."""
        base = [self.reserve(part.memory, rect.bounds)] if part.base else []
        return base + [self._contributors[key][0] for key in part.keys]

    def _near_end(self, ordinal: int, number: int, part: Part, fold: Fold, rect: IndexSpace) -> int:
        """Give the one instance that a memory sends to a fold; of several it folds a rectangle first."""
        sources = self._sources(part, rect)
        if len(sources) == 1:
            return sources[0]
        tag = (ordinal, "partial", number)
        partial = self.instances.other(part.memory, InstanceKind.STAGING, rect.bounds, tag)
        processor = self._contributors[part.keys[0]][1]
        self._emit_fold(processor, partial, sources, rect, fold.op.symbol)
        return partial

    def _staging(self, ordinal: int, number: int, part: Part, fold: Fold) -> int:
        tag = (ordinal, part.memory, number)
        return self.instances.other(fold.target, InstanceKind.STAGING, fold.rect.bounds, tag)

    def _merge(self, merge: Merge) -> None:
        sources = [self._contributors[key][0] for key in merge.keys]
        self._emit_fold(self._contributors[merge.keys[0]][1], sources[0], sources, merge.rect, merge.op.symbol)

    def _emit_fold(self, processor: int, target: int, sources: Sequence[int], rect: IndexSpace, op: str) -> None:
        accesses = [Access(target, rect, writes=True, slot=0)]
        accesses += [Access(source, rect, writes=False, slot=i + 1) for i, source in enumerate(sources)]
        self._emit(Move(RowKind.FOLD, processor, tuple(accesses), op=op))

    def _fold(self, ordinal: int, number: int, fold: Fold, uses: Sequence[PlacedUse]) -> None:
        items: list[int] = []
        for part in fold.parts:
            if part.memory == fold.target:
                items += self._sources(part, fold.rect)
                continue
            source = self._near_end(ordinal, number, part, fold, fold.rect)
            staging = self._staging(ordinal, number, part, fold)
            self._emit_copy(source, staging, fold.rect)
            items.append(staging)
        processor = self._processor(fold.target, fold.rect, uses)
        self._emit_fold(processor, self.reserve(fold.target, fold.rect.bounds), items, fold.rect, fold.op.symbol)

    def _copy(self, copy: Copy) -> None:
        source, target = (self.reserve(memory, copy.rect.bounds) for memory in (copy.source, copy.target))
        self._emit_copy(source, target, copy.rect)

    def _emit_copy(self, source: int, target: int, rect: IndexSpace) -> None:
        accesses = (Access(source, rect, writes=False, slot=1), Access(target, rect, writes=True, slot=0))
        transfer = Transfer(source, target, rect)
        self._emit(Move(RowKind.COPY, -1, accesses, (transfer,), elements=rect.volume))

    def _collective(self, ordinal: int, first: int, collective: Collective, uses: Sequence[PlacedUse]) -> None:
        transfers: list[Transfer] = []
        pieces: list[Piece] = []
        accesses: list[Access] = []
        # A member folds what it has several of once, for all blocks for which the same contributions wait.
        told: dict[object, int] = {}
        kinds = [
            told.setdefault(tuple([(part.memory, part.keys) for part in fold.parts]), len(told))
            for fold in collective.folds
        ]
        shared: dict[tuple[int, int, bool], list[IndexSpace]] = {}
        for kind, fold in zip(kinds, collective.folds, strict=True):
            for part in fold.parts:
                shared.setdefault((kind, part.memory, part.base), []).append(fold.rect)
        folded: dict[tuple[int, int, bool], int] = {}
        for number, fold in enumerate(collective.folds):
            parts = []
            for part in fold.parts:
                key, several = (kinds[number], part.memory, part.base), len(part.keys) + part.base > 1
                if not several or key not in folded:
                    rect = as_one(shared[key]) if several else fold.rect
                    folded[key] = self._near_end(ordinal, first + number, part, fold, rect)
                source = folded[key]
                accesses.append(Access(source, fold.rect, writes=False, slot=1))
                if part.memory != fold.target:
                    staging = self._staging(ordinal, first + number, part, fold)
                    transfers.append(Transfer(source, staging, fold.rect, feeds=number))
                    source = staging
                parts.append(source)
            target = self.reserve(fold.target, fold.rect.bounds)
            pieces.append(Piece(fold.target, target, fold.rect, tuple(parts), fold.op.symbol))
            accesses.append(Access(target, fold.rect, writes=True, slot=0))
        for copy in collective.copies:
            transfers += self._spread(copy, collective.folds)
        place = {memory: number for number, memory in enumerate(collective.memories)}
        transfers.sort(key=lambda push: self._turn(push, place))
        for push in transfers:
            accesses.append(Access(push.source, push.rect, writes=False, slot=1))
            accesses.append(Access(push.target, push.rect, writes=True, slot=0))
        unique = _join(accesses)
        volume = sum(push.rect.volume for push in transfers)
        self._emit(Move(KINDS[collective.kind], -1, unique, tuple(transfers), tuple(pieces), elements=volume))

    def _spread(self, copy: Copy, folds: Sequence[Fold]) -> list[Transfer]:
        """Cut a copy of a collective along the folds that it sends on."""
        source, target = (self.reserve(memory, copy.rect.bounds) for memory in (copy.source, copy.target))
        cut = [
            Transfer(source, target, intersect(copy.rect, fold.rect), after=number)
            for number, fold in enumerate(folds)
            if fold.target == copy.source and meets(fold.rect, copy.rect)
        ]
        return cut or [Transfer(source, target, copy.rect)]

    def _turn(self, push: Transfer, place: Mapping[int, int]) -> tuple[int, int, int, tuple[int, ...]]:
        """Order the pushes of a collective: contributions first, then each memory to the next ones round the ring."""
        source = place[self.extents[push.source][0]]
        target = place[self.extents[push.target][0]]
        return (push.after >= 0, (target - source) % len(place), source, push.rect.bounds.lo)

    def _emit(self, move: Move) -> None:
        node = Node(self.step, -1, self.moved)
        self.moved += 1
        self.moves.append(move)
        self.edges += self.instances.record(node, move.accesses)


def apart(uses: Sequence[PlacedUse]) -> bool:
    """Whether no two tasks of a launch may write the same elements of an instance, as replicas of a point may."""
    return len({use.color for use in uses}) == len(uses) and not any(use.shared for use in uses)


def _join(accesses: Iterable[Access]) -> tuple[Access, ...]:
    """Give accesses of a collective as few as say the same: a member writes n - 1 blocks, but one rectangle."""
    rects: dict[tuple[int, bool, int], dict[IndexSpace, None]] = {}
    for access in accesses:
        known = rects.setdefault((access.instance, access.writes, access.slot), {})
        known.update(dict.fromkeys(access.rect.rects))
    return tuple(
        Access(instance, rect, writes, slot)
        for (instance, writes, slot), found in rects.items()
        for rect in RectSet.of(rect for space in found for rect in space.rects).rects
    )


def _validity_at(home: Mapping[int, Iterable[Rect]]) -> Validity:
    return Validity.of_holdings({memory: RectSet.of(tuple(rects)) for memory, rects in sorted(home.items())})
