"""A graph under a plan is lowered from cached fragments; the same launches, analysed one by one, give the same rows.

Here they are laid out by hand: for each launch the movements that its requirements need, then its tasks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import settings
from planned_step import MACHINES, described, plans, program

import maniple as mp
from maniple.operators.lowering.step_program import FragmentCache, Program, lower
from maniple.regions.index_space import IndexSpace, union
from maniple.regions.rectangle import Rect
from maniple.runtime.analysis.dependence import Move, Node
from maniple.runtime.analysis.program_analysis import ProgramAnalysis
from maniple.runtime.schedule.schedule import Access, InstanceKind, RowKind, Schedule

# Random plans of each network, over all machines.
SEEDS = max(16, settings().max_examples // 8)

Named = tuple[str, int, int, int]
Row = tuple[object, ...]


@dataclass
class Layout:
    """Rows and dependences in a form that does not depend on how instances are numbered.

    An instance is named by its region, memory and kind, and by how many of these were named before it.
    """

    rows: list[Row] = field(default_factory=list)
    edges: set[tuple[int, int]] = field(default_factory=set)
    rects: dict[Named, Rect] = field(default_factory=dict)
    _names: dict[tuple[str, int], Named] = field(default_factory=dict)

    def named(self, region: str, number: int, place: tuple[int, int, Rect]) -> Named:
        """The name of an instance: its region and number there, and (memory, kind, rectangle)."""
        memory, kind, rect = place
        if (region, number) not in self._names:
            alike = sum(name[:3] == (region, memory, int(kind)) for name in self._names.values())
            self._names[region, number] = (region, memory, int(kind), alike)
        name = self._names[region, number]
        self.rects[name] = rect
        return name

    def settle(self, extents: Mapping[str, Mapping[int, tuple[int, InstanceKind, Rect]]]) -> None:
        """Give every instance the extent that it has at the end: extents grow while a program is analysed."""
        for (region, number), name in self._names.items():
            self.rects[name] = extents[region][number][2]


def used(kind: int, accesses: Sequence[Access], named: Callable[[int], Named]) -> object:
    """What a row uses, one after the other; of a collective, once all that it pushes is named, all of each instance."""
    if kind <= RowKind.COPY:
        return tuple((named(a.instance), a.rect, a.writes, a.slot) for a in accesses)
    spaces: dict[tuple[Named, bool], list[IndexSpace]] = defaultdict(list)
    for access in accesses:
        spaces[named(access.instance), access.writes].append(access.rect)
    return {key: union(own) for key, own in spaces.items()}


def of_schedule(schedule: Schedule) -> Layout:
    layout = Layout()

    def named(number: int) -> Named:
        instance = schedule.instances[number]
        region = schedule.regions[instance.region].name
        return layout.named(region, number, (instance.memory, instance.kind, instance.rect))

    for row in range(len(schedule)):
        region = int(schedule.region[row])
        layout.rows.append(
            (
                RowKind(int(schedule.kind[row])),
                int(schedule.launch[row]),
                int(schedule.point[row]),
                int(schedule.processor[row]),
                "" if region < 0 else schedule.regions[region].name,
                int(schedule.bytes[row]),
                tuple((named(p.source), named(p.target), p.rect, p.feeds, p.after) for p in schedule.transfers(row)),
                tuple(
                    (p.memory, named(p.target), p.rect, tuple(map(named, p.parts)), p.op)
                    for p in schedule.pieces.get(row, ())
                ),
                schedule.folds.get(row, ""),
                used(schedule.kind[row], schedule.accesses(row), named),
            )
        )
    layout.edges = set(schedule.edges())
    return layout


def of_launches(steps: Program, machine: mp.Machine) -> Layout:
    """Feed the launches, in program order, to the analysis that programs of launches go through."""
    layout = Layout()
    analysis = ProgramAnalysis(machine, moving=False)
    regions = {region.id: region for region in steps.regions()}
    for region in regions.values():
        home = steps.homes.get(region.id, ())
        state = analysis.add(region, dict(home))
        for memory, rects in home:
            for rect in rects:
                state.reserve(memory, rect)
    row_of: dict[tuple[int, Node], int] = {}
    edges: list[tuple[int, Node, Node]] = []

    def named(region: int, number: int) -> Named:
        return layout.named(regions[region].name, number, analysis.regions[region].extents[number])

    def movement(launch: int, region: int, move: Move) -> Row:
        return (
            move.kind,
            launch,
            -1,
            move.processor,
            regions[region].name,
            sum(push.rect.volume for push in move.transfers) * regions[region].itemsize,
            tuple((named(region, p.source), named(region, p.target), p.rect, p.feeds, p.after) for p in move.transfers),
            tuple(
                (p.memory, named(region, p.target), p.rect, tuple(named(region, part) for part in p.parts), p.op)
                for p in move.pieces
            ),
            move.op,
            used(move.kind, move.accesses, partial(named, region)),
        )

    for number, launch in enumerate(steps.launches):
        uses = analysis.launch(launch)
        tasks: list[list[tuple[int, int, Access]]] = [[] for _ in launch.points]
        nodes: list[list[tuple[int, Node]]] = [[] for _ in launch.points]
        for slot, use in enumerate(uses):
            for item, move in enumerate(use.moves, use.first):
                row_of[use.region, Node(0, -1, item)] = len(layout.rows)
                layout.rows.append(movement(number, use.region, move))
            for point, node, access in use.accesses:
                tasks[point].append((use.region, slot, access))
                nodes[point].append((use.region, node))
            edges += [(use.region, before, after) for before, after in use.edges]
        for point, placed in enumerate(launch.points):
            row_of |= dict.fromkeys(nodes[point], len(layout.rows))
            accesses = tuple(
                (named(region, access.instance), access.rect, access.writes, slot)
                for region, slot, access in tasks[point]
            )
            layout.rows.append((RowKind.TASK, number, point, placed.processor, "", 0, (), (), "", accesses))
    pairs = {(row_of[region, before], row_of[region, after]) for region, before, after in edges}
    layout.edges = {(before, after) for before, after in pairs if before != after}
    layout.settle({region.name: analysis.regions[key].extents for key, region in regions.items()})
    return layout


def differences(found: Layout, wanted: Layout) -> list[str]:
    """What two layouts differ in, the first row of it in full."""
    faults = [f"{len(found.rows)} rows, wanted {len(wanted.rows)}"] if len(found.rows) != len(wanted.rows) else []
    for number, (mine, its) in enumerate(zip(found.rows, wanted.rows, strict=False)):
        if mine != its:
            faults.append(f"row {number}: {mine}\n     wanted {its}")
            break
    if found.edges != wanted.edges:
        faults.append(f"dependences {sorted(found.edges ^ wanted.edges)}")
    if found.rects != wanted.rects:
        faults.append(f"instances {sorted(set(found.rects.items()) ^ set(wanted.rects.items()), key=str)}")
    return faults


@pytest.mark.parametrize("machine", MACHINES, ids=described)
def test_fragments_and_launches_give_the_same_rows(machine: mp.Machine) -> None:
    first = 1000 * MACHINES.index(machine)
    for label, graph, plan, _ in plans(SEEDS // len(MACHINES), first, (machine,)):
        steps = program(graph, plan, machine)
        found = differences(of_schedule(lower(steps, FragmentCache(machine))), of_launches(steps, machine))
        assert found == [], label


def test_a_cache_that_is_shared_between_plans_changes_nothing() -> None:
    caches = {machine: FragmentCache(machine) for machine in MACHINES}
    for label, graph, plan, machine in plans(SEEDS // len(MACHINES)):
        steps = program(graph, plan, machine)
        assert lower(steps, caches[machine]).text() == lower(steps, FragmentCache(machine)).text(), label
    assert sum(cache.hits for cache in caches.values()) > 100


def test_a_difference_is_seen() -> None:
    machine = mp.Machine.cpu(1, ranks=2)
    _, graph, plan, _ = next(plans(0, machines=(machine,)))
    steps = program(graph, plan, machine)
    found = of_schedule(lower(steps, FragmentCache(machine)))
    elsewhere = {region.id: ((0, (region.bounds,)),) for region in steps.regions() if region.id in steps.homes}
    assert elsewhere != steps.homes
    assert len(differences(found, of_launches(Program(steps.launches, elsewhere), machine))) > 1
    late = of_launches(steps, machine)
    late.edges.pop()
    assert len(differences(found, late)) == 1
