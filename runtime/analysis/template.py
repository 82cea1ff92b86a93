"""Templates: a sequence of launches lowered once for a state of its regions, to be run again and again.

A template is to a trace what Legion's physical template is (Lee et al., "Dynamic Tracing: Memoization of Task Graphs
for Dynamic Task-Based Runtimes", SC 2018, section 4): the recorded analysis with what must hold before it may be
replayed and what holds after. Here both are validities of regions, and the recorded analysis is a `Schedule`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maniple.process.gc_pause import pause_gc
from maniple.regions.index_space import RectSet, part, simplest, union
from maniple.regions.privilege import READ
from maniple.regions.validity import Near, Validity
from maniple.runtime.analysis.dependence import RegionAnalysis
from maniple.runtime.analysis.fragment import FragmentKey
from maniple.runtime.analysis.placed_use import Placing, place_uses
from maniple.runtime.analysis.schedule_builder import ScheduleBuilder
from maniple.runtime.analysis.step_analysis import analyse
from maniple.runtime.schedule.launch import Launch, Point, Requirement
from maniple.runtime.schedule.schedule import InstanceKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from maniple.regions.index_space import IndexSpace
    from maniple.regions.logical_region import LogicalRegion
    from maniple.regions.privilege import Privilege
    from maniple.regions.rectangle import Rect
    from maniple.runtime.analysis.dependence import PlacedUse
    from maniple.runtime.analysis.fragment import Fragment
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.schedule import Schedule

__all__: list[str] = []

_NOTHING = RectSet.empty()

Uses = tuple[tuple["Privilege", "Sequence[PlacedUse]"], ...]


@dataclass(frozen=True, slots=True)
class Template:
    """A lowered sequence of launches.

    Args:
        schedule: what runs.
        entry: for each region, by id, what must be valid where before it.
        exit: what is valid where after it.
        written: the regions whose values it changes.
    """

    schedule: Schedule
    entry: dict[int, Validity]
    exit: dict[int, Validity]
    written: frozenset[int]

    @property
    def recurrent(self) -> bool:
        """Whether it may follow itself."""
        return all(covers(self.exit[region], entry) for region, entry in self.entry.items())

    def applies(self, states: Mapping[int, Validity]) -> bool:
        """Whether regions in these states have all that it needs; more may be valid, nothing may be pending."""
        return all(covers(states[region], entry) for region, entry in self.entry.items())

    def hulls(self) -> dict[tuple[int, int], Rect]:
        """By (region, memory), what its instances of valid values cover."""
        return {
            (self.schedule.regions[instance.region].id, instance.memory): instance.rect
            for instance in self.schedule.instances
            if instance.kind == InstanceKind.MAIN
        }

    def after(self, region: int, state: Validity) -> Validity:
        """What it leaves of a region that was in a state: what it does not touch stays as it was."""
        left = self.exit[region]
        touched = union(list(left.valid.values()))
        written = region in self.written
        held = {}
        for memory in sorted({*left.valid, *state.valid}):
            mine, before = left.valid.get(memory, _NOTHING), state.valid.get(memory, _NOTHING)
            if written:
                before -= touched
            held[memory] = before | mine
        return Validity.of_holdings(held)


def covers(state: Validity, needed: Validity) -> bool:
    """Whether all that one state holds is held by the other, in the same memories."""
    if state is needed:
        return True
    if state.pending:
        return False
    held = state.valid
    return all(memory in held and held[memory].covers(points) for memory, points in needed.valid.items())


@pause_gc()
def lower(
    launches: Sequence[Launch],
    states: Mapping[int, Validity],
    machine: Machine,
    near: Callable[[LogicalRegion], Near],
) -> Template:
    """Lower launches that run again and again.

    Regions are analysed one by one. A region that the launches leave with fewer valid copies than they found is
    analysed from that smaller state, so that the template may follow itself. Contributions that they leave unfolded
    are folded at their end.

    Args:
        launches: the sequence.
        states: what is valid of each region before it, nothing pending.
        machine: the machine.
        near: how far memories are from one another, for each region.

    Raises:
        RequestError: interfering tasks, or a read before the first write.
    """
    uses: dict[LogicalRegion, list[tuple[Privilege, Sequence[PlacedUse]]]] = {}
    placing = Placing(machine)
    for launch in launches:
        for requirement in launch.requirements:
            tasks = placing.uses(launch, requirement)
            uses.setdefault(requirement.region, []).append((requirement.privilege, tasks))
    ends = []
    for region, found in uses.items():
        closing = _closing(region, tuple(found), states[region.id], machine, near(region))
        if closing is not None:
            ends.append(closing)
            (requirement,) = closing.requirements
            found.append((requirement.privilege, place_uses(closing, requirement, machine)))
    settled = {region: _settle(region, tuple(found), states[region.id], near(region)) for region, found in uses.items()}
    fragments = [fragment for _, fragment in settled.values()]
    schedule = ScheduleBuilder(machine, (*launches, *ends), tuple(settled), fragments).compose()
    return Template(
        schedule,
        {region.id: entry for region, (entry, _) in settled.items()},
        {region.id: fragment.leaves for region, (_, fragment) in settled.items()},
        frozenset(
            region.id
            for region, found in uses.items()
            if any(privilege.writes or privilege.reduces for privilege, _ in found)
        ),
    )


def _settle(region: LogicalRegion, uses: Uses, state: Validity, near: Near) -> tuple[Validity, Fragment]:
    """Find a state, covered by the given one, from which the uses lead back to it; else take the given one."""
    given = fragment = _analyse(region, uses, state, near)
    entry = state
    for _ in range(2):
        if covers(fragment.leaves, entry):
            return entry, fragment
        if not covers(entry, fragment.leaves):
            break
        entry = fragment.leaves
        fragment = _analyse(region, uses, entry, near)
    return (entry, fragment) if covers(fragment.leaves, entry) else (state, given)


def _analyse(region: LogicalRegion, uses: Uses, state: Validity, near: Near) -> Fragment:
    home = tuple((memory, points.rects) for memory, points in state.valid.items())
    return analyse(FragmentKey(region.bounds, home, uses), near)


def _closing(region: LogicalRegion, uses: Uses, state: Validity, machine: Machine, near: Near) -> Launch | None:
    if not any(privilege.reduces for privilege, _ in uses):
        return None
    analysis = RegionAnalysis(region.bounds, {}, near=near)
    enter(analysis, state)
    for privilege, tasks in uses:
        analysis.use(privilege, tasks)
    return close(region, analysis.validity, machine)


def close(region: LogicalRegion, state: Validity, machine: Machine) -> Launch | None:
    """Make the launch that folds the contributions that wait, evenly spread over the memories that made some.

    Its tasks read what is pending and do nothing; None when nothing is pending.
    """
    if not state.pending:
        return None
    memories = sorted({contribution.memory for contribution in state.pending})
    points: list[Point] = []
    rects: list[IndexSpace] = []
    waiting = union([contribution.rect for contribution in state.pending])
    for memory, piece in zip(memories, part(simplest(waiting, region.bounds.ndim), len(memories)), strict=False):
        points.append(Point((len(points),), machine.processors_of(memory)[0]))
        rects.append(piece)
    return Launch("close", tuple(points), (Requirement(region, READ, tuple(rects)),), _idle)


def enter(analysis: RegionAnalysis, state: Validity) -> None:
    """Have an analysis go on from a state in which nothing is pending."""
    for memory, points in state.valid.items():
        analysis.reserve(memory, points.bounds)
    analysis.validity = state


def _idle(point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], None]:
    return _nothing


def _nothing() -> None:
    """Do nothing: the folds that come before are all that is wanted."""
