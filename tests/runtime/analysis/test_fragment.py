"""Fragments: one step's movements, and what the next step waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.regions.index_space import IndexSpace, RectSet
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, Privilege, reduce
from maniple.regions.rectangle import Rect
from maniple.regions.validity import Clash, UnwrittenRead
from maniple.runtime.analysis import column_analysis
from maniple.runtime.analysis.dependence import Node, PlacedUse, RegionAnalysis
from maniple.runtime.analysis.fragment import INSTANCE, Fragment, FragmentKey, HostDistance, Table
from maniple.runtime.analysis.step_analysis import MANY_USES, analyse, analyse_by_use
from maniple.runtime.schedule.schedule import InstanceKind, RowKind

WHOLE = Rect((0,), (6,))


NEAR = HostDistance((0, 0, 0))


def on(memory: int, rect: Rect = WHOLE, point: int = 0) -> PlacedUse:
    return PlacedUse(point, (point,), memory, memory, rect)


@pytest.fixture(params=[analyse, analyse_by_use])
def analysis(request: pytest.FixtureRequest) -> Callable[[FragmentKey, HostDistance], Fragment]:
    """In columns, and use by use."""
    found: Callable[[FragmentKey, HostDistance], Fragment] = request.param
    return found


Analysis = Callable[[FragmentKey, HostDistance], Fragment]


def instances(fragment: Fragment) -> list[tuple[int, int, IndexSpace]]:
    return [(memory, kind, fragment.spaces[space]) for memory, kind, space, _ in fragment.instances.tolist()]


def pairs(table: Table) -> set[tuple[int, int]]:
    return {(before, after) for before, after in table.tolist()}


def test_a_value_of_one_step_is_written_again_only_after_its_readers(analysis: Analysis) -> None:
    fragment = analysis(FragmentKey(WHOLE, (), ((WRITE_DISCARD, (on(0),)), (READ, (on(1),)))), NEAR)
    assert (fragment.serves.tolist(), fragment.kinds.tolist()) == ([1], [RowKind.COPY])
    written, read, moved = 0, 1, 2
    assert pairs(fragment.edges) == {(written, moved), (moved, read)}
    assert pairs(fragment.carried) == {(moved, written), (read, moved)}


def test_a_home_is_valid_before_the_first_use_and_has_room_from_the_start(analysis: Analysis) -> None:
    home = ((0, (Rect((0,), (3,)),)), (1, (Rect((3,), (6,)),)))
    fragment = analysis(FragmentKey(WHOLE, home, ((READ, (on(0, WHOLE),)),)), NEAR)
    assert (fragment.kinds.tolist(), fragment.elements.tolist()) == ([RowKind.COPY], [3])
    assert instances(fragment)[:2] == [(0, InstanceKind.MAIN, WHOLE), (1, InstanceKind.MAIN, Rect((3,), (6,)))]


def test_what_lasts_is_read_again_after_its_update(analysis: Analysis) -> None:
    key = FragmentKey(WHOLE, ((0, (WHOLE,)),), ((READ, (on(1),)), (READ_WRITE, (on(0),))))
    update, moved = 1, 2
    assert (update, moved) in pairs(analysis(key, NEAR).carried)


def test_what_does_not_last_must_be_written_in_every_step(analysis: Analysis) -> None:
    with pytest.raises(UnwrittenRead):
        analysis(FragmentKey(WHOLE, (), ((READ, (on(0),)),)), NEAR)


def test_tasks_that_write_the_same_are_refused(analysis: Analysis) -> None:
    with pytest.raises(Clash):
        analysis(FragmentKey(WHOLE, (), ((WRITE_DISCARD, (on(0, WHOLE, 0), on(1, WHOLE, 1))),)), NEAR)


def test_the_number_of_movements_and_instances_does_not_grow_with_steps(analysis: Analysis) -> None:
    uses = ((reduce("+"), (on(0, WHOLE, 0), on(1, WHOLE, 1))), (READ, (on(0, WHOLE, 0), on(1, WHOLE, 1))))
    fragment = analysis(FragmentKey(WHOLE, (), uses), NEAR)
    assert fragment.kinds.tolist() == [RowKind.ALL_REDUCE]
    assert fragment.ops == ("+",)
    assert int(fragment.carried.max()) < len(fragment.tasks) + 1
    assert int(fragment.accesses[:, INSTANCE].max()) < len(fragment.instances)


def test_a_key_says_nothing_of_the_region() -> None:
    first = FragmentKey(WHOLE, (), ((WRITE_DISCARD, (on(0),)),))
    second = FragmentKey(WHOLE, (), ((WRITE_DISCARD, (on(0),)),))
    assert (hash(first), first) == (hash(second), second)


def test_what_columns_do_not_hold_is_analysed_use_by_use() -> None:
    """Several boxes, shared elements, two operators, six long axes, contributions that nobody folds."""
    sparse = PlacedUse(0, (0,), 0, 0, RectSet.of([Rect((0,), (1,)), Rect((3,), (4,))]))
    shared = PlacedUse(0, (0,), 0, 0, WHOLE, shared=True)
    many = Rect((0,) * 6, (2,) * 6)
    write, close = (WRITE_DISCARD, (on(0),)), (READ, (on(0),))
    for key in (
        FragmentKey(WHOLE, (), (write, (READ, (sparse,)))),
        FragmentKey(WHOLE, (), (write, (READ_WRITE, (shared,)))),
        FragmentKey(WHOLE, (), (write, (reduce("+"), (on(1),)), (reduce("max"), (on(1),)), close)),
        FragmentKey(many, (), ((WRITE_DISCARD, (on(0, many),)), (READ, (on(1, many),)))),
        FragmentKey(WHOLE, (), (write, (reduce("+"), (on(1),)))),
    ):
        assert column_analysis.analyse(key, NEAR.hosts) is None
        assert len(analyse(key, NEAR).tasks) >= len(key.uses)


Uses = tuple[tuple[Privilege, tuple[PlacedUse, ...]], ...]


@st.composite
def steps(draw: st.DrawFn) -> Uses:
    """A first write of everything, and then uses of a few kinds, by tiles in several memories or by replicas."""
    kinds = [(WRITE_DISCARD, (on(0),))]
    for _ in range(draw(st.integers(1, 4))):
        privilege = draw(st.sampled_from([READ, READ, READ_WRITE, WRITE_DISCARD, reduce("+")]))
        count = draw(st.integers(1, 3))
        cuts = sorted(draw(st.sets(st.integers(0, 6), min_size=count + 1, max_size=count + 1)))
        replicas = draw(st.booleans())
        tasks = [
            PlacedUse(number, (0 if replicas else number,), memory, memory, WHOLE if replicas else Rect((a,), (b,)))
            for number, (a, b) in enumerate(pairwise(cuts))
            for memory in [draw(st.integers(0, 2))]
        ]
        kinds.append((privilege, tuple(tasks)))
    count = draw(st.sampled_from([3, 6, 2 * MANY_USES]))
    order = draw(st.lists(st.integers(0, len(kinds) - 1), min_size=count, max_size=count))
    return (kinds[0], *(kinds[number] for number in order))


@given(steps())
def test_a_fragment_is_what_two_steps_in_a_row_come_to(uses: Uses) -> None:
    """The next step is worked out from what the first leaves, and uses that recur from memory: here all is analysed."""
    fragment = analyse_by_use(FragmentKey(WHOLE, (), uses), NEAR)
    region = RegionAnalysis(WHOLE, {}, near=NEAR)
    entered = region.validity
    accesses = [
        (ordinal, point, access)
        for ordinal, (privilege, tasks) in enumerate(uses)
        for point, access in region.use(privilege, tasks)
    ]
    count = len(accesses)
    nodes = {(ordinal, point): number for number, (ordinal, point, _) in enumerate(accesses)}
    spaces = fragment.spaces
    assert [(*row[:2], spaces[row[2]], *row[3:]) for row in fragment.tasks.tolist()] == [
        (ordinal, point, access.rect, access.instance, access.writes) for ordinal, point, access in accesses
    ]
    assert [(*row[:1], spaces[row[1]], *row[2:]) for row in fragment.accesses.tolist()] == [
        (number, access.rect, access.instance, access.writes, access.slot)
        for number, move in enumerate(region.moves)
        for access in move.accesses
    ]
    assert fragment.kinds.tolist() == [move.kind for move in region.moves]
    assert fragment.leaves == region.validity
    assert instances(fragment) == list(region.extents.values())

    def named(edges: Iterable[tuple[Node, Node]]) -> set[tuple[int, int]]:
        found = {
            tuple(count + node.item if node.use < 0 else nodes[node.use, node.item] for node in edge) for edge in edges
        }
        return {(before, after) for before, after in found if before != after}

    assert pairs(fragment.edges) == named(region.edges)
    region.step, region.uses, region.moved, region.validity = 1, 0, 0, entered
    region.take()
    for privilege, tasks in uses:
        region.use(privilege, tasks)
    assert pairs(fragment.carried) == named(edge for edge in region.edges if edge[0].step != edge[1].step)
