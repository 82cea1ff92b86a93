"""Uses: what the tasks of a launch do to one region, and what that comes to before and after analysis."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.regions.privilege import Coherence
from maniple.regions.rectangle import Rect
from maniple.runtime.schedule.launch_columns import Points, Rects
from maniple.runtime.schedule.on_demand import OnDemand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from maniple.regions.index_space import IndexSpace
    from maniple.regions.validity import Movements, Validity
    from maniple.runtime.analysis.instance_table import Node
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.launch import Launch, Requirement
    from maniple.runtime.schedule.schedule import Access, Piece, RowKind, Transfer

    Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]

__all__: list[str] = []


@dataclass(frozen=True, slots=True)
class PlacedUse:
    """What one task of a launch does to the region.

    Args:
        point: index of the task in its launch.
        color: the point of the launch domain; replicas of one point share it.
        processor: where the task runs.
        memory: the memory of that processor.
        rect: the elements that it uses; empty if none.
        shared: whether other tasks of the memory may use them meanwhile (simultaneous coherence).
    """

    point: int
    color: tuple[int, ...]
    processor: int
    memory: int
    rect: IndexSpace
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """A movement that one use of the region needs before its tasks run.

    Args:
        kind: FOLD, COPY or a collective.
        processor: the processor of a fold; -1 between memories.
        accesses: the instances used; for a fold slot 0 is the target and 1.. the parts in fold order.
        transfers: the pushes between memories.
        pieces: the folds inside a collective.
        op: symbol of the reduction operator of a FOLD.
        elements: how many elements leave a memory.
    """

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
        joins: by point, the key of the contribution that a task adds to, of those that make none of their own.
    """

    ordinal: int
    movements: Movements
    validity: Validity
    joins: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def needs(self, requirement: Requirement, uses: Sequence[PlacedUse]) -> Iterator[tuple[int, Rect]]:
        """Give the rectangles for which instances of valid values must have room, with their memories."""
        if not requirement.privilege.reduces and not requirement.fills:
            yield from ((use.memory, use.rect.bounds) for use in uses)
        for copy in self.movements.copies:
            yield from ((memory, copy.rect.bounds) for memory in (copy.source, copy.target))
        for fold in self.movements.folds:
            yield fold.target, fold.rect.bounds
            yield from ((part.memory, fold.rect.bounds) for part in fold.parts if part.base)

    def takes(self, requirement: Requirement, uses: Sequence[PlacedUse]) -> Iterator[tuple[int, int]]:
        """Give how many elements the contributions have, and the tiles on their way to folds, with their memories."""
        if requirement.privilege.reduces:
            yield from ((use.memory, use.rect.bounds.volume) for use in uses if use.point not in self.joins)
        for fold in self.movements.folds:
            for part in fold.parts:
                if part.memory != fold.target:
                    yield fold.target, fold.rect.bounds.volume
                    if len(part.keys) + part.base > 1:
                        yield part.memory, fold.rect.bounds.volume


@dataclass(frozen=True, slots=True)
class AnalysedUse:
    """What one requirement of a launch came to.

    Args:
        region: id of the region.
        first: number of the first movement below among the region's.
        moves: the movements that must come before the tasks.
        edges: the dependences found.
        accesses: (point, its node in the region, the instance it uses), for the points that use the region.
        ordinal: number of the use among the region's; -1 of an eviction.
        evicted: the instance that gives up its room, -1 if none does.
    """

    region: int
    first: int
    moves: tuple[Move, ...]
    edges: tuple[tuple[Node, Node], ...]
    accesses: tuple[tuple[int, Node, Access], ...]
    ordinal: int = -1
    evicted: int = -1


# Columns of placed uses; the low ends of a box follow, and then its high ends.
POINT, COLOR, PROCESSOR, MEMORY, BOX = range(5)
FEW = 4
"""By so many uses others are told apart before all are compared."""


@final
class PlacedUses(OnDemand[PlacedUse]):
    """Uses of boxes as columns, in which those of two regions are compared.

    Args:
        table: (point, number of the colour, processor, memory, low ends, high ends) of each use.
        colors: the point of the launch domain of every task of the launch.
    """

    __slots__ = ("_colors", "_made", "table")

    def __init__(self, table: Table, colors: Callable[[int], tuple[int, ...]]) -> None:
        self.table, self._colors = table, colors
        self._made: tuple[PlacedUse, ...] | None = None

    @classmethod
    def of(cls, uses: Sequence[PlacedUse]) -> PlacedUses | None:
        """Give uses as columns; None where these do not hold them."""
        if isinstance(uses, PlacedUses):
            return uses
        rows, colors = [], dict[tuple[int, ...], int]()
        for use in uses:
            if use.shared or not isinstance(use.rect, Rect):
                return None
            color = colors.setdefault(use.color, len(colors))
            rows.append((use.point, color, use.processor, use.memory, *use.rect.lo, *use.rect.hi))
        of_point = {use.point: use.color for use in uses}
        width = len(rows[0]) if rows else BOX
        return cls(np.asarray(rows, dtype=np.int64).reshape(len(rows), width), of_point.__getitem__)

    def __len__(self) -> int:
        """Count them."""
        return len(self.table)

    def item(self, number: int) -> PlacedUse:
        """Give one of them."""
        return self._all()[number]

    def __iter__(self) -> Iterator[PlacedUse]:
        """Give all of them."""
        return iter(self._all())

    def _all(self) -> tuple[PlacedUse, ...]:
        if self._made is None:
            axes = (self.table.shape[1] - BOX) // 2
            self._made = tuple(
                [
                    PlacedUse(point, self._colors(point), by, memory, Rect(tuple(box[:axes]), tuple(box[axes:])))
                    for point, _, by, memory, *box in self.table.tolist()
                ]
            )
        return self._made

    def __eq__(self, other: object) -> bool:
        """Whether others are of the same tasks in the same places, and use the same boxes."""
        if not isinstance(other, PlacedUses):
            return False
        return other is self or np.array_equal(self.table, other.table)

    def __hash__(self) -> int:
        """By how many there are, the first of them and the last: blocks of other sizes begin and end elsewhere."""
        return hash((self.table.shape, self.table[:FEW].tobytes(), self.table[-1:].tobytes()))


class Placing:
    """The uses of launches, the same object for launches that have their points and boxes in common.

    Args:
        machine: says in which memory a processor's instances are.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._memories = np.asarray([processor.memory for processor in machine.processors], dtype=np.int64)
        self._known: dict[tuple[int, ...], tuple[tuple[object, ...], Sequence[PlacedUse]]] = {}
        self._tasks: dict[int, tuple[Points, Table]] = {}

    def uses(self, launch: Launch, requirement: Requirement) -> Sequence[PlacedUse]:
        """Give the uses of a launch's points that use a requirement's region at all."""
        key = (id(launch.points), id(requirement.rects), id(requirement.coherence))
        known = self._known.get(key)
        if known is None:
            kept = (launch.points, requirement.rects)  # what ids stand for must not be let go of
            known = self._known[key] = kept, self._place(launch, requirement)
        return known[1]

    def _place(self, launch: Launch, requirement: Requirement) -> Sequence[PlacedUse]:
        points, rects = launch.points, requirement.rects
        if requirement.coherence is Coherence.SIMULTANEOUS or not isinstance(rects, Rects):
            return place_uses(launch, requirement, self._machine)
        if not isinstance(points, Points):
            return place_uses(launch, requirement, self._machine)
        low, high = rects.bounds[:, :, 0], rects.bounds[:, :, 1]
        table = np.concatenate((self._placed(points), low, high), axis=1)
        there = (high > low).all(axis=1)
        return PlacedUses(table if there.all() else table[there], lambda point: points[point].color)

    def _placed(self, points: Points) -> Table:
        """The number, colour, processor and memory of each point."""
        found = self._tasks.get(id(points))
        if found is None:
            numbers = np.arange(len(points))
            firsts = np.concatenate(([0], np.cumsum(points.numbers[1:] != points.numbers[:-1])))[: len(points)]
            where = points.processors
            found = self._tasks[id(points)] = points, np.column_stack((numbers, firsts, where, self._memories[where]))
        return found[1]


def place_uses(launch: Launch, requirement: Requirement, machine: Machine) -> tuple[PlacedUse, ...]:
    """Give the uses of a launch's points that use a requirement's region at all."""
    together = requirement.coherence is Coherence.SIMULTANEOUS
    return tuple(
        PlacedUse(i, point.color, point.processor, machine.memory_of(point.processor), rect, together)
        for i, (point, rect) in enumerate(zip(launch.points, requirement.rects, strict=True))
        if not rect.is_empty
    )
