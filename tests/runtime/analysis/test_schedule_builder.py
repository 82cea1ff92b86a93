"""Composition: schedules of several regions, judged by running repeated steps on plain arrays."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from maniple.operators.lowering.step_program import FragmentCache, Program, lower
from maniple.regions.index_space import IndexSpace
from maniple.regions.logical_region import LogicalRegion
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, Privilege, reduce
from maniple.regions.rectangle import Rect
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.launch import Launch, Point, Requirement
from maniple.runtime.schedule.schedule import InstanceKind, RowKind, Schedule

SIZE = 6
WHOLE = Rect((0,), (SIZE,))
SUM = reduce("+")
MACHINE = Machine.cpu(2, ranks=2)
LASTING = LogicalRegion(0, "lasting", WHOLE, "int64")
PASSING = LogicalRegion(1, "passing", WHOLE, "int64")
HOMES = {0: ((0, (Rect((0,), (3,)),)), (1, (Rect((3,), (6,)),)))}
STEPS = 3


def span(low: int, high: int) -> Rect:
    return Rect((low,), (high,))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Launches on two regions; the passing one is written first, and points of a launch are on any processors."""
    place = st.integers(0, 3)
    launches = [Launch("first", (Point((), draw(place)),), (Requirement(PASSING, WRITE_DISCARD, (WHOLE,)),))]
    for number in range(draw(st.integers(1, 5))):
        middle = draw(st.integers(1, SIZE - 1))
        halves = (span(0, middle), span(middle, SIZE))
        points = (Point((0,), draw(place)), Point((1,), draw(place)))
        requirements = []
        for region in draw(st.sampled_from([(LASTING,), (PASSING,), (LASTING, PASSING), (PASSING, LASTING)])):
            privilege = draw(st.sampled_from([READ, WRITE_DISCARD, READ_WRITE, SUM]))
            rects = halves if privilege.writes else draw(st.sampled_from([halves, (WHOLE, WHOLE), (WHOLE, span(0, 0))]))
            requirements.append(Requirement(region, privilege, rects))
        launches.append(Launch(f"launch{number}", points, tuple(requirements)))
    # Both halves go home, so that the next step finds them there.
    home = (Point((0,), 0), Point((1,), 2))
    launches.append(Launch("home", home, (Requirement(LASTING, READ_WRITE, (span(0, 3), span(3, 6))),)))
    last = Requirement(PASSING, READ, (WHOLE,))
    launches.append(Launch("last", (Point((), draw(place)),), (last,)))
    return Program(tuple(launches), HOMES)


def value(step: int, launch: int, point: int, slot: int) -> int:
    return 1 + 1000 * step + 50 * launch + 7 * point + 3 * slot


def act(privilege: Privilege, view: np.ndarray, number: int, *, alone: bool) -> list[int] | None:
    """Do what a task does: note what it reads, then write. `alone` is a contribution in its own instance."""
    seen = view.tolist() if privilege.reads else None
    if privilege == WRITE_DISCARD or (privilege.reduces and alone):
        view[:] = number
    elif privilege == READ_WRITE:
        view[:] = view % 1000 + number
    elif privilege.reduces:
        view[:] = view + number
    return seen


Seen = dict[tuple[int, int, int, int], list[int] | None]


def meaning(program: Program) -> Seen:
    arrays = {0: np.zeros(SIZE, dtype=np.int64), 1: np.zeros(SIZE, dtype=np.int64)}
    seen: Seen = {}
    for step in range(STEPS):
        for number, launch in enumerate(program.launches):
            for point in range(len(launch.points)):
                for slot, requirement in enumerate(launch.requirements):
                    rect = requirement.rects[point]
                    if not rect.is_empty:
                        view = arrays[requirement.region.id][rect.lo[0] : rect.hi[0]]
                        key = (step, number, point, slot)
                        seen[key] = act(requirement.privilege, view, value(*key), alone=False)
    return seen


class Interpreter:
    """Runs rows of a schedule on arrays, one per instance, kept from step to step."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.arrays = [np.full(SIZE, -(10**9), dtype=np.int64) for _ in schedule.instances]
        for array, instance in zip(self.arrays, schedule.instances, strict=True):
            if schedule.regions[instance.region].id == 0 and instance.kind == InstanceKind.MAIN:
                array[:] = 0
        self.seen: Seen = {}

    def view(self, instance: int, rect: Rect) -> np.ndarray:
        """The elements of a dense rectangle; a sparse one is moved by `get` and `put`."""
        assert self.schedule.instances[instance].rect.contains(rect)
        return self.arrays[instance][rect.lo[0] : rect.hi[0]]

    def get(self, instance: int, space: IndexSpace) -> np.ndarray:
        return np.concatenate([self.view(instance, rect) for rect in space.rects])

    def put(self, instance: int, space: IndexSpace, values: np.ndarray) -> None:
        for rect in space.rects:
            self.view(instance, rect)[:], values = values[: rect.volume], values[rect.volume :]

    def run(self, row: int, step: int) -> None:
        schedule = self.schedule
        accesses = schedule.accesses(row)
        if schedule.kind[row] == RowKind.TASK:
            number, point = int(schedule.launch[row]), int(schedule.point[row])
            for access in accesses:
                privilege = schedule.launches[number].requirements[access.slot].privilege
                key = (step, number, point, access.slot)
                self.seen[key] = act(privilege, self.view(access.instance, access.rect), value(*key), alone=True)
            return
        if schedule.kind[row] == RowKind.FOLD:
            target, *parts = accesses
            self.put(target.instance, target.rect, sum(self.get(p.instance, p.rect) for p in parts))
        for push in schedule.transfers(row):
            if push.after < 0:
                self.put(push.target, push.rect, self.get(push.source, push.rect))
        for piece in schedule.pieces.get(row, ()):
            self.put(piece.target, piece.rect, sum(self.get(p, piece.rect) for p in piece.parts))
        for push in schedule.transfers(row):
            if push.after >= 0:
                self.put(push.target, push.rect, self.get(push.source, push.rect))


@settings(max_examples=60)
@given(programs(), st.randoms(use_true_random=False))
def test_steps_mean_the_same_in_every_order_that_the_dependences_allow(program: Program, random: object) -> None:
    schedule = lower(program, FragmentCache(MACHINE))
    nodes = [(step, row) for step in range(STEPS) for row in range(len(schedule))]
    before: dict[tuple[int, int], set[tuple[int, int]]] = {node: set() for node in nodes}
    for step in range(STEPS):
        for first, then in schedule.edges():
            before[step, then].add((step, first))
        if step:
            for row in range(len(schedule)):
                before[step, row].add((step - 1, row))
            for first, then in schedule.carries():
                before[step, then].add((step - 1, first))
    interpreter = Interpreter(schedule)
    done: set[tuple[int, int]] = set()
    left = list(nodes)
    while left:
        ready = [node for node in left if before[node] <= done]
        assert ready, "the dependences form a circle"
        chosen = random.choice(ready)  # type: ignore[attr-defined]
        interpreter.run(chosen[1], chosen[0])
        done.add(chosen)
        left.remove(chosen)
    expected = meaning(program)
    assert set(interpreter.seen) == set(expected)
    for key, wanted in expected.items():
        if wanted is not None:
            assert interpreter.seen[key] == wanted, key


@settings(max_examples=40)
@given(programs())
def test_columns_fit_together(program: Program) -> None:
    schedule = lower(program, FragmentCache(MACHINE))
    position = schedule.order
    assert sorted(position.tolist()) == list(range(len(schedule)))
    for first, then in schedule.edges():
        assert position[first] < position[then]
    for row in range(len(schedule)):
        moved = sum(push.rect.volume for push in schedule.transfers(row)) * 8
        assert schedule.bytes[row] == moved
        assert (schedule.processor[row] < 0) == bool(schedule.transfers(row))
        assert (row in schedule.folds) == (schedule.kind[row] == RowKind.FOLD)
    tasks = [row for row in range(len(schedule)) if schedule.kind[row] == RowKind.TASK]
    placed = [(int(schedule.launch[row]), int(schedule.point[row]), int(schedule.processor[row])) for row in tasks]
    assert placed == [
        (number, index, point.processor)
        for number, launch in enumerate(program.launches)
        for index, point in enumerate(launch.points)
    ]


def test_a_region_used_twice_by_a_launch_has_two_accesses_of_its_rows() -> None:
    first = Launch("first", (Point((), 0),), (Requirement(PASSING, WRITE_DISCARD, (WHOLE,)),))
    both = (Requirement(PASSING, READ, (span(0, 2),)), Requirement(PASSING, READ, (span(4, 6),)))
    schedule = lower(Program((first, Launch("both", (Point((), 2),), both)), {}), FragmentCache(MACHINE))
    row = len(schedule) - 1
    assert [(access.slot, access.rect) for access in schedule.accesses(row)] == [(0, span(0, 2)), (1, span(4, 6))]
    assert {then for _, then in schedule.edges()} == {1, 2, row}


def test_an_empty_rectangle_is_no_access() -> None:
    first = Launch(
        "first", (Point((0,), 0), Point((1,), 1)), (Requirement(PASSING, WRITE_DISCARD, (WHOLE, span(0, 0))),)
    )
    schedule = lower(Program((first,), {}), FragmentCache(MACHINE))
    assert [len(schedule.accesses(row)) for row in range(2)] == [1, 0]


def test_a_task_costs_the_greater_of_its_work_and_its_bytes() -> None:
    """Rows 0 and 1 are alike but for their flops, so the processor of the cheaper one is free sooner."""
    flops = MACHINE.processors[0].flops_per_s  # one second of work
    points = (Point((0,), 0), Point((1,), 1))
    heavy = Launch(
        "heavy", points, (Requirement(PASSING, WRITE_DISCARD, (span(0, 3), span(3, 6))),), None, (flops, 0.0)
    )
    after = Launch("after", points, (Requirement(LASTING, WRITE_DISCARD, (span(0, 3), span(3, 6))),))
    schedule = lower(Program((heavy, after), {}), FragmentCache(MACHINE))
    ranked = sorted(range(4), key=lambda row: int(schedule.order[row]))
    assert ranked == [0, 1, 3, 2]
