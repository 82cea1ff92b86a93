"""Dependence analysis of a program: launches in program order, each against the state of the regions that it uses."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from maniple.process.error import RequestError
from maniple.regions.index_space import crossing, intersect
from maniple.regions.privilege import READ, Coherence
from maniple.regions.validity import Clash, Near, UnwrittenRead
from maniple.runtime.analysis.analysis_cache import AnalysisCache
from maniple.runtime.analysis.capacity import NOTHING, Occupancy
from maniple.runtime.analysis.dependence import RegionAnalysis
from maniple.runtime.analysis.fragment import HostDistance
from maniple.runtime.analysis.placed_use import AnalysedUse as AnalysedUse
from maniple.runtime.analysis.placed_use import place_uses as place_uses
from maniple.runtime.schedule.failure import UnwrittenRegion

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from maniple.regions.logical_region import LogicalRegion
    from maniple.regions.rectangle import Rect
    from maniple.runtime.analysis.capacity import Eviction, Resident
    from maniple.runtime.analysis.dependence import Advance, PlacedUse
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.launch import Launch, Requirement

__all__: list[str] = []


class ProgramAnalysis:
    """The state of all regions of a program as its launches come.

    Pure: it knows which instances there are and who waits for whom, not where the bytes lie.

    Args:
        machine: says in which memory a processor's instances are, and how much a memory holds.
        moving: whether an instance that must grow is moved to a larger one by a row of its own. If not, all of the
            program is analysed before it runs, and an instance gets the room that it needs in the end.
        memories: those whose tasks and movements somebody wants to hear of; None for all.
    """

    def __init__(self, machine: Machine, *, moving: bool = True, memories: Container[int] | None = None) -> None:
        self.machine = machine
        self._moving = moving
        self._near = HostDistance.of(machine)
        self.regions: dict[int, RegionAnalysis] = {}
        self._logical: dict[int, LogicalRegion] = {}
        self._occupancy = Occupancy(machine, self.regions, self._logical)
        self._recurrence = AnalysisCache(self.regions, memories)

    def add(
        self, region: LogicalRegion, home: Mapping[int, Iterable[Rect]] | None = None, near: Near | None = None
    ) -> RegionAnalysis:
        """Start to follow a region.

        Args:
            region: the region.
            home: what is valid where at first; nothing by default.
            near: how far memories are from one another; by default by host.
        """
        made = self.regions[region.id] = RegionAnalysis(
            region.bounds,
            home or {},
            near=near or self._near,
            mover=self._first_processor if self._moving else None,
        )
        self._logical[region.id] = region
        return made

    def _first_processor(self, memory: int) -> int:
        return self.machine.processors_of(memory)[0]

    def drop(self, region: int) -> None:
        """Stop to follow a region that no launch will name again."""
        self._occupancy.drop(region)
        self._recurrence.forget(region)
        del self.regions[region], self._logical[region]

    def check_written(self, launch: Launch) -> None:
        """Refuse a launch some point of which would read what no earlier launch has written.

        Raises:
            RequestError: names the region and the elements.
        """
        for requirement in launch.requirements:
            if requirement.privilege.reads:
                missing = self.regions[requirement.region.id].validity.find_unwritten(requirement.rects)
                if missing is not None:
                    raise UnwrittenRegion.of(launch, requirement.region, UnwrittenRead(missing))

    def launch(self, launch: Launch, *, again: bool = False) -> tuple[AnalysedUse, ...]:
        """Analyse a launch: one operation, however many points it has.

        Args:
            launch: the launch.
            again: whether it was analysed before, with the same objects for points and requirements, so that it may be
                worth while to remember what it comes to.

        Returns:
            What each requirement came to, in their order, and behind them what was evicted to make room. Movements are
            told in full; tasks and dependences as far as they concern the memories.

        Raises:
            RequestError: points that interfere, a read before the first write, or a memory that is too small; nothing
                has changed then.
        """
        if not again:
            return tuple(map(self._recurrence.follows, self._analyse(launch)))
        regions = tuple(dict.fromkeys([requirement.region.id for requirement in launch.requirements]))
        what = (launch.points, launch.requirements)
        found = self._recurrence.launch(what, regions, partial(self._analyse, launch))
        for use in found:
            self._occupancy.note_use(use.region)
        return found

    def _analyse(self, launch: Launch) -> tuple[AnalysedUse, ...]:
        check_interference(launch)
        advances: dict[int, Advance] = {}
        found = []
        for requirement in launch.requirements:
            tasks = place_uses(launch, requirement, self.machine)
            region = requirement.region.id
            advance = advances[region] = self._advance(launch, requirement, tasks, advances.get(region))
            found.append((requirement, tasks, advance))
        rooms, others = self._demand(found)
        evictions = self._occupancy.evictions(f"launch {launch.name}", rooms, others)
        evicted = tuple(self._evict(eviction) for eviction in evictions)
        if self._moving:
            for (region, memory), rect in rooms.items():
                self.regions[region].make_room(memory, rect)
        uses = tuple([self._use(*each) for each in found])
        for region in (*advances, *dict.fromkeys(eviction.region for eviction in evictions)):
            self._occupancy.note(region)
        return uses + evicted

    def make_room(
        self, name: str, hulls: Mapping[tuple[int, int], Rect], besides: Mapping[int, Sequence[Resident]] = NOTHING
    ) -> tuple[AnalysedUse, ...]:
        """Evict what a recorded sequence of launches does not use, as far as memories need room for what it does.

        Args:
            name: what messages call it.
            hulls: by (region, memory) what its instances of valid values cover.
            besides: by memory, what a run of it takes there beside those.

        Raises:
            RequestError: a memory is too small; nothing has changed then.
        """
        rooms = {}
        for (region, memory), rect in hulls.items():
            analysis = self.regions[region]
            room = analysis.instances.growth(memory, rect, analysis.bounds)
            if room is not None:
                rooms[region, memory] = room
        stays = dict.fromkeys(hulls, 0)  # what it has already
        evictions = self._occupancy.evictions(name, rooms, stays, besides)
        evicted = tuple(self._evict(eviction) for eviction in evictions)
        for region in dict.fromkeys(eviction.region for eviction in evictions):
            self._occupancy.note(region)
        return evicted

    def note_replay(self, region: int) -> None:
        """Count the instances of a region again after a replay used it."""
        self._occupancy.note(region)

    def _demand(
        self, found: Sequence[tuple[Requirement, tuple[PlacedUse, ...], Advance]]
    ) -> tuple[dict[tuple[int, int], Rect], dict[tuple[int, int], int]]:
        """What a launch asks of the memories, by (region, memory).

        Returns:
            The room that instances of valid values get where they must grow, and the elements of all others.
        """
        hulls: dict[tuple[int, int], Rect] = {}
        others: dict[tuple[int, int], int] = {}
        for requirement, tasks, advance in found:
            region = requirement.region.id
            for memory, rect in advance.needs(requirement, tasks):
                known = hulls.get((region, memory))
                hulls[region, memory] = rect if known is None else known.hull(rect)
            for memory, elements in advance.takes(requirement, tasks):
                others[region, memory] = others.get((region, memory), 0) + elements
        rooms: dict[tuple[int, int], Rect] = {}
        for (region, memory), rect in hulls.items():
            analysis = self.regions[region]
            room = analysis.instances.growth(memory, rect, analysis.bounds)
            if room is not None:
                rooms[region, memory] = room
        return rooms, others

    def _advance(
        self, launch: Launch, requirement: Requirement, tasks: Sequence[PlacedUse], after: Advance | None
    ) -> Advance:
        try:
            return self.regions[requirement.region.id].advance(requirement.privilege, tasks, after)
        except UnwrittenRead as error:
            raise UnwrittenRegion.of(launch, requirement.region, error) from error
        except RequestError as error:
            # A key of the analysis is the number of the launch and the point's colour; a program knows the colour.
            told = error.describe(error.one.key[1:], error.other.key[1:]) if isinstance(error, Clash) else error
            msg = f"launch {launch.name}, region {requirement.region.name}: {told}"
            raise RequestError(msg) from error

    def _use(self, requirement: Requirement, tasks: Sequence[PlacedUse], advance: Advance) -> AnalysedUse:
        region = requirement.region.id
        return self.regions[region].use_again(region, requirement.privilege, tasks, advance, fills=requirement.fills)

    def _evict(self, eviction: Eviction) -> AnalysedUse:
        analysis = self.regions[eviction.region]
        gone = analysis.evict(eviction.memory, eviction.refuge)
        first, moves, edges = analysis.take()
        return AnalysedUse(eviction.region, first, tuple(moves), tuple(edges), (), evicted=gone)


def check_interference(launch: Launch) -> None:
    """Refuse points that conflict through two requirements on one region.

    Raises:
        RequestError: names the points and the elements.
    """
    for i, first in enumerate(launch.requirements):
        for second in launch.requirements[i + 1 :]:
            same_fold = first.privilege.reduces and first.privilege == second.privilege
            conflict = READ not in {first.privilege, second.privilege} or first.privilege != second.privilege
            together = first.coherence is second.coherence is Coherence.SIMULTANEOUS
            if first.region.id != second.region.id or not conflict or same_fold or together:
                continue
            count = len(first.rects)
            used = [(place, space) for place, space in enumerate((*first.rects, *second.rects)) if not space.is_empty]
            pairs = ((used[a][0], used[b][0]) for a, b in crossing([space for _, space in used]))
            pair = min(((a, b - count) for a, b in pairs if a < count <= b), default=None)
            if pair is not None:
                a, b = pair
                both = intersect(first.rects[a], second.rects[b])
                where = "two arguments" if a == b else f"points {launch.points[a]} and {launch.points[b]}"
                msg = (
                    f"launch {launch.name}: {where} both use {first.region.name}{both}, as {first.privilege} "
                    f"and {second.privilege}; make the rectangles disjoint or launch twice"
                )
                raise RequestError(msg)
