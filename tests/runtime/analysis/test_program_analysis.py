"""Analysis of programs: launches against regions, refused whole or taken whole."""

from __future__ import annotations

import pytest

from maniple.process.error import RequestError
from maniple.regions.logical_region import LogicalRegion
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, Privilege, reduce
from maniple.regions.rectangle import Rect
from maniple.runtime.analysis.dependence import Node
from maniple.runtime.analysis.program_analysis import ProgramAnalysis, check_interference
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.failure import UnwrittenRegion
from maniple.runtime.schedule.launch import Launch, Point, Requirement

WHOLE = Rect((0,), (6,))
X, Y = (LogicalRegion(number, name, WHOLE, "float32") for number, name in enumerate("xy"))


def span(low: int, high: int) -> Rect:
    return Rect((low,), (high,))


def launch(
    *requirements: tuple[LogicalRegion, Privilege, tuple[Rect, ...]], processors: tuple[int, ...] = (0,)
) -> Launch:
    points = tuple(Point((number,), processor) for number, processor in enumerate(processors))
    return Launch("work", points, tuple(Requirement(*one) for one in requirements))


@pytest.fixture
def program() -> ProgramAnalysis:
    made = ProgramAnalysis(Machine.cpu(1, ranks=2))
    made.add(X)
    made.add(Y)
    return made


def test_each_requirement_has_its_movements_dependences_and_accesses(program: ProgramAnalysis) -> None:
    program.launch(launch((X, WRITE_DISCARD, (WHOLE,))))
    (use,) = program.launch(launch((X, READ, (WHOLE, span(0, 0))), processors=(1, 0)))
    assert (use.region, use.first, len(use.moves)) == (0, 0, 1)
    assert use.edges == ((Node(0, 0, 0), Node(0, -1, 0)), (Node(0, -1, 0), Node(0, 1, 0)))
    ((point, node, access),) = use.accesses
    assert (point, node, access.rect, access.writes) == (0, Node(0, 1, 0), WHOLE, False)


@pytest.mark.parametrize(("reader", "source"), [(1, 0), (3, 2)])
def test_a_value_comes_from_the_nearest_memory(reader: int, source: int) -> None:
    """Ranks 0 and 1 share a host, and so do 2 and 3."""
    program = ProgramAnalysis(Machine.cpu(1, ranks=4, nodes=2))
    region = program.add(X, {0: (WHOLE,), 2: (WHOLE,)})
    (use,) = program.launch(launch((X, READ, (WHOLE,)), processors=(reader,)))
    ((push,),) = [move.transfers for move in use.moves]
    assert region.extents[push.source][0] == source


def test_a_region_may_be_named_twice_by_one_launch(program: ProgramAnalysis) -> None:
    program.launch(launch((X, WRITE_DISCARD, (WHOLE,))))
    first, second = program.launch(launch((X, READ, (span(0, 3),)), (X, READ, (span(3, 6),)), processors=(1,)))
    assert [use.accesses[0][1].use for use in (first, second)] == [1, 2]
    assert [use.first for use in (first, second)] == [0, 1]
    assert [move.elements for use in (first, second) for move in use.moves] == [3, 3]


def test_contributions_through_two_requirements_are_both_folded(program: ProgramAnalysis) -> None:
    plus = reduce("+")
    program.launch(launch((X, plus, (WHOLE,)), (X, plus, (WHOLE,))))
    (use,) = program.launch(launch((X, READ, (WHOLE,))))
    assert len(use.moves[0].accesses) == 3


def test_a_refused_launch_changes_no_region(program: ProgramAnalysis) -> None:
    refused = launch((X, WRITE_DISCARD, (WHOLE,)), (Y, READ, (WHOLE,)))
    with pytest.raises(UnwrittenRegion, match="work reads y"):
        program.launch(refused)
    x = program.regions[0]
    assert (x.uses, x.validity.cells, x.take()) == (0, (), (0, [], []))
    with pytest.raises(UnwrittenRegion, match="work reads x"):
        program.launch(launch((X, READ, (WHOLE,))))
    program.launch(launch((X, WRITE_DISCARD, (WHOLE,))))
    assert program.launch(launch((X, READ, (WHOLE,))))[0].edges == ((Node(0, 0, 0), Node(0, 1, 0)),)


def test_points_that_interfere_through_one_requirement_are_refused(program: ProgramAnalysis) -> None:
    with pytest.raises(RequestError, match="launch work, region x: "):
        program.launch(launch((X, WRITE_DISCARD, (WHOLE, WHOLE)), processors=(0, 1)))


@pytest.mark.parametrize(
    ("first", "second", "legal"),
    [
        (READ, READ, True),
        (READ, READ_WRITE, False),
        (READ, WRITE_DISCARD, False),
        (READ, reduce("+"), False),
        (WRITE_DISCARD, WRITE_DISCARD, False),
        (reduce("+"), reduce("+"), True),
        (reduce("+"), reduce("max"), False),
    ],
)
def test_two_requirements_on_one_region(first: Privilege, second: Privilege, legal: bool) -> None:
    for one, other in ((first, second), (second, first)):
        both = launch((X, one, (span(0, 4),)), (X, other, (span(3, 6),)))
        if legal:
            check_interference(both)
        else:
            with pytest.raises(RequestError, match=r"two arguments both use x\[3:4\]"):
                check_interference(both)
        check_interference(launch((X, one, (span(0, 3),)), (X, other, (span(3, 6),))))
        check_interference(launch((X, one, (WHOLE,)), (Y, other, (WHOLE,))))


def test_points_that_interfere_through_two_requirements_are_named() -> None:
    crossed = launch((X, READ_WRITE, (span(0, 3), span(3, 6))), (X, READ, (span(0, 0), span(2, 3))), processors=(0, 1))
    with pytest.raises(RequestError, match=r"points \[0\]@p0 and \[1\]@p1 both use x\[2:3\], as read-write and read"):
        check_interference(crossed)
