"""Instance tables: who must wait for whom, against an oracle that remembers every element by itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.regions.index_space import IndexSpace, RectSet
from maniple.regions.rectangle import Rect
from maniple.runtime.analysis.instance_table import InstanceTable, Node
from maniple.runtime.schedule.schedule import Access, InstanceKind

SIDE = 5
WHOLE = Rect((0, 0), (SIDE, SIDE))


def node(number: int) -> Node:
    return Node(0, number, 0)


def access(instance: int, rect: IndexSpace, *, writes: bool) -> Access:
    return Access(instance, rect, writes, 0)


def table() -> tuple[InstanceTable, int]:
    made = InstanceTable()
    return made, made.valid(0, WHOLE)


@st.composite
def boxes(draw: st.DrawFn) -> Rect:
    """A box that has a point."""
    lo = draw(st.tuples(*[st.integers(0, SIDE - 1)] * 2))
    return Rect(lo, tuple(draw(st.integers(low + 1, SIDE)) for low in lo))


SPACES = st.one_of(boxes(), st.lists(boxes(), min_size=1, max_size=3).map(RectSet.of))
STEPS = st.lists(st.tuples(SPACES, st.booleans(), st.booleans()), min_size=1, max_size=10)


class Oracle:
    """Of every element the last write, and the reads since; tasks that share do not wait for each other.

    What a write hides needs no remembering, but for what it shares elements with.
    """

    def __init__(self) -> None:
        self.touches: dict[tuple[int, ...], list[tuple[int, bool, bool]]] = {}

    def record(self, number: int, space: IndexSpace, *, writes: bool, shared: bool) -> set[int]:
        found = set()
        for point in space.points():
            before = self.touches.get(point, [])
            clash = [(who, wrote, also) for who, wrote, also in before if (wrote or writes) and not (shared and also)]
            found |= {who for who, _, _ in clash}
            kept = [touch for touch in before if touch not in clash] if writes else before
            self.touches[point] = [*kept, (number, writes, shared)]
        return found


def waited_for(edges: Sequence[tuple[Node, Node]], number: int) -> set[int]:
    assert {after for _, after in edges} <= {node(number)}
    assert len(set(edges)) == len(edges)
    return {before.use for before, _ in edges}


@given(steps=STEPS)
def test_a_use_waits_for_whom_the_oracle_says(steps: list[tuple[IndexSpace, bool, bool]]) -> None:
    found, instance = table()
    oracle = Oracle()
    for number, (space, writes, shared) in enumerate(steps):
        accesses = [access(instance, space, writes=writes)]
        asked = waited_for(found.depend(node(number), accesses, shared=shared), number)
        edges = found.record(node(number), accesses, shared=shared)
        assert asked == waited_for(edges, number) == oracle.record(number, space, writes=writes, shared=shared)


@given(steps=STEPS, last=SPACES, writes=st.booleans())
def test_what_was_taken_out_and_put_back_is_remembered_the_same(
    steps: list[tuple[IndexSpace, bool, bool]], last: IndexSpace, writes: bool
) -> None:
    """A structure says what is remembered without who did it; with the names it is the table again."""
    first, instance = table()
    for number, (space, wrote, shared) in enumerate(steps):
        first.record(node(number), [access(instance, space, writes=wrote)], shared=shared)
    taken = first.structure()
    if taken is None:
        return
    other, _ = table()
    other.adopt(*taken)
    asked = [access(instance, last, writes=writes)]
    expected = waited_for(first.depend(node(99), asked), 99)
    assert waited_for(other.depend(node(99), asked), 99) == expected


def test_structures_are_equal_whoever_made_the_accesses() -> None:
    described = []
    for start in (0, 40):
        found, instance = table()
        found.record(node(start), [access(instance, WHOLE, writes=True)])
        found.record(node(start + 1), [access(instance, Rect((0, 0), (2, 5)), writes=False)])
        taken = found.structure()
        assert taken is not None
        described.append(taken[0].description)
    assert described[0] == described[1]


def test_a_write_hides_what_it_covers() -> None:
    found, instance = table()
    found.record(node(0), [access(instance, WHOLE, writes=True)])
    found.record(node(1), [access(instance, WHOLE, writes=True)])
    assert waited_for(found.depend(node(2), [access(instance, WHOLE, writes=False)]), 2) == {1}


def test_nobody_waits_for_a_node_that_was_forgotten() -> None:
    found, instance = table()
    found.record(node(0), [access(instance, WHOLE, writes=True)])
    found.forget(lambda _: False, ())
    assert found.depend(node(1), [access(instance, WHOLE, writes=True)]) == []
    assert found.room(0) == (instance, WHOLE)


def test_an_instance_of_contributions_goes_when_nothing_refers_to_it() -> None:
    found, instance = table()
    kept = found.other(0, InstanceKind.REDUCTION, WHOLE, (1,))
    gone = found.other(0, InstanceKind.REDUCTION, WHOLE, (2,))
    found.forget(lambda _: False, {kept})
    assert set(found.extents) == {instance, kept}
    assert found.other(0, InstanceKind.REDUCTION, WHOLE, (1,)) == kept
    assert found.other(0, InstanceKind.REDUCTION, WHOLE, (2,)) not in {instance, kept, gone}


@pytest.mark.parametrize(
    ("rect", "grown"),
    [
        (Rect((0,), (2,)), None),
        (Rect((2,), (3,)), Rect((0,), (4,))),
        (Rect((5,), (6,)), Rect((0,), (6,))),
        (Rect((8,), (10,)), Rect((0,), (10,))),
    ],
)
def test_an_instance_grows_to_at_least_twice_its_width(rect: Rect, grown: Rect | None) -> None:
    found = InstanceTable()
    found.valid(0, Rect((0,), (2,)))
    assert found.growth(0, rect, Rect((0,), (10,))) == grown


def test_growing_step_by_step_moves_as_much_as_growing_at_once() -> None:
    """Each element is moved less than twice: what is moved when growing is at most half of what there is then."""
    found, bounds = InstanceTable(), Rect((0,), (1000,))
    found.valid(0, Rect((0,), (1,)))
    moved = 0
    for end in range(2, 1001):
        room = found.growth(0, Rect((0,), (end,)), bounds)
        if room is not None:
            moved += found.main[0]
            found.valid(0, room)
    assert found.main[0] == 1000
    assert moved < 2 * 1000
