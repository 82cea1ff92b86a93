"""Dependence analysis of a program: launches in program order, each against the state of the regions that it uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maniple.regions.error import RequestError
from maniple.regions.privilege import READ
from maniple.regions.rectangle import overlapping
from maniple.regions.validity import Near, UnwrittenRead
from maniple.runtime.analysis import Node, PlacedUse, RegionAnalysis
from maniple.runtime.failure import UnwrittenRegion
from maniple.runtime.fragment import distance

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from maniple.regions.logical_region import LogicalRegion
    from maniple.regions.rectangle import Rect
    from maniple.runtime.analysis import Advance, Move
    from maniple.runtime.launch import Launch, Requirement
    from maniple.runtime.machine import Machine
    from maniple.runtime.schedule import Access

__all__: list[str] = []


@dataclass(frozen=True, slots=True)
class AnalysedUse:
    """What one requirement of a launch came to.

    Args:
        region: id of the region.
        first: number of the first movement below among the region's.
        moves: the movements that must come before the tasks.
        edges: the dependences found.
        accesses: (point, its node in the region, the instance it uses), for the points that use the region.
    """

    region: int
    first: int
    moves: tuple[Move, ...]
    edges: tuple[tuple[Node, Node], ...]
    accesses: tuple[tuple[int, Node, Access], ...]


class ProgramAnalysis:
    """The state of all regions of a program as its launches come.

    Pure: it knows which instances there are and who waits for whom, not where the bytes lie.

    Args:
        machine: says in which memory a processor's instances are.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._near = distance(machine)
        self.regions: dict[int, RegionAnalysis] = {}

    def add(
        self, region: LogicalRegion, home: Mapping[int, Iterable[Rect]] | None = None, near: Near | None = None
    ) -> RegionAnalysis:
        """Start to follow a region.

        Args:
            region: the region.
            home: what is valid where at first; nothing by default.
            near: how far memories are from one another; by default by host.
        """
        near = near or self._near
        made = self.regions[region.id] = RegionAnalysis(region.bounds, home or {}, persistent=True, near=near)
        return made

    def drop(self, region: int) -> None:
        """Stop to follow a region that no launch will name again."""
        del self.regions[region]

    def launch(self, launch: Launch) -> tuple[AnalysedUse, ...]:
        """Analyse a launch: one operation, however many points it has.

        Raises:
            RequestError: points that interfere, or a read before the first write; nothing has changed then.
        """
        check_interference(launch)
        advances: dict[int, Advance] = {}
        found = []
        for requirement in launch.requirements:
            tasks = placed_uses(launch, requirement, self.machine)
            region = requirement.region.id
            advance = advances[region] = self._advance(launch, requirement, tasks, advances.get(region))
            found.append((requirement, tasks, advance))
        return tuple(self._use(requirement, tasks, advance) for requirement, tasks, advance in found)

    def _advance(
        self, launch: Launch, requirement: Requirement, tasks: Sequence[PlacedUse], after: Advance | None
    ) -> Advance:
        try:
            return self.regions[requirement.region.id].advance(requirement.privilege, tasks, after)
        except UnwrittenRead as error:
            raise UnwrittenRegion.of(launch, requirement.region, error) from error
        except RequestError as error:
            msg = f"launch {launch.name}, region {requirement.region.name}: {error}"
            raise RequestError(msg) from error

    def _use(self, requirement: Requirement, tasks: Sequence[PlacedUse], advance: Advance) -> AnalysedUse:
        analysis = self.regions[requirement.region.id]
        accesses = analysis.use(requirement.privilege, tasks, advance)
        first, moves, edges = analysis.take()
        placed = tuple((point, Node(analysis.step, advance.ordinal, point), access) for point, access in accesses)
        return AnalysedUse(requirement.region.id, first, tuple(moves), tuple(edges), placed)


def placed_uses(launch: Launch, requirement: Requirement, machine: Machine) -> tuple[PlacedUse, ...]:
    """Say what each task of a launch does to the region of one requirement."""
    return tuple(
        PlacedUse(i, point.color, point.processor, machine.memory_of(point.processor), rect)
        for i, (point, rect) in enumerate(zip(launch.points, requirement.rects, strict=True))
        if not rect.is_empty
    )


def check_interference(launch: Launch) -> None:
    """Refuse points that conflict through two requirements on one region.

    Raises:
        RequestError: names the points and the elements.
    """
    for i, first in enumerate(launch.requirements):
        for second in launch.requirements[i + 1 :]:
            same_fold = first.privilege.reduces and first.privilege == second.privilege
            conflict = READ not in {first.privilege, second.privilege} or first.privilege != second.privilege
            if first.region.id != second.region.id or not conflict or same_fold:
                continue
            count = len(first.rects)
            crossing = ((a, b - count) for a, b in overlapping((*first.rects, *second.rects)) if a < count <= b)
            pair = min(crossing, default=None)
            if pair is not None:
                a, b = pair
                shared = first.rects[a].intersect(second.rects[b])
                where = "two arguments" if a == b else f"points {launch.points[a]} and {launch.points[b]}"
                msg = (
                    f"launch {launch.name}: {where} both use {first.region.name}{shared}, as {first.privilege} "
                    f"and {second.privilege}; make the rectangles disjoint or launch twice"
                )
                raise RequestError(msg)
