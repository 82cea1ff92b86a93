"""Uses: what the tasks of a launch do to one region, and what that comes to before and after analysis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maniple.regions.privilege import Coherence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maniple.regions.index_space import IndexSpace
    from maniple.regions.rectangle import Rect
    from maniple.regions.validity import Movements, Validity
    from maniple.runtime.analysis.instance_table import Node
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.launch import Launch, Requirement
    from maniple.runtime.schedule.schedule import Access, Piece, RowKind, Transfer

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
    """

    ordinal: int
    movements: Movements
    validity: Validity

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
            yield from ((use.memory, use.rect.bounds.volume) for use in uses)
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


class Placing:
    """The uses of launches, the same object for launches that have their points and requirements in common.

    Args:
        machine: says in which memory a processor's instances are.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._known: dict[tuple[int, int], tuple[tuple[object, ...], tuple[PlacedUse, ...]]] = {}

    def uses(self, launch: Launch, requirement: Requirement) -> tuple[PlacedUse, ...]:
        """Give the uses of a launch's points that use a requirement's region at all."""
        key = (id(launch.points), id(requirement))
        known = self._known.get(key)
        if known is None:
            kept = (launch.points, requirement)  # what ids stand for must not be let go of
            known = self._known[key] = kept, place_uses(launch, requirement, self._machine)
        return known[1]


def place_uses(launch: Launch, requirement: Requirement, machine: Machine) -> tuple[PlacedUse, ...]:
    """Give the uses of a launch's points that use a requirement's region at all."""
    together = requirement.coherence is Coherence.SIMULTANEOUS
    return tuple(
        PlacedUse(i, point.color, point.processor, machine.memory_of(point.processor), rect, together)
        for i, (point, rect) in enumerate(zip(launch.points, requirement.rects, strict=True))
        if not rect.is_empty
    )
