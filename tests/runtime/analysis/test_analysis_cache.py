"""What is remembered of a launch is what its analysis would come to again."""

from __future__ import annotations

from collections.abc import Container
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.process.error import RequestError
from maniple.regions.logical_region import LogicalRegion
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, reduce
from maniple.regions.rectangle import Rect
from maniple.runtime.analysis.dependence import Node
from maniple.runtime.analysis.placed_use import AnalysedUse
from maniple.runtime.analysis.program_analysis import ProgramAnalysis
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.launch import Launch, Point, Requirement

EXTENT = 12
RANKS = 3
REGIONS = tuple(LogicalRegion(number, f"x{number}", Rect.of_shape((EXTENT,)), "float32") for number in range(2))
START = Launch(
    "start",
    (Point((), 0),),
    tuple(Requirement(region, WRITE_DISCARD, (region.bounds,)) for region in REGIONS),
)


def analysis(memories: Container[int] | None = None) -> ProgramAnalysis:
    program = ProgramAnalysis(Machine.cpu(1, ranks=RANKS), memories=memories)
    for region in REGIONS:
        program.add(region)
    return program


@st.composite
def launches(draw: st.DrawFn) -> Launch:
    count = draw(st.integers(1, 4))
    requirements = []
    for region in draw(st.sampled_from([REGIONS[:1], REGIONS[1:], REGIONS])):
        privilege = draw(st.sampled_from([READ, READ, READ_WRITE, WRITE_DISCARD, reduce("+")]))
        cuts = draw(st.lists(st.integers(0, EXTENT), min_size=count + 1, max_size=count + 1, unique=True).map(sorted))
        halo = 0 if privilege.writes else draw(st.integers(0, 2))
        rects = [Rect((max(0, a - halo),), (min(EXTENT, b + halo),)) for a, b in pairwise(cuts)]
        requirements.append(Requirement(region, privilege, tuple(rects)))
    points = tuple(Point((index,), draw(st.integers(0, RANKS - 1))) for index in range(count))
    return Launch("work", points, tuple(requirements))


def told(uses: tuple[AnalysedUse, ...]) -> list[object]:
    """What a launch came to; a dependence may be told twice."""
    return [
        (
            use.region,
            use.first,
            [(move.kind, move.processor, move.accesses, move.transfers, move.pieces, move.op) for move in use.moves],
            set(use.edges),
            use.accesses,
            use.ordinal,
            use.evicted,
        )
        for use in uses
    ]


@given(st.lists(launches(), min_size=1, max_size=4), st.lists(st.integers(0, 3), max_size=12), st.data())
def test_remembered_launches_come_to_what_analysed_ones_do(
    shapes: list[Launch], mixed: list[int], data: st.DataObject
) -> None:
    plain, remembering = analysis(), analysis()
    for launch in (START, *(shapes[number % len(shapes)] for number in mixed), *shapes * 4):
        assert told(plain.launch(launch)) == told(remembering.launch(launch, again=True))
        for region in REGIONS:
            mine, its = (program.regions[region.id] for program in (plain, remembering))
            assert mine.validity == its.validity
        if data.draw(st.booleans()):  # rows end, now and then, and what they did need not be remembered
            for program in (plain, remembering):
                for region in REGIONS:
                    program.regions[region.id].forget(lambda node: (node.use + node.item) % 3 > 0)


@given(st.lists(launches(), min_size=1, max_size=4), st.lists(st.integers(0, 3), max_size=8), st.booleans())
def test_a_rank_follows_its_own_nodes(shapes: list[Launch], mixed: list[int], again: bool) -> None:
    """Of all that is told, a rank is told of its tasks, and for whom these and its movements wait of its own."""
    whole, part = analysis(), analysis({1})
    mine: set[tuple[int, Node]] = set()
    for launch in (START, *(shapes[number % len(shapes)] for number in mixed), *shapes * 3):
        for use, told in zip(whole.launch(launch), part.launch(launch, again=again), strict=True):
            extents = whole.regions[use.region].extents
            moves = [(Node(0, -1, number), move.accesses) for number, move in enumerate(use.moves, use.first)]
            tasks = [(node, (access,)) for _, node, access in use.accesses]
            own = {node for node, accesses in (*moves, *tasks) if any(extents[a.instance][0] == 1 for a in accesses)}
            mine |= {(use.region, node) for node in own}
            assert told.accesses == tuple(access for access in use.accesses if access[1] in own)
            assert (told.moves, told.first) == (use.moves, use.first)
            wanted, found = (
                {(a, b) for a, b in edges if (use.region, a) in mine and b in own} for edges in (use.edges, told.edges)
            )
            assert wanted == found
            assert {after for _, after in told.edges} <= own


def halo_step(step: int) -> Launch:
    """A stencil of four points on two ranks, from one region to the other."""
    own = tuple(Rect((3 * i,), (3 * i + 3,)) for i in range(4))
    near = tuple(Rect((max(0, 3 * i - 1),), (min(EXTENT, 3 * i + 4),)) for i in range(4))
    points = tuple(Point((i,), i // 2) for i in range(4))
    source, target = REGIONS[step % 2], REGIONS[1 - step % 2]
    return Launch("stencil", points, (Requirement(target, WRITE_DISCARD, own), Requirement(source, READ, near)))


def test_a_loop_is_analysed_until_its_regions_recur_and_never_again(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [halo_step(0), halo_step(1)]
    analysed: list[str] = []
    plain = ProgramAnalysis._analyse

    def noted(self: ProgramAnalysis, launch: Launch) -> tuple[AnalysedUse, ...]:
        analysed.append(launch.name)
        return plain(self, launch)

    monkeypatch.setattr(ProgramAnalysis, "_analyse", noted)
    program = analysis()
    program.launch(START, again=True)
    for _ in range(50):
        for step in steps:
            program.launch(step, again=True)
    assert len(analysed) < 10


def test_a_refused_launch_leaves_what_is_remembered_as_it_was() -> None:
    program, plain = analysis(), analysis()
    both = (Rect((0,), (4,)), Rect((2,), (6,)))
    clash = Launch("clash", (Point((0,), 0), Point((1,), 1)), (Requirement(REGIONS[0], READ_WRITE, both),))
    for launch in (START, halo_step(0), halo_step(1), halo_step(0)):
        with pytest.raises(RequestError):
            program.launch(clash, again=True)
        assert told(program.launch(launch, again=True)) == told(plain.launch(launch))
