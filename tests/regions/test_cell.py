from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from maniple.regions.cell import Cell, cut, group, needs
from maniple.regions.movement import Contribution, Use
from maniple.regions.privilege import READ, ReductionOp
from maniple.regions.rectangle import Rect

SUM = ReductionOp("sum", "+")
PROFILE = settings(derandomize=True, deadline=None, max_examples=300)

sides = st.tuples(st.integers(0, 5), st.integers(0, 4), st.integers(0, 5), st.integers(0, 4))
boxes = sides.map(lambda s: Rect((s[0], s[2]), (s[0] + s[1], s[2] + s[3])))
uses = st.lists(st.builds(Use, st.integers(0, 3), boxes, st.just(READ)), max_size=6)


def test_like_neighbours_are_joined_and_others_are_not() -> None:
    first, second = (
        ((0, Contribution((0,), 0, Rect.of_shape((4,)), SUM)),),
        ((1, Contribution((1,), 0, Rect.of_shape((4,)), SUM)),),
    )
    cells = [
        Cell(Rect((2,), (4,)), (0, 1)),
        Cell(Rect((0,), (2,)), (0, 1)),
        Cell(Rect((4,), (5,)), (0,)),
        Cell(Rect((5,), (6,)), (), first),
        Cell(Rect((6,), (7,)), (), second),
        Cell(Rect((7,), (8,)), (), second),
    ]
    assert group(cells) == (
        Cell(Rect((0,), (4,)), (0, 1)),
        Cell(Rect((4,), (5,)), (0,)),
        Cell(Rect((5,), (6,)), (), first),
        Cell(Rect((6,), (8,)), (), second),
    )


@given(uses)
@PROFILE
def test_needs_name_every_memory_of_a_point_once(launch: list[Use]) -> None:
    found = [(point, memories) for rect, memories in needs(launch) for point in rect.points()]
    wanted: dict[tuple[int, ...], set[int]] = {}
    for use in launch:
        for point in use.rect.points():
            wanted.setdefault(point, set()).add(use.memory)
    assert len(found) == len(wanted)
    assert dict(found) == {point: tuple(sorted(memories)) for point, memories in wanted.items()}


@given(uses, uses)
@PROFILE
def test_a_cut_keeps_every_point(state: list[Use], launch: list[Use]) -> None:
    cells = [Cell(rect, memories) for rect, memories in needs(state)]
    wanted = needs(launch)
    pieces, rest = cut(cells, wanted)
    holders = {point: cell.holders for cell in cells for point in cell.rect.points()}
    labels = {point: memories for rect, memories in wanted for point in rect.points()}
    found = [(p, label, cell and cell.holders) for rect, label, cell in pieces for p in rect.points()]
    assert sorted(found, key=lambda entry: entry[0]) == [(p, labels[p], holders.get(p)) for p in sorted(labels)]
    left = [(point, cell.holders) for cell in rest for point in cell.rect.points()]
    assert sorted(left) == sorted((point, held) for point, held in holders.items() if point not in labels)
