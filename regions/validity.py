"""Validity: which memories hold the valid value of a region's points, and what a new use has to move.

The runtime's only source of communication. A launch says which boxes its tasks use and how; this module answers with
the folds and copies that must come first and with the state that the launch leaves behind. It follows Legion's
physical analysis (Bauer, "Legion: Programming Distributed Heterogeneous Architectures with Logical Regions", Stanford
2014, chapter 5), with reductions folded lazily: a contribution waits where it was made until somebody reads.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import final

from maniple.process.error import RequestError
from maniple.regions.arrangement import arrange, meeting
from maniple.regions.cell import Cell, Pending, cut, group, needs
from maniple.regions.index_space import IndexSpace, RectSet, as_one, by_place, intersect, union, without
from maniple.regions.movement import Contribution as Contribution
from maniple.regions.movement import Copy as Copy
from maniple.regions.movement import Fold as Fold
from maniple.regions.movement import Key as Key
from maniple.regions.movement import MemoryId as MemoryId
from maniple.regions.movement import Merge as Merge
from maniple.regions.movement import Movements as Movements
from maniple.regions.movement import Part as Part
from maniple.regions.movement import Use as Use
from maniple.regions.movement_plan import MovementPlan
from maniple.regions.movement_plan import Near as Near
from maniple.regions.rect_tree import RectTree
from maniple.regions.rectangle import Rect

_NOTHING = Movements()


class Clash(RequestError):  # noqa: N818 - it names what happened, as StopIteration does
    """Two points of one launch write the same elements, or share them from memories apart.

    Args:
        one: the use of the one point.
        other: the use of the other.
    """

    def __init__(self, one: Use, other: Use) -> None:
        self.one = one
        self.other = other
        super().__init__(self.describe(one.key, other.key))

    def describe(self, one: object, other: object) -> str:
        """The message, with the points under names that the reader knows.

        Args:
            one: the name of the one point.
            other: the name of the other.
        """
        both = intersect(self.one.rect, self.other.rect)
        if self.one.shared and self.other.shared:
            return (
                f"points {one} and {other} of one launch both use {both} under simultaneous coherence, in memories "
                f"{self.one.memory} and {self.other.memory}: map them to one rank, so that they use one instance"
            )
        return (
            f"points {one} and {other} of one launch both write {both}; make the partition disjoint, use reduce, "
            "or ask for atomic coherence"
        )


class UnwrittenRead(RequestError):  # noqa: N818 - it names what happened, as StopIteration does
    """A read of points that no task has written.

    Args:
        rect: some of the points.
    """

    def __init__(self, rect: IndexSpace) -> None:
        super().__init__(f"a read of {rect}, where nothing was ever written: write or fill it first")
        self.rect = rect


def interference(uses: Sequence[Use]) -> tuple[int, int] | None:
    """The positions of two uses that may not be in one launch, or None.

    Two uses of different points interfere where their boxes overlap, unless both read or both reduce with one
    operation. Replicas of one point, which share a key, never interfere, nor do shared uses in one memory.
    """
    kinds = {use.privilege for use in uses}
    if len(kinds) < 2 and not any(kind.writes for kind in kinds):
        return None
    first: dict[tuple[Key, IndexSpace, bool, object, int], int] = {}
    for position, use in enumerate(uses):
        memory = use.memory if use.shared else -1
        first.setdefault((use.key, use.rect, use.privilege.writes, use.privilege.op, memory), position)
    places = list(first.values())
    for a, b in meeting(tuple([uses[place].rect for place in places])):
        one, other = uses[places[a]], uses[places[b]]
        alike = one.privilege == other.privilege and not one.privilege.writes
        together = one.shared and other.shared and one.memory == other.memory
        if one.key != other.key and not alike and not together:
            return places[a], places[b]
    return None


@final
@dataclass(frozen=True, eq=False)
class Validity:
    """Who holds what: for every point of one region, the memories with its value and the contributions to it.

    An immutable value: :meth:`advance` returns the next one, in time that grows with the cells that a launch meets.
    Two are equal if they say the same of every point. Build one with :meth:`initial` or :meth:`of_holdings`.

    Args:
        tree: disjoint cells by where they are; points without a cell were never written.
        clock: how many contributions there have been, which numbers them in program order.
    """

    tree: RectTree[Cell] = field(default_factory=RectTree[Cell])
    clock: int = 0

    @staticmethod
    def initial() -> Validity:
        """The state in which nothing is valid and nothing is pending."""
        return Validity()

    @staticmethod
    def of_holdings(holdings: Mapping[int, IndexSpace]) -> Validity:
        """The state in which each memory holds the valid value of its points.

        Args:
            holdings: memory to points.
        """
        pairs = [(memory, rect) for memory, points in sorted(holdings.items()) for rect in points.rects]
        cells = [
            Cell(rect, tuple(sorted({pairs[place][0] for place in places})))
            for rect, places in arrange([rect for _, rect in pairs])
        ]
        return Validity(_insert(RectTree(), cells))

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """The cells, ascending."""
        return tuple(sorted(self.tree, key=lambda cell: by_place(cell.rect)))

    @cached_property
    def valid(self) -> Mapping[int, RectSet]:
        """The points whose value each memory holds, by ascending memory; memories without any are left out."""
        rects: dict[int, list[IndexSpace]] = {}
        for cell in self.cells:
            for memory in cell.holders:
                rects.setdefault(memory, []).append(cell.rect)
        return MappingProxyType({memory: union(rects[memory]) for memory in sorted(rects)})

    @cached_property
    def pending(self) -> tuple[Contribution, ...]:
        """The contributions that wait, in program order; one that was folded in part is left as the boxes that wait."""
        return tuple(
            Contribution(entry.key, entry.memory, rect, entry.op)
            for entry, points in self._waiting
            for rect in points.rects
        )

    @cached_property
    def _waiting(self) -> tuple[tuple[Contribution, RectSet], ...]:
        rects: dict[int, list[IndexSpace]] = {}
        known: dict[int, Contribution] = {}
        for cell in self.cells:
            for number, contribution in cell.pending:
                known[number] = contribution
                rects.setdefault(number, []).append(cell.rect)
        return tuple((known[number], union(rects[number])) for number in sorted(rects))

    @cached_property
    def _meaning(self) -> tuple[object, ...]:
        waiting = tuple((entry.key, entry.memory, entry.op, points) for entry, points in self._waiting)
        return tuple(self.valid.items()), waiting

    def alone(self, memory: int) -> Rect | None:
        """The smallest box around all points whose value only one memory holds, None if there are none."""
        found = [cell.rect.bounds for cell in self.cells if cell.holders == (memory,)]
        return functools.reduce(Rect.hull, found) if found else None

    def find_unwritten(self, spaces: Sequence[IndexSpace]) -> IndexSpace | None:
        """Some of the points of index spaces that nothing was ever written to, None if there are none."""
        met = self.tree.over([space.bounds for space in spaces])
        rest = [space for space in spaces if not space.is_empty]
        for cell in met:
            rest = [piece for part in rest for piece in without(part, cell.rect)]
        return min(rest, key=by_place) if rest else None

    def evict(self, memory: int, refuge: int | None) -> tuple[Movements, Validity]:
        """What must move before one memory gives up all values that it holds, and the state after it has.

        Args:
            memory: which one; contributions that wait there stay.
            refuge: where to copy what no other memory holds; None if there is no such place.

        Raises:
            RequestError: there is something that no other memory holds, and no refuge.
        """
        alone = [cell.rect for cell in self.cells if cell.holders == (memory,)]
        if alone and refuge is None:
            msg = f"memory {memory} is the only one that holds {as_one(alone)}: name another to copy it to"
            raise RequestError(msg)
        cells: list[Cell] = []
        for cell in self.cells:
            rest = tuple([holder for holder in cell.holders if holder != memory])
            kept = rest or ((refuge,) if cell.holders and refuge is not None else ())
            cells.append(Cell(cell.rect, kept, cell.pending))
        moved = (Copy(as_one(alone), memory, refuge),) if alone and refuge is not None else ()
        return Movements(copies=moved), Validity(_insert(RectTree(), cells), self.clock)

    def advance(self, uses: Sequence[Use], near: Near | None = None) -> tuple[Movements, Validity]:
        """What one launch needs moved before it may use the region, and the state that it leaves.

        ===============  =============================================  ==============================
        privilege        moved first, per point                         left behind
        ===============  =============================================  ==============================
        read             pending: a fold at one reader, copies to the   valid at every reader, and
                         others; else copies to readers without it      where it was, unless folded
        read-write       as read                                        valid at the writers only
        write-discard    nothing                                        valid at the writers only
        reduce(op)       nothing, unless another operation is pending:  pending, over the value from
                         that is folded first                           before, which stays
        ===============  =============================================  ==============================

        A fold moves one value per point and per contributing memory that is not the owner. The owner is one of the
        readers that contribute, or else that hold the value from before, or else any; where several are equally
        good, the points are split evenly among them along the longest axis.

        Args:
            uses: all point uses of one launch's one region requirement, with one privilege.
            near: distance from a target memory to a holder, 0 nearest; by default all are equally near.

        Raises:
            UnwrittenRead: a point is read that was never written.
            RequestError: the privileges differ, two points write the same point or one key stands for two uses.
        """
        for use in uses:
            if use.privilege != uses[0].privilege:
                msg = f"one requirement has one privilege, got {uses[0].privilege} and {use.privilege}: split it in two"
                raise RequestError(msg)
        live = [use for use in uses if not use.rect.is_empty]
        if not live:
            return _NOTHING, self
        privilege = live[0].privilege
        if privilege.writes:
            clash = interference(live)
            if clash is not None:
                raise Clash(live[clash[0]], live[clash[1]])
        plan = MovementPlan(near)
        if privilege.reduces:
            left = _reduce(self, live, plan)
            return plan.movements(), left
        wanted = needs(live)
        met, untouched = self.tree.take([points.bounds for points, _ in wanted])
        pieces, cells = cut(_ascending(met), wanted)
        if privilege.reads:
            unwritten = [rect for rect, _, cell in pieces if cell is None]
            if unwritten:
                raise UnwrittenRead(min(unwritten, key=by_place))
            moved = [plan.read(rect, memories, cell) for rect, memories, cell in pieces if cell is not None]
            if not privilege.writes and not any(moved):
                return _NOTHING, self
        for rect, memories, cell in pieces:
            kept = () if cell is None or cell.pending or privilege.writes else cell.holders
            cells.append(Cell(rect, tuple(sorted({*kept, *memories}))))
        return plan.movements(), Validity(_insert(untouched, cells), self.clock)

    def __eq__(self, other: object) -> bool:
        """Whether both say the same of every point, however their cells are cut."""
        if not isinstance(other, Validity):
            return NotImplemented
        return self is other or self._meaning == other._meaning

    def __hash__(self) -> int:
        """A number that equal states share."""
        return hash(self._meaning)

    def __str__(self) -> str:
        if not self.cells:
            return "nothing valid, nothing pending"
        lines = [
            (str(cell.rect), ", ".join(map(str, cell.holders)) or "-", _describe(cell.pending) or "-")
            for cell in self.cells
        ]
        rows = [("points", "valid in", "pending"), *lines]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        return "\n".join(["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows])


def _describe(pending: Pending) -> str:
    return ", ".join([f"{entry.op}{entry.key} in {entry.memory}" for _, entry in pending])


def _ascending(cells: Sequence[Cell]) -> list[Cell]:
    return sorted(cells, key=lambda cell: by_place(cell.rect))


def _insert(tree: RectTree[Cell], cells: Sequence[Cell]) -> RectTree[Cell]:
    """The tree with cells that meet none of its own; the new ones are joined where they are alike."""
    return tree.add([(cell.rect.bounds, cell) for cell in group(cells)])


def _reduce(state: Validity, uses: Sequence[Use], plan: MovementPlan) -> Validity:
    """The state after a reducing launch; folds of another operation that it finds go into the plan."""
    counted: dict[Key, Use] = {}
    for use in uses:
        known = counted.setdefault(use.key, use)
        if known.rect != use.rect:
            msg = f"the key {use.key} stands for {known.rect} and {use.rect}: give every point of a launch its own key"
            raise RequestError(msg)
    made: list[tuple[int, Contribution]] = []
    for number, use in enumerate(counted.values(), state.clock):
        op = use.privilege.op
        if op is not None:
            made.append((number, Contribution(use.key, use.memory, use.rect, op)))
    wanted = arrange([contribution.rect for _, contribution in made])
    met, untouched = state.tree.take([points.bounds for points, _ in wanted])
    pieces, cells = cut(_ascending(met), wanted)
    for rect, places, cell in pieces:
        added = tuple([made[place] for place in places])
        if cell is None:
            cells.append(Cell(rect, (), added))
            continue
        holders, waiting = cell.holders, cell.pending
        first = added[0][1]
        if waiting and waiting[0][1].op != first.op:
            plan.read(rect, (first.memory,), cell)
            holders, waiting = (first.memory,), ()
        for _, contribution in waiting:
            if contribution.key in counted:
                msg = f"the key {contribution.key} already names a contribution that waits for {rect}: use a new key"
                raise RequestError(msg)
        for memory in sorted({contribution.memory for _, contribution in added}):
            waiting = plan.merge(rect, memory, waiting)
        cells.append(Cell(rect, holders, (*waiting, *added)))
    return Validity(_insert(untouched, cells), state.clock + len(made))
