"""Dependence analysis of a region: movements and edges, judged by running programs in program order and by closure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.process.error import RequestError
from maniple.regions.index_space import IndexSpace, RectSet, meets, simplest
from maniple.regions.logical_region import LogicalRegion
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, Privilege, reduce
from maniple.regions.rectangle import Rect
from maniple.regions.validity import UnwrittenRead
from maniple.runtime.analysis.dependence import Move, Node, PlacedUse, RegionAnalysis
from maniple.runtime.schedule.launch import Requirement
from maniple.runtime.schedule.schedule import Access, InstanceKind, RowKind

SIZE = 8
WHOLE = Rect((0,), (SIZE,))
SUM = reduce("+")


def span(low: int, high: int) -> Rect:
    return Rect((low,), (high,))


def on(memory: int, rect: IndexSpace, point: int = 0) -> PlacedUse:
    """A task on the only processor of a memory."""
    return PlacedUse(point, (point,), memory, memory, rect)


def fresh(*, moving: bool = False) -> RegionAnalysis:
    """Without movers, or with one where the only processor of a memory has its number."""
    return RegionAnalysis(WHOLE, {}, mover=(lambda memory: memory) if moving else None)


def at(space: IndexSpace) -> list[int]:
    return [point for (point,) in space.points()]


def test_a_far_read_brings_a_copy_between_its_dependences() -> None:
    region = fresh()
    ((_, written),) = region.use(WRITE_DISCARD, [on(0, WHOLE)])
    ((_, seen),) = region.use(READ, [on(1, span(2, 5))])
    (move,) = region.moves
    assert (move.kind, move.elements, move.processor) == (RowKind.COPY, 3, -1)
    (push,) = move.transfers
    assert (push.source, push.target, push.rect) == (written.instance, seen.instance, span(2, 5))
    copy = Node(0, -1, 0)
    assert region.edges == [(Node(0, 0, 0), copy), (copy, Node(0, 1, 0))]


def test_replicas_in_one_memory_wait_for_what_came_before_and_not_for_each_other() -> None:
    region = fresh()
    region.use(WRITE_DISCARD, [on(0, WHOLE)])
    region.use(WRITE_DISCARD, [PlacedUse(point, (0,), 0, 0, WHOLE) for point in range(2)])
    assert region.edges == [(Node(0, 0, 0), Node(0, 1, point)) for point in range(2)]


def test_a_near_read_moves_nothing() -> None:
    region = fresh()
    region.use(WRITE_DISCARD, [on(0, WHOLE)])
    region.use(READ, [on(0, span(2, 5))])
    assert region.moves == []
    assert region.edges == [(Node(0, 0, 0), Node(0, 1, 0))]


def test_two_readers_do_not_wait_for_each_other_and_a_writer_waits_for_both() -> None:
    region = fresh()
    region.use(WRITE_DISCARD, [on(0, WHOLE)])
    region.use(READ, [on(0, WHOLE)])
    region.use(READ, [on(0, WHOLE)])
    region.take()
    region.use(WRITE_DISCARD, [on(0, WHOLE)])
    assert sorted(before.use for before, _ in region.edges) == [0, 1, 2]


def test_contributions_of_one_memory_are_folded_there_before_a_read() -> None:
    region = fresh()
    region.use(WRITE_DISCARD, [on(0, WHOLE)])
    given_ = region.use(SUM, [on(0, WHOLE, 0), on(0, WHOLE, 1)])
    assert len({access.instance for _, access in given_}) == 2
    assert region.pending_instances() == {access.instance for _, access in given_}
    assert region.moves == []
    region.use(READ, [on(0, WHOLE)])
    (move,) = region.moves
    assert (move.kind, move.processor, move.op, move.elements) == (RowKind.FOLD, 0, "+", 0)
    target, base, *parts = move.accesses
    assert target.writes
    assert base.instance == target.instance
    assert [part.instance for part in parts] == [access.instance for _, access in given_]
    assert region.pending_instances() == set()


def test_contributions_that_all_contributors_read_become_one_all_reduce() -> None:
    region = fresh()
    region.use(SUM, [on(memory, WHOLE, memory) for memory in range(4)])
    region.use(READ, [on(memory, WHOLE, memory) for memory in range(4)])
    (move,) = region.moves
    assert move.kind == RowKind.ALL_REDUCE
    assert move.elements == 2 * 3 * SIZE  # 2 (n - 1) / n of the region for each of the n = 4 memories
    assert sorted(piece.memory for piece in move.pieces) == [0, 1, 2, 3]


def test_elements_that_nothing_wrote_are_refused_and_change_nothing() -> None:
    region = fresh()
    region.use(WRITE_DISCARD, [on(0, span(0, 4))])
    region.take()
    with pytest.raises(UnwrittenRead) as caught:
        region.use(READ, [on(0, WHOLE)])
    assert caught.value.rect == span(4, 8)
    assert region.uses == 1
    assert region.take() == (0, [], [])


def test_points_that_write_the_same_elements_are_refused() -> None:
    with pytest.raises(RequestError):
        fresh().use(WRITE_DISCARD, [on(0, span(0, 5), 0), on(1, span(4, 8), 1)])


def test_an_advance_changes_nothing_until_it_is_used() -> None:
    region = fresh()
    first = region.advance(WRITE_DISCARD, [on(0, WHOLE)])
    second = region.advance(READ, [on(1, WHOLE)], first)
    assert (region.uses, region.validity.cells, region.extents) == (0, (), {})
    assert (first.ordinal, second.ordinal) == (0, 1)
    region.use(WRITE_DISCARD, [on(0, WHOLE)], first)
    region.use(READ, [on(1, WHOLE)], second)
    assert (region.uses, len(region.moves)) == (2, 1)


def test_take_numbers_the_movements_of_the_whole_step() -> None:
    region = fresh()
    region.use(WRITE_DISCARD, [on(0, WHOLE)])
    region.use(READ, [on(1, WHOLE)])
    assert region.take()[0] == 0
    region.use(READ, [on(2, WHOLE)])
    first, moves, _ = region.take()
    assert (first, len(moves)) == (1, 1)


def test_forgotten_nodes_are_waited_for_no_more() -> None:
    region = fresh()
    region.use(WRITE_DISCARD, [on(0, WHOLE)])
    region.use(READ, [on(0, WHOLE)])
    region.take()
    region.forget(lambda node: node.use == 1)
    region.use(WRITE_DISCARD, [on(0, WHOLE)])
    assert region.edges == [(Node(0, 1, 0), Node(0, 2, 0))]


Use = tuple[Privilege, tuple[PlacedUse, ...]]


@st.composite
def programs(draw: st.DrawFn) -> list[Use]:
    """A first write of everything, then uses of any kind by 1 to 4 points on 3 memories."""
    program: list[Use] = [(WRITE_DISCARD, (on(draw(st.integers(0, 2)), WHOLE),))]
    for _ in range(draw(st.integers(1, 7))):
        privilege = draw(st.sampled_from([READ, WRITE_DISCARD, READ_WRITE, SUM, reduce("max")]))
        cuts = sorted(draw(st.lists(st.integers(0, SIZE), min_size=2, max_size=5)))
        rects = [span(a, b) for a, b in pairwise(cuts)]
        if not privilege.writes:
            rects = [draw(st.sampled_from([rect, WHOLE])) for rect in rects]
        spaces: list[IndexSpace] = list(rects)
        if len(rects) > 2 and draw(st.booleans()):
            spaces = [simplest(RectSet.of(rects[::2]), 1), simplest(RectSet.of(rects[1::2]), 1)]
        uses = [on(draw(st.integers(0, 2)), space, point) for point, space in enumerate(spaces)]
        program.append((privilege, tuple(uses)))
    program.append((READ, (on(draw(st.integers(0, 2)), WHOLE),)))
    return program


def value(ordinal: int, point: int) -> int:
    return 1 + 7 * ordinal + 3 * point


def meaning(program: Sequence[Use]) -> list[np.ndarray]:
    """What every reading task sees when the tasks run one after the other on one array."""
    array = np.zeros(SIZE, dtype=np.int64)
    seen = []
    for ordinal, (privilege, uses) in enumerate(program):
        for use in uses:
            part = array[at(use.rect)]
            if privilege.reads:
                seen.append(part.copy())
            given_ = value(ordinal, use.point)
            if privilege == WRITE_DISCARD:
                part[:] = given_
            elif privilege == READ_WRITE:
                part[:] = 2 * part + given_
            elif privilege.op is not None:
                part[:] = part + given_ if privilege.op.symbol == "+" else np.maximum(part, given_)
            array[at(use.rect)] = part
    return seen


class Storage:
    """Instances as arrays over the whole region, full of rubbish where nothing was written."""

    def __init__(self) -> None:
        self.arrays: dict[int, np.ndarray] = {}

    def get(self, instance: int, rect: IndexSpace) -> np.ndarray:
        return self.arrays.setdefault(instance, np.full(SIZE, -(10**6), dtype=np.int64))[at(rect)]

    def put(self, instance: int, rect: IndexSpace, values: object) -> None:
        self.arrays.setdefault(instance, np.full(SIZE, -(10**6), dtype=np.int64))[at(rect)] = values

    def fold(self, target: int, parts: Sequence[int], rect: IndexSpace, op: str) -> None:
        combine = {"+": np.add, "max": np.maximum}[op]
        total = self.get(parts[0], rect)
        for part in parts[1:]:
            total = combine(total, self.get(part, rect))
        self.put(target, rect, total)

    def move(self, move: Move) -> None:
        if move.kind == RowKind.FOLD:
            target, *parts = move.accesses
            self.fold(target.instance, [part.instance for part in parts], target.rect, move.op)
        pushed = [push for push in move.transfers if push.after < 0]
        for push in pushed:
            self.put(push.target, push.rect, self.get(push.source, push.rect))
        for piece in move.pieces:
            self.fold(piece.target, piece.parts, piece.rect, piece.op)
        for push in move.transfers:
            if push.after >= 0:
                self.put(push.target, push.rect, self.get(push.source, push.rect))


def roomy(region: RegionAnalysis, privilege: Privilege, uses: Sequence[PlacedUse]) -> None:
    """Make room for the tasks of a launch, as a program does before it uses the region."""
    advance = region.advance(privilege, uses)
    requirement = Requirement(LogicalRegion(0, "x", WHOLE, "int64"), privilege, ())
    hulls: dict[int, Rect] = {}
    for memory, rect in advance.needs(requirement, [use for use in uses if not use.rect.is_empty]):
        hulls[memory] = hulls.get(memory, rect).hull(rect)
    for memory, rect in hulls.items():
        region.make_room(memory, rect)


@given(programs(), st.booleans())
def test_programs_mean_what_they_mean_on_one_array(program: list[Use], moving: bool) -> None:
    region = fresh(moving=moving)
    storage = Storage()
    seen = []
    for ordinal, (privilege, uses) in enumerate(program):
        if moving:
            roomy(region, privilege, uses)
        accesses = dict(region.use(privilege, uses))
        _, moves, _ = region.take()
        for move in moves:
            storage.move(move)
        for use in uses:
            if use.rect.is_empty:
                assert use.point not in accesses
                if privilege.reads:
                    seen.append(np.zeros(0, dtype=np.int64))
                continue
            instance = accesses[use.point].instance
            held = storage.get(instance, use.rect)
            if privilege.reads:
                seen.append(held)
            if privilege.op is not None:
                storage.put(instance, use.rect, value(ordinal, use.point))
            elif privilege.writes:
                storage.put(instance, use.rect, value(ordinal, use.point) + (2 * held if privilege.reads else 0))
    expected = meaning(program)
    assert len(seen) == len(expected)
    for got, wanted in zip(seen, expected, strict=True):
        assert got.tolist() == wanted.tolist()


@given(programs(), st.booleans())
def test_conflicting_accesses_are_ordered_by_edges(program: list[Use], moving: bool) -> None:
    region = fresh(moving=moving)
    nodes: list[tuple[Node, tuple[Access, ...]]] = []
    edges: list[tuple[Node, Node]] = []
    for ordinal, (privilege, uses) in enumerate(program):
        if moving:
            roomy(region, privilege, uses)
        accesses = region.use(privilege, uses)
        first, moves, found = region.take()
        edges += found
        nodes += [(Node(0, -1, number), move.accesses) for number, move in enumerate(moves, first)]
        nodes += [(Node(0, ordinal, point), (access,)) for point, access in accesses]
    index = {node: number for number, (node, _) in enumerate(nodes)}
    reach = np.zeros((len(nodes), len(nodes)), dtype=bool)
    for before, after in sorted(edges, key=lambda edge: index[edge[1]]):
        assert index[before] < index[after], "an edge against the order of the program"
        reach[:, index[after]] |= reach[:, index[before]]
        reach[index[before], index[after]] = True
    for j, (_, later) in enumerate(nodes):
        for i, (_, earlier) in enumerate(nodes[:j]):
            conflict = any(
                a.instance == b.instance and meets(a.rect, b.rect) and (a.writes or b.writes)
                for a in earlier
                for b in later
            )
            assert reach[i, j] or not conflict


@given(programs())
def test_every_instance_has_room_for_its_accesses_and_the_right_kind(program: list[Use]) -> None:
    region = fresh()
    for privilege, uses in program:
        for point, access in region.use(privilege, uses):
            memory, kind, rect = region.extents[access.instance]
            assert memory == next(use.memory for use in uses if use.point == point)
            assert kind == (InstanceKind.REDUCTION if privilege.reduces else InstanceKind.MAIN)
            assert rect.contains(access.rect.bounds)
        for move in region.take()[1]:
            assert move.elements == sum(push.rect.volume for push in move.transfers)
            for access in move.accesses:
                assert region.extents[access.instance][2].contains(access.rect.bounds)
            for push in move.transfers:
                assert region.extents[push.source][0] != region.extents[push.target][0]
