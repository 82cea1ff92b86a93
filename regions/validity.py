"""Validity: which memories hold the valid value of a region's points, and what a new use has to move.

The runtime's only source of communication. A launch says which boxes its tasks use and how; this module answers with
the folds and copies that must come first and with the state that the launch leaves behind. It follows Legion's
physical analysis (Bauer, "Legion: Programming Distributed Heterogeneous Architectures with Logical Regions", Stanford
2014, chapter 5), with reductions folded lazily: a contribution waits where it was made until somebody reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import final

from maniple.regions.arrangement import arrange
from maniple.regions.cell import Cell, Pending, cut, grouped, needs
from maniple.regions.error import RequestError
from maniple.regions.movement import Contribution as Contribution
from maniple.regions.movement import Copy as Copy
from maniple.regions.movement import Fold as Fold
from maniple.regions.movement import Key as Key
from maniple.regions.movement import MemoryId as MemoryId
from maniple.regions.movement import Movements as Movements
from maniple.regions.movement import Part as Part
from maniple.regions.movement import Use as Use
from maniple.regions.rectangle import Rect, RectSet, by_bounds, merged, overlapping

Near = Callable[[int, int], int]

_NOTHING = Movements()


class UnwrittenRead(RequestError):  # noqa: N818 - it names what happened, as StopIteration does
    """A read of points that no task has written.

    Args:
        rect: some of the points.
    """

    def __init__(self, rect: Rect) -> None:
        super().__init__(f"a read of {rect}, where nothing was ever written: write or fill it first")
        self.rect = rect


def interference(uses: Sequence[Use]) -> tuple[int, int] | None:
    """The positions of two uses that may not be in one launch, or None.

    Two uses of different points interfere where their boxes overlap, unless both read or both reduce with one
    operation. Replicas of one point, which share a key, never interfere.
    """
    kinds = {use.privilege for use in uses}
    if len(kinds) < 2 and not any(kind.writes for kind in kinds):
        return None
    first: dict[tuple[Key, Rect, bool, object], int] = {}
    for position, use in enumerate(uses):
        first.setdefault((use.key, use.rect, use.privilege.writes, use.privilege.op), position)
    places = list(first.values())
    for a, b in overlapping([uses[place].rect for place in places]):
        one, other = uses[places[a]], uses[places[b]]
        alike = one.privilege == other.privilege and not one.privilege.writes
        if one.key != other.key and not alike:
            return places[a], places[b]
    return None


@final
@dataclass(frozen=True, eq=False)
class Validity:
    """Who holds what: for every point of one region, the memories with its value and the contributions to it.

    An immutable value: :meth:`advance` returns the next one. Two are equal if they say the same of every point.
    Build one with :meth:`initial` or :meth:`held`.

    Args:
        cells: disjoint, ascending; points without a cell were never written.
        clock: how many contributions there have been, which numbers them in program order.
    """

    cells: tuple[Cell, ...] = ()
    clock: int = 0

    @staticmethod
    def initial() -> Validity:
        """The state in which nothing is valid and nothing is pending."""
        return Validity()

    @staticmethod
    def held(holdings: Mapping[int, RectSet | Rect]) -> Validity:
        """The state in which each memory holds the valid value of its points.

        Args:
            holdings: memory to points.
        """
        pairs = [
            (memory, rect)
            for memory, points in sorted(holdings.items())
            for rect in ((points,) if isinstance(points, Rect) else points.rects)
        ]
        cells = [
            Cell(rect, tuple(sorted({pairs[place][0] for place in places})))
            for rect, places in arrange([rect for _, rect in pairs])
        ]
        return Validity(grouped(cells))

    @cached_property
    def valid(self) -> Mapping[int, RectSet]:
        """The points whose value each memory holds, by ascending memory; memories without any are left out."""
        rects: dict[int, list[Rect]] = {}
        for cell in self.cells:
            for memory in cell.holders:
                rects.setdefault(memory, []).append(cell.rect)
        return MappingProxyType({memory: RectSet(merged(rects[memory])) for memory in sorted(rects)})

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
        rects: dict[int, list[Rect]] = {}
        known: dict[int, Contribution] = {}
        for cell in self.cells:
            for number, contribution in cell.pending:
                known[number] = contribution
                rects.setdefault(number, []).append(cell.rect)
        return tuple((known[number], RectSet(merged(rects[number]))) for number in sorted(rects))

    @cached_property
    def _meaning(self) -> tuple[object, ...]:
        waiting = tuple((entry.key, entry.memory, entry.op, points) for entry, points in self._waiting)
        return tuple(self.valid.items()), waiting

    def discard(self, rect: Rect) -> Validity:
        """The state after the points of ``rect`` were given up: nothing is valid or pending there."""
        if rect.is_empty or not any(cell.rect.overlaps(rect) for cell in self.cells):
            return self
        rest = [Cell(box, cell.holders, cell.pending) for cell in self.cells for box in cell.rect.subtract(rect)]
        return Validity(grouped(rest), self.clock)

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
                raise _clash_error(live[clash[0]], live[clash[1]])
        plan = _Plan(near)
        if privilege.reduces:
            left = _reduced(self, live, plan)
            return plan.movements(), left
        pieces, cells = cut(self.cells, needs(live))
        if privilege.reads:
            unwritten = [rect for rect, _, cell in pieces if cell is None]
            if unwritten:
                raise UnwrittenRead(min(unwritten, key=by_bounds))
            moved = [plan.read(rect, memories, cell) for rect, memories, cell in pieces if cell is not None]
            if not privilege.writes and not any(moved):
                return _NOTHING, self
        for rect, memories, cell in pieces:
            kept = () if cell is None or cell.pending or privilege.writes else cell.holders
            cells.append(Cell(rect, tuple(sorted({*kept, *memories}))))
        return plan.movements(), Validity(grouped(cells), self.clock)

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
            (str(cell.rect), ", ".join(map(str, cell.holders)) or "-", _told(cell.pending) or "-")
            for cell in self.cells
        ]
        rows = [("points", "valid in", "pending"), *lines]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        return "\n".join(["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows])


def _told(pending: Pending) -> str:
    return ", ".join([f"{entry.op}{entry.key} in {entry.memory}" for _, entry in pending])


def _clash_error(one: Use, other: Use) -> RequestError:
    shared = one.rect.intersect(other.rect)
    return RequestError(
        f"points {one.key} and {other.key} of one launch both write {shared}; make the partition disjoint or use reduce"
    )


def _reduced(state: Validity, uses: Sequence[Use], plan: _Plan) -> Validity:
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
    pieces, cells = cut(state.cells, arrange([contribution.rect for _, contribution in made]))
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
        cells.append(Cell(rect, holders, (*waiting, *added)))
    return Validity(grouped(cells), state.clock + len(made))


@final
class _Plan:
    """The folds and copies of one launch while they are collected."""

    def __init__(self, near: Near | None) -> None:
        self._near = near
        self._copies: dict[tuple[int, int], list[Rect]] = {}
        self._folds: dict[tuple[int, int | None, tuple[int, ...]], list[Rect]] = {}
        self._pending: dict[tuple[int, ...], Pending] = {}

    def read(self, rect: Rect, memories: tuple[int, ...], cell: Cell) -> bool:
        """Bring one box of a cell to the memories that need it; whether anything has to move."""
        if cell.pending:
            self._fold(rect, memories, cell)
            return True
        moved = False
        for rank, target in enumerate(memories):
            if target not in cell.holders:
                sources = self._nearest(target, cell.holders)
                self._copies.setdefault((sources[rank % len(sources)], target), []).append(rect)
                moved = True
        return moved

    def _nearest(self, target: int, holders: tuple[int, ...]) -> tuple[int, ...]:
        if self._near is None or len(holders) == 1:
            return holders
        distances = [self._near(target, holder) for holder in holders]
        least = min(distances)
        return tuple([holder for holder, distance in zip(holders, distances, strict=True) if distance == least])

    def _fold(self, rect: Rect, memories: tuple[int, ...], cell: Cell) -> None:
        contributing = {entry.memory for _, entry in cell.pending}
        # Each choice costs as little as any: an owner that contributes keeps its part, and one that holds the base
        # keeps that.
        owners = (
            [memory for memory in memories if memory in contributing]
            or [memory for memory in memories if memory in cell.holders]
            or list(memories)
        )
        numbers = tuple([number for number, _ in cell.pending])
        self._pending[numbers] = cell.pending
        blocks: tuple[Rect, ...] = (rect,)
        shape = rect.shape
        if len(owners) > 1 and shape:
            axis = shape.index(max(shape))
            blocks = rect.split(axis, min(len(owners), shape[axis]))
        for owner, block in zip(owners, blocks, strict=False):
            base = self._base(owner, contributing, cell.holders)
            self._folds.setdefault((owner, base, numbers), []).append(block)
            for target in memories:
                if target != owner:
                    self._copies.setdefault((owner, target), []).append(block)

    def _base(self, owner: int, contributing: set[int], holders: tuple[int, ...]) -> int | None:
        if not holders or owner in holders:
            return owner if holders else None
        near = self._near
        return min(holders, key=lambda m: (m not in contributing, 0 if near is None else near(owner, m), m))

    def movements(self) -> Movements:
        """What was collected, boxes joined where they can be, by ascending box and then memory."""
        folds: list[Fold] = []
        parts: dict[tuple[int | None, tuple[int, ...]], tuple[Part, ...]] = {}
        for (target, base, numbers), rects in self._folds.items():
            pending = self._pending[numbers]
            if (base, numbers) not in parts:
                parts[base, numbers] = _parts(pending, base)
            folds += [Fold(rect, target, pending[0][1].op, parts[base, numbers]) for rect in merged(rects)]
        folds.sort(key=lambda fold: (fold.rect.lo, fold.target))
        copies = [Copy(rect, *ends) for ends, rects in self._copies.items() for rect in merged(rects)]
        copies.sort(key=lambda copy: (copy.rect.lo, copy.source, copy.target))
        return Movements(tuple(folds), tuple(copies))


def _parts(pending: Pending, base: int | None) -> tuple[Part, ...]:
    keys: dict[int, list[Key]] = {} if base is None else {base: []}
    for _, entry in pending:
        keys.setdefault(entry.memory, []).append(entry.key)
    return tuple(Part(memory, tuple(keys[memory]), memory == base) for memory in sorted(keys))
