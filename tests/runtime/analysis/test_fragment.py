"""Fragments: one step's movements, and what the next step waits for."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, Privilege, reduce
from maniple.regions.rectangle import Rect
from maniple.regions.validity import UnwrittenRead
from maniple.runtime.analysis.dependence import Node, PlacedUse, RegionAnalysis
from maniple.runtime.analysis.fragment import MANY_USES, FragmentKey, analyse
from maniple.runtime.schedule.schedule import InstanceKind, RowKind

WHOLE = Rect((0,), (6,))


def far(first: int, second: int) -> int:
    return int(first != second)


def on(memory: int, rect: Rect = WHOLE, point: int = 0) -> PlacedUse:
    return PlacedUse(point, (point,), memory, memory, rect)


def test_a_value_of_one_step_is_written_again_only_after_its_readers() -> None:
    fragment = analyse(FragmentKey(WHOLE, (), ((WRITE_DISCARD, (on(0),)), (READ, (on(1),)))), far)
    (copy,) = fragment.moves
    assert (fragment.serves, copy.kind) == ((1,), RowKind.COPY)
    moved = Node(0, -1, 0)
    assert fragment.edges == ((Node(0, 0, 0), moved), (moved, Node(0, 1, 0)))
    assert set(fragment.carried) >= {(moved, Node(1, 0, 0)), (Node(0, 1, 0), Node(1, -1, 0))}
    assert all(before.step == 0 and after.step == 1 for before, after in fragment.carried)


def test_a_home_is_valid_before_the_first_use_and_has_room_from_the_start() -> None:
    home = ((0, (Rect((0,), (3,)),)), (1, (Rect((3,), (6,)),)))
    fragment = analyse(FragmentKey(WHOLE, home, ((READ, (on(0, WHOLE),)),)), far)
    assert [(move.kind, move.elements) for move in fragment.moves] == [(RowKind.COPY, 3)]
    assert fragment.instances[:2] == ((0, InstanceKind.MAIN, WHOLE), (1, InstanceKind.MAIN, Rect((3,), (6,))))


def test_what_lasts_is_read_again_after_its_update() -> None:
    key = FragmentKey(WHOLE, ((0, (WHOLE,)),), ((READ, (on(1),)), (READ_WRITE, (on(0),))))
    fragment = analyse(key, far)
    update = Node(0, 1, 0)
    assert (update, Node(1, -1, 0)) in fragment.carried


def test_what_does_not_last_must_be_written_in_every_step() -> None:
    with pytest.raises(UnwrittenRead):
        analyse(FragmentKey(WHOLE, (), ((READ, (on(0),)),)), far)


def test_the_number_of_movements_and_instances_does_not_grow_with_steps() -> None:
    uses = ((reduce("+"), (on(0, WHOLE, 0), on(1, WHOLE, 1))), (READ, (on(0, WHOLE, 0), on(1, WHOLE, 1))))
    fragment = analyse(FragmentKey(WHOLE, (), uses), far)
    assert [move.kind for move in fragment.moves] == [RowKind.ALL_REDUCE]
    numbers = {node.item for edge in fragment.carried for node in edge if node.use < 0}
    assert numbers <= {0}
    named = {access.instance for move in fragment.moves for access in move.accesses}
    assert named <= set(range(len(fragment.instances)))


def test_a_key_says_nothing_of_the_region() -> None:
    first = FragmentKey(WHOLE, (), ((WRITE_DISCARD, (on(0),)),))
    second = FragmentKey(WHOLE, (), ((WRITE_DISCARD, (on(0),)),))
    assert hash(first) == hash(second)
    assert analyse(first, far) == analyse(second, far)


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
    fragment = analyse(FragmentKey(WHOLE, (), uses), far)
    region = RegionAnalysis(WHOLE, {}, near=far)
    entered = region.validity
    accesses = tuple(tuple(region.use(privilege, tasks)) for privilege, tasks in uses)
    assert (fragment.accesses, fragment.moves, fragment.leaves) == (accesses, tuple(region.moves), region.validity)
    assert fragment.instances == tuple(region.extents.values())
    assert set(fragment.edges) == set(region.edges)
    region.step, region.uses, region.moved, region.validity = 1, 0, 0, entered
    region.take()
    for privilege, tasks in uses:
        region.use(privilege, tasks)
    between = {(before, after) for before, after in region.edges if before.step != after.step}
    assert set(fragment.carried) == between
