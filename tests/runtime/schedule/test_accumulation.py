"""Accumulation: what a processor contributes to the same elements is held once, and added up in program order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch

from maniple.operators.lowering.step_program import FragmentCache, Program, lower
from maniple.regions.logical_region import LogicalRegion
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, Privilege, accumulate, reduce
from maniple.regions.rectangle import Rect
from maniple.runtime.control.world import World
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.machine.machine import Machine
from maniple.runtime.machine.world_machine import host_machine
from maniple.runtime.schedule.accumulation import ALIGNMENT, adding, scratch_bytes
from maniple.runtime.schedule.launch import Binder, Launch, Point, Requirement
from maniple.runtime.schedule.schedule import InstanceKind, RowKind, Schedule
from maniple.testing import local_worlds, run_on_worlds

TIMEOUT_S = 30.0
WHOLE = Rect((0,), (4,))
SUM = LogicalRegion(0, "sum", WHOLE, "float64")
Views = Sequence[torch.Tensor | None]


def writes(value: float) -> Binder:
    """Bodies that write a value and know nothing of sums."""

    def bind(point: int, views: Views, cores: int) -> Callable[[], object]:
        (view,) = views
        assert view is not None
        return lambda: view.fill_(value * (point + 1))

    return bind


@dataclass(frozen=True)
class Adds:
    """Bodies that add a value where they are told to."""

    value: float

    def __call__(self, point: int, views: Views, cores: int) -> Callable[[], object]:
        return writes(self.value)(point, views, cores)

    def adds_in_place(self, adding: frozenset[int]) -> bool:
        return adding == {0}

    def bind_adding(self, point: int, views: Views, cores: int, adding: frozenset[int]) -> Callable[[], object]:
        (view,) = views
        assert view is not None
        return lambda: view.add_(self.value * (point + 1))


def looks(seen: list[float]) -> Binder:
    def bind(point: int, views: Views, cores: int) -> Callable[[], object]:
        (view,) = views
        assert view is not None
        return lambda: seen.append(float(view[0]))

    return bind


def launch(name: str, processors: Sequence[int], privilege: Privilege, binder: Binder) -> Launch:
    points = tuple(Point((number,), processor) for number, processor in enumerate(processors))
    return Launch(name, points, (Requirement(SUM, privilege, (WHOLE,) * len(points)),), binder)


def contributions(
    count: int, processors: Sequence[int], body: Callable[[float], Binder], seen: list[float], privilege: Privilege
) -> Program:
    """So many launches that contribute 1, 2, 4, ... times the number of their point, and one that reads."""
    launches = [launch(f"add{number}", processors, privilege, body(2.0**number)) for number in range(count)]
    return Program((*launches, launch("look", processors[:1], READ, looks(seen))), {})


def reductions(schedule: Schedule) -> int:
    return schedule.instances.kind.tolist().count(InstanceKind.REDUCTION)


@pytest.mark.parametrize("count", [1, 2, 8, 40])
def test_a_processor_holds_one_contribution_whatever_their_number(count: int) -> None:
    """Four tasks of a launch on two processors:

    launch   p0                        p1
    add0     [0] makes #0, [2] adds    [1] makes #1, [3] adds
    add1     [0] and [2] add to #0     [1] and [3] add to #1
    look     folds #0 and #1
    """
    cache = FragmentCache(Machine.cpu(2))
    schedule = lower(contributions(count, (0, 1, 0, 1), writes, [], accumulate("+")), cache)
    assert reductions(schedule) == 2
    assert schedule.kind.tolist().count(RowKind.FOLD) == 1
    rows = [row for row in range(len(schedule)) if schedule.kind[row] == RowKind.TASK]
    added = [bool(adding(schedule, row)) for row in rows]
    assert added == [False, False, True, True, *[True] * 4 * (count - 1), False]
    assert schedule.memory_bytes() == {0: 3 * 32}
    alone = lower(contributions(count, (0, 1, 0, 1), writes, [], reduce("+")), cache)
    assert reductions(alone) == 4 * count


@pytest.mark.parametrize("body", [writes, Adds])
@pytest.mark.parametrize("processors", [(0,), (0, 1), (0, 1, 0, 1)])
def test_the_sum_is_that_of_all_contributions_in_every_run(
    body: Callable[[float], Binder], processors: Sequence[int]
) -> None:
    world = World.solo(processors=2, cores=1)
    runtime, seen = RankRuntime(world), list[float]()
    schedule = lower(contributions(5, processors, body, seen, accumulate("+")), FragmentCache(host_machine(world)))
    replay = runtime.load(schedule, [])
    runs = [replay.submit() for _ in range(30)]
    runs[-1].wait()
    runtime.close()
    # A second run writes over the first one's sum: what is left of it would show.
    assert seen == [31.0 * sum(range(1, len(processors) + 1))] * 30


@pytest.mark.parametrize("body", [writes, Adds])
def test_ranks_send_one_sum_each(body: Callable[[float], Binder]) -> None:
    def run(world: World) -> tuple[list[float], int, int]:
        runtime, seen = RankRuntime.of(world), list[float]()
        schedule = lower(contributions(6, (0, 1), body, seen, accumulate("+")), FragmentCache(host_machine(world)))
        replay = runtime.load(schedule, [])
        last = [replay.submit() for _ in range(10)][-1]
        last.wait()
        assert world.transport is not None
        return seen, world.transport.count_bytes(last.number), schedule.total_bytes

    (seen, sent, predicted), (_, other, _) = run_on_worlds(local_worlds(2), run, TIMEOUT_S)
    assert seen == [63.0 * 3] * 10
    assert sent + other == predicted == 32


def test_what_was_folded_is_added_to_no_more() -> None:
    """A read folds #0, so what comes later makes a contribution of its own; the sum goes on from what was read."""
    runtime, first, second = RankRuntime(World.solo(processors=1, cores=1)), list[float](), list[float]()
    program = (
        launch("write", (0,), WRITE_DISCARD, writes(100.0)),
        *(launch("add", (0,), accumulate("+"), Adds(1.0)) for _ in range(3)),
        launch("look", (0,), READ, looks(first)),
        *(launch("add", (0,), accumulate("+"), Adds(1.0)) for _ in range(2)),
        launch("look", (0,), READ, looks(second)),
    )
    schedule = lower(Program(program, {}), FragmentCache(Machine.cpu(1)))
    assert reductions(schedule) == 2
    runtime.load(schedule, []).submit().wait()
    runtime.close()
    assert (first, second) == ([103.0], [105.0])


def test_a_value_is_changed_in_place_by_bodies_that_accumulate() -> None:
    """Where one task at a time adds to all of a value, it is that value that is added to: nothing is folded."""
    runtime, seen = RankRuntime(World.solo(processors=1, cores=1)), list[float]()
    program = (
        launch("write", (0,), WRITE_DISCARD, Adds(100.0)),
        launch("add", (0,), READ_WRITE, Adds(1.0)),
        launch("add", (0,), READ_WRITE, Adds(2.0)),
        launch("look", (0,), READ, looks(seen)),
    )
    schedule = lower(Program(program, {}), FragmentCache(Machine.cpu(1)))
    assert len(schedule.instances) == 1
    runtime.load(schedule, []).submit().wait()
    runtime.close()
    assert seen == [103.0]


def test_scratch_is_of_processors_whose_bodies_cannot_add() -> None:
    cache = FragmentCache(Machine.cpu(2))
    assert scratch_bytes(lower(contributions(3, (0, 1), writes, [], accumulate("+")), cache)) == {
        0: ALIGNMENT,
        1: ALIGNMENT,
    }
    assert scratch_bytes(lower(contributions(1, (0, 1), writes, [], accumulate("+")), cache)) == {}
    assert scratch_bytes(lower(contributions(3, (0, 1), Adds, [], accumulate("+")), cache)) == {}


@pytest.mark.parametrize(("symbol", "expected"), [("max", 16.0), ("min", 1.0), ("*", 1024.0)])
def test_what_is_no_sum_is_folded_by_its_operation(symbol: str, expected: float) -> None:
    runtime, seen = RankRuntime(World.solo(processors=1, cores=1)), list[float]()
    schedule = lower(contributions(5, (0,), Adds, seen, accumulate(symbol)), FragmentCache(Machine.cpu(1)))
    assert scratch_bytes(schedule) == {0: ALIGNMENT}
    runtime.load(schedule, []).submit().wait()
    runtime.close()
    assert seen == [expected]
