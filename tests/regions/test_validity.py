"""Validity against a machine that holds every point by itself: what any program reads, and how little moves."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maniple.process.error import RequestError
from maniple.regions import movement_plan
from maniple.regions.index_space import IndexSpace, RectSet, by_place, meets, simplest
from maniple.regions.movement_plan import MOST_PENDING
from maniple.regions.partition import blocks, halo
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, reduce
from maniple.regions.rectangle import Rect
from maniple.regions.validity import (
    Fold,
    Merge,
    Movements,
    UnwrittenRead,
    Use,
    Validity,
    interference,
)

Point = tuple[int, ...]
Launch = list[Use]
FOLDS: dict[str, Callable[[int, int], int]] = {"+": int.__add__, "*": int.__mul__, "min": min, "max": max}
PRIVILEGES = [READ, READ, READ_WRITE, WRITE_DISCARD, *map(reduce, FOLDS), reduce("+"), reduce("+")]
WHOLE = Rect.of_shape((8, 2))


class Memories:
    """What a machine would hold, point by point: movements are executed on it, and checked as they are."""

    def __init__(self) -> None:
        self.truth: dict[Point, int] = {}  # of a program that runs its tasks one after the other
        self.values: dict[int, dict[Point, int]] = {}  # by memory; a value that is stale is not there
        self.waiting: dict[Point, list[tuple[Use, int]]] = {}  # contributions in program order

    def holders(self, point: Point) -> set[int]:
        return {memory for memory, held in self.values.items() if point in held}

    def readers(self, launch: Launch) -> dict[Point, set[int]]:
        needed: dict[Point, set[int]] = {}
        for use in launch:
            for point in use.rect.points():
                if use.privilege.reads:
                    needed.setdefault(point, set()).add(use.memory)
                elif use.privilege.reduces and any(
                    other.privilege != use.privilege for other, _ in self.waiting.get(point, [])
                ):
                    needed.setdefault(point, {use.memory})
        return needed

    def cheapest(self, launch: Launch) -> int:
        """The fewest elements that any owners, bases and sources can move, by trying all."""
        total = 0
        for point, needed in self.readers(launch).items():
            held = self.holders(point)
            if point not in self.waiting:
                total += len(needed - held)
                continue
            adding = {use.memory for use, _ in self.waiting[point]}
            bases = [{base} for base in held] or [set[int]()]
            total += min(len((adding | base) - {owner}) + len(needed) - 1 for owner in needed for base in bases)
        return total

    def execute(self, movements: Movements) -> None:
        changed: set[tuple[int, Point]] = set()
        for fold in movements.folds:
            for point in fold.rect.points():
                assert (fold.target, point) not in changed
                changed.add((fold.target, point))
                self.fold(fold, point)
        for copy in movements.copies:
            for point in copy.rect.points():
                assert (copy.target, point) not in changed
                changed.add((copy.target, point))
                target = self.values.setdefault(copy.target, {})
                assert point not in target, "a copy of what is already there"
                target[point] = self.values[copy.source][point]

        for merge in movements.merges:
            for point in merge.rect.points():
                self.merge(merge, point)

    def merge(self, merge: Merge, point: Point) -> None:
        mine = [entry for entry in self.waiting[point] if entry[0].memory == merge.memory]
        assert tuple(use.key for use, _ in mine) == merge.keys
        assert {use.privilege.op for use, _ in mine} == {merge.op}
        total = mine[0][1]
        for _, value in mine[1:]:
            total = FOLDS[merge.op.symbol](total, value)
        rest = [(use, total if use is mine[0][0] else value) for use, value in self.waiting[point]]
        self.waiting[point] = [e for e in rest if e[0].memory != merge.memory or e[0] is mine[0][0]]

    def fold(self, fold: Fold, point: Point) -> None:
        entries = self.waiting.pop(point)
        assert {use.privilege.op for use, _ in entries} == {fold.op}
        assert [part.memory for part in fold.parts] == sorted({part.memory for part in fold.parts})
        assert sum(len(part.keys) for part in fold.parts) == len(entries)
        assert sum(part.base for part in fold.parts) == bool(self.holders(point))
        terms: list[int] = []
        for part in fold.parts:
            mine = [(use.key, value) for use, value in entries if use.memory == part.memory]
            assert list(part.keys) == [key for key, _ in mine]
            assert part.keys or part.base
            terms += [self.values[part.memory][point]] if part.base else []
            terms += [value for _, value in mine]
        total = terms[0]
        for term in terms[1:]:
            total = FOLDS[fold.op.symbol](total, term)
        for held in self.values.values():
            held.pop(point, None)
        self.values.setdefault(fold.target, {})[point] = total

    def run(self, launch: Launch) -> None:
        """The tasks themselves: what they read must be the truth, and what they write becomes it."""
        for use in launch:
            if use.privilege.reads:
                for point in use.rect.points():
                    assert self.values[use.memory][point] == self.truth[point]
        counted: set[tuple[int, ...]] = set()
        for use in launch:
            replica = use.key in counted
            counted.add(use.key)
            for point in use.rect.points():
                made = (7 * use.key[0] + 3 * use.key[1] + sum(point)) % 11 - 5
                if use.privilege.op is not None and not replica:
                    self.waiting.setdefault(point, []).append((use, made))
                    old = self.truth.get(point)
                    self.truth[point] = made if old is None else FOLDS[use.privilege.op.symbol](old, made)
                elif use.privilege.writes:
                    if not replica:
                        self.truth[point] = made + (2 * self.truth[point] if use.privilege.reads else 0)
                        self.waiting.pop(point, None)
                        for held in self.values.values():
                            held.pop(point, None)
                    self.values.setdefault(use.memory, {})[point] = self.truth[point]

    def check(self, state: Validity) -> None:
        held = {memory: set(points) for memory, points in self.values.items() if points}
        said = {memory: {p for rect in points.rects for p in rect.points()} for memory, points in state.valid.items()}
        assert said == held
        pending: dict[Point, list[tuple[object, ...]]] = {}
        for entry in state.pending:
            for point in entry.rect.points():
                pending.setdefault(point, []).append((entry.key, entry.memory, entry.op))
        assert pending == {
            point: [(use.key, use.memory, use.privilege.op) for use, _ in entries]
            for point, entries in self.waiting.items()
        }


@st.composite
def programs(draw: st.DrawFn) -> list[Launch]:
    ndim = draw(st.integers(0, 3))
    bounds = Rect.of_shape([draw(st.integers(1, 3 if ndim == 3 else 5)) for _ in range(ndim)])
    memory = st.integers(0, draw(st.integers(0, 4)))
    program: list[Launch] = []
    if draw(st.booleans()):
        program.append([Use(draw(memory), bounds, WRITE_DISCARD, (0, 0))])
    for _ in range(draw(st.integers(1, 6))):
        privilege = draw(st.sampled_from(PRIVILEGES))
        tiles = _tiles(draw, bounds)
        if privilege.writes:
            kept: list[IndexSpace] = []
            for tile in tiles:
                if not any(meets(tile, other) for other in kept):
                    kept.append(tile)
            tiles = kept
        launch: Launch = []
        for point, tile in enumerate(tiles):
            for _ in range(draw(st.integers(1, 2))):
                launch.append(Use(draw(memory), tile, privilege, (len(program), point)))
        program.append(launch)
    return program


def _tiles(draw: st.DrawFn, bounds: Rect) -> list[IndexSpace]:
    choice = draw(st.integers(0, 4))
    counts = tuple(draw(st.integers(1, 3)) for _ in range(bounds.ndim))
    if choice == 0:
        return [bounds] * draw(st.integers(1, 4))
    if choice == 1:
        return list(blocks(counts).bind(bounds).tiles)
    if choice == 2:
        return list(halo(blocks(counts), (1,) * bounds.ndim).bind(bounds).tiles)
    if choice == 4:
        return [simplest(RectSet.of(_boxes(draw, bounds)), bounds.ndim) for _ in range(draw(st.integers(1, 3)))]
    return _boxes(draw, bounds)


def _boxes(draw: st.DrawFn, bounds: Rect) -> list[Rect]:
    corners = [[(draw(st.integers(0, e)), draw(st.integers(0, e))) for e in bounds.shape] for _ in range(3)]
    return [Rect(tuple(min(pair) for pair in box), tuple(max(pair) for pair in box)) for box in corners]


def distance(target: int, holder: int) -> int:
    return (3 * target + 2 * holder) % 3


@given(programs(), st.booleans(), st.sampled_from([2, MOST_PENDING]))
@settings(derandomize=True, deadline=None, max_examples=1500)
def test_any_program_reads_the_truth_for_the_least_volume(program: list[Launch], nearby: bool, most: int) -> None:
    with mock.patch.object(movement_plan, "MOST_PENDING", most):
        follow(program, nearby)


def follow(program: list[Launch], nearby: bool) -> None:
    memories, state = Memories(), Validity.initial()
    for launch in program:
        unwritten = {
            point
            for use in launch
            for point in use.rect.points()
            if use.privilege.reads and point not in memories.truth
        }
        if unwritten:
            with pytest.raises(UnwrittenRead) as caught:
                state.advance(launch)
            assert set(caught.value.rect.points()) <= unwritten
            assert not caught.value.rect.is_empty
            continue
        least = memories.cheapest(launch)
        before = {point: memories.holders(point) for point in memories.truth}
        movements, after = state.advance(launch, distance if nearby else None)
        assert movements.volume() == least
        folded = {point for fold in movements.folds for point in fold.rect.points()}
        for copy in movements.copies if nearby else ():
            for point in set(copy.rect.points()) - folded:
                nearest = min(distance(copy.target, holder) for holder in before[point])
                assert distance(copy.target, copy.source) == nearest
        memories.execute(movements)
        memories.run(launch)
        memories.check(after)
        ordered = sorted(movements.copies, key=lambda copy: (by_place(copy.rect), copy.source, copy.target))
        assert list(movements.copies) == ordered
        if not any(use.privilege.reduces for use in launch):
            assert state.advance(launch[::-1], distance if nearby else None) == (movements, after)
        state = after


@given(programs(), st.integers(0, 4), st.integers(0, 4))
@settings(derandomize=True, deadline=None, max_examples=300)
def test_eviction_moves_what_nobody_else_holds(program: list[Launch], memory: int, refuge: int) -> None:
    memories, state = Memories(), Validity.initial()
    for launch in program:
        if not launch[0].privilege.reads:
            movements, state = state.advance(launch)
            memories.execute(movements)
            memories.run(launch)
    if memory == refuge:
        return
    alone = {p for p in memories.values.get(memory, {}) if memories.holders(p) == {memory}}
    if alone:
        with pytest.raises(RequestError, match=f"memory {memory} is the only one that holds"):
            state.evict(memory, None)
    movements, after = state.evict(memory, refuge if alone else None)
    assert movements.volume() == len(alone)
    memories.execute(movements)
    memories.values.pop(memory, None)
    memories.check(after)


def test_many_contributions_of_one_memory_are_merged_into_the_first() -> None:
    state = Validity.of_holdings({1: WHOLE})
    merges = []
    for number in range(2 * MOST_PENDING):
        movements, state = state.advance([Use(number % 2, WHOLE, reduce("+"), (number, 0))])
        assert (movements.folds, movements.copies) == ((), ())
        merges += movements.merges
    assert merges == []
    movements, state = state.advance([Use(0, WHOLE, reduce("+"), (99, 0))])
    evens = tuple((number, 0) for number in range(0, 2 * MOST_PENDING, 2))
    assert movements.merges == (Merge(WHOLE, 0, reduce("+").op, evens),)
    assert movements.volume() == 0
    (fold,) = state.advance([Use(0, WHOLE, READ)])[0].folds
    assert [part.keys for part in fold.parts] == [
        ((0, 0), (99, 0)),
        tuple((number, 0) for number in range(1, 2 * MOST_PENDING, 2)),
    ]


@given(programs())
@settings(derandomize=True, deadline=None, max_examples=300)
def test_interference_is_two_points_at_one_place(program: list[Launch]) -> None:
    for first, second in itertools.pairwise([[], *program]):
        uses = [*first, *second]
        wrong = {
            (i, j)
            for (i, a), (j, b) in itertools.combinations(enumerate(uses), 2)
            if a.key != b.key and meets(a.rect, b.rect) and (a.privilege != b.privilege or a.privilege.writes)
        }
        found = interference(uses)
        assert (found is None) == (not wrong)
        assert found is None or found in wrong
