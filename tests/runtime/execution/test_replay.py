"""Replays: a schedule run again and again, with two runs under way, on one rank and on several."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
import torch

from maniple.operators.lowering.step_program import FragmentCache, Program, lower
from maniple.regions.logical_region import LogicalRegion
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, Privilege, reduce
from maniple.regions.rectangle import Rect
from maniple.runtime.control.world import World
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.machine.machine import Machine
from maniple.runtime.machine.world_machine import host_machine
from maniple.runtime.schedule.failure import TaskFailed
from maniple.runtime.schedule.launch import Binder, Launch, Point, Requirement
from maniple.runtime.schedule.schedule import RowKind, Schedule
from maniple.testing import local_worlds, run_on_worlds

TIMEOUT_S = 30.0
WHOLE = Rect((0,), (4,))
HALVES = (Rect((0,), (2,)), Rect((2,), (4,)))
STATE = LogicalRegion(0, "state", WHOLE, "float64")
SUM = LogicalRegion(1, "sum", WHOLE, "float64")

Body = Callable[[int, list[torch.Tensor]], object]


def bound(body: Body) -> Binder:
    def bind(point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], object]:
        there = [view for view in views if view is not None]
        return lambda: body(point, there)

    return bind


def launch(
    name: str,
    processors: Sequence[int],
    uses: Sequence[tuple[LogicalRegion, Privilege, tuple[Rect, ...]]],
    body: Body | None,
) -> Launch:
    points = tuple(Point((number,), processor) for number, processor in enumerate(processors))
    binder = None if body is None else bound(body)
    return Launch(name, points, tuple(Requirement(*use) for use in uses), binder)


def counting(processors: Sequence[int], homes: Sequence[int], seen: dict[int, list[float]]) -> Program:
    """Every step adds 1 and 2 to a sum that all see, and the sum to a state that lasts.

    Args:
        processors: of the two contributors, who also read the sum.
        homes: of the two halves of the state: (processor, memory) are equal here.
        seen: what each reader saw of the sum's first element, by point.
    """

    def contribute(point: int, views: list[torch.Tensor]) -> None:
        views[0].fill_(point + 1.0)

    def look(point: int, views: list[torch.Tensor]) -> None:
        seen.setdefault(point, []).append(float(views[0][0]))

    def update(point: int, views: list[torch.Tensor]) -> None:
        views[0].add_(views[1])

    launches = (
        launch("contribute", processors, [(SUM, reduce("+"), (WHOLE,) * 2)], contribute),
        launch("look", processors, [(SUM, READ, (WHOLE,) * 2)], look),
        launch("update", homes, [(STATE, READ_WRITE, HALVES), (SUM, READ, HALVES)], update),
    )
    return Program(launches, {})


def at_home(program: Program, memories: Sequence[int]) -> Program:
    held: dict[int, list[Rect]] = {}
    for memory, rect in zip(memories, HALVES, strict=True):
        held.setdefault(memory, []).append(rect)
    return Program(program.launches, {0: tuple((memory, tuple(rects)) for memory, rects in sorted(held.items()))})


def test_steps_with_two_under_way_add_up_on_one_rank() -> None:
    world = World.solo(processors=2, cores=1)
    runtime = RankRuntime(world)
    seen: dict[int, list[float]] = {}
    schedule = lower(at_home(counting((0, 1), (1, 0), seen), (0, 0)), FragmentCache(host_machine(world)))
    replay = runtime.load(schedule, [0])
    runs = [replay.submit() for _ in range(50)]
    runs[-1].wait()
    assert runtime.memories[runtime.world.rank].view(STATE, WHOLE).tolist() == [150.0] * 4
    assert seen == {0: [3.0] * 50, 1: [3.0] * 50}
    assert [run.number for run in runs] == list(range(1, 51))
    begun, ended = replay.times[runs[-1].slot]
    assert all(0 < begun[row] <= ended[row] for row in range(len(schedule)))
    runtime.close()


def on_ranks(size: int, shuffle: int | None, body: Callable[[RankRuntime, Machine], object]) -> list[object]:
    worlds = local_worlds(size, shuffle=shuffle)
    return run_on_worlds(worlds, lambda world: body(RankRuntime.of(world), host_machine(world)), TIMEOUT_S)


@pytest.mark.parametrize("shuffle", [None, 1, 2])
def test_ranks_reduce_and_read_without_mixing_their_steps(shuffle: int | None) -> None:
    def body(runtime: RankRuntime, machine: Machine) -> object:
        seen: dict[int, list[float]] = {}
        schedule = lower(at_home(counting((0, 1), (0, 1), seen), (0, 1)), FragmentCache(machine))
        assert RowKind.ALL_REDUCE in schedule.kind.tolist()
        replay = runtime.load(schedule, [0])
        runs = [replay.submit() for _ in range(40)]
        runs[-1].wait()
        assert runtime.world.transport is not None
        measured = [runtime.world.transport.count_bytes(run.number) for run in runs]
        half = runtime.memories[runtime.world.rank].view(STATE, HALVES[runtime.world.rank]).tolist()
        return half, seen, measured, schedule.total_bytes

    found = on_ranks(2, shuffle, body)
    for rank, (half, seen, _, _) in enumerate(found):  # type: ignore[misc]
        assert half == [120.0, 120.0]
        assert seen == {rank: [3.0] * 40}
    (_, _, first, predicted), (_, _, second, _) = found  # type: ignore[misc]
    assert [a + b for a, b in zip(first, second, strict=True)] == [predicted] * 40


def chain(bodies: Sequence[Body]) -> Schedule:
    """A value written by p0 and read by p1."""
    write = launch("write", (0,), [(SUM, WRITE_DISCARD, (WHOLE,))], bodies[0])
    look = launch("look", (1,), [(SUM, READ, (WHOLE,))], bodies[1])
    return lower(Program((write, look), {}), FragmentCache(Machine.cpu(2)))


def test_a_row_waits_for_a_row_of_another_processor() -> None:
    runtime = RankRuntime(World.solo(processors=2, cores=1))
    event = threading.Event()
    seen: list[float] = []

    def write(point: int, views: list[torch.Tensor]) -> None:
        assert event.wait(TIMEOUT_S)
        views[0].fill_(6.0)

    run = runtime.load(chain([write, lambda point, views: seen.append(float(views[0].sum()))]), []).submit()
    assert seen == []
    event.set()
    run.wait()
    assert seen == [24.0]
    runtime.close()


def test_the_third_run_waits_for_the_first() -> None:
    runtime = RankRuntime(World.solo(processors=2, cores=1))
    gate, third = threading.Semaphore(0), threading.Event()

    def look(point: int, views: list[torch.Tensor]) -> None:
        assert gate.acquire(timeout=TIMEOUT_S)

    replay = runtime.load(chain([lambda point, views: views[0].fill_(1.0), look]), [])
    first, second = replay.submit(), replay.submit()

    def submit() -> None:
        replay.submit()
        third.set()

    thread = threading.Thread(target=submit, daemon=True)
    thread.start()
    assert (first.left, second.left) != (0, 0)
    assert not third.is_set()
    gate.release(3)
    assert third.wait(TIMEOUT_S)
    assert first.left == 0
    thread.join(TIMEOUT_S)
    runtime.drain()
    runtime.close()


def test_another_replay_starts_when_the_one_before_has_ended() -> None:
    runtime = RankRuntime(World.solo(processors=2, cores=1))
    ran: list[str] = []
    replays = [
        runtime.load(
            chain([lambda point, views: views[0].fill_(0.0), lambda point, views, name=name: ran.append(name)]),  # type: ignore[misc]
            [],
        )
        for name in "ab"
    ]
    for number in (0, 0, 1, 0, 1, 1):
        replays[number].submit()
    runtime.drain()
    assert ran == list("aababb")
    runtime.close()


def test_lasting_storage_that_grows_is_bound_again() -> None:
    runtime = RankRuntime(World.solo(processors=1, cores=1))
    machine = Machine.cpu(1)
    small = launch("small", (0,), [(STATE, READ_WRITE, (HALVES[0],))], lambda point, views: views[0].add_(1.0))
    large = launch("large", (0,), [(STATE, READ_WRITE, (WHOLE,))], lambda point, views: views[0].add_(10.0))
    replays = [
        runtime.load(lower(Program((one,), {0: ((0, one.requirements[0].rects),)}), FragmentCache(machine)), [0])
        for one in (small, large)
    ]
    for number in (0, 1, 0, 1):
        replays[number].submit()
    runtime.drain()
    assert runtime.memories[runtime.world.rank].view(STATE, WHOLE).tolist() == [22.0, 22.0, 20.0, 20.0]
    runtime.close()


def test_a_task_that_raises_ends_every_wait() -> None:
    runtime = RankRuntime(World.solo(processors=2, cores=1))

    def explode(point: int, views: list[torch.Tensor]) -> None:
        raise ZeroDivisionError("one over zero")

    replay = runtime.load(chain([explode, lambda point, views: None]), [])
    run = replay.submit()
    with pytest.raises(
        TaskFailed, match=r"task write\[0\]@p0 failed on node 0 \(rank 0\): ZeroDivisionError"
    ) as caught:
        run.wait()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    for again in (run.wait, replay.submit):
        with pytest.raises(TaskFailed, match="write") as other:
            again()
        assert other.value is not caught.value
    runtime.drain()  # others go on
    runtime.close()


def test_a_schedule_made_for_planning_cannot_run() -> None:
    runtime = RankRuntime(World.solo(processors=1, cores=1))
    planned = launch("planned", (0,), [(SUM, WRITE_DISCARD, (WHOLE,))], None)
    replay = runtime.load(lower(Program((planned,), {}), FragmentCache(Machine.cpu(1))), [])
    with pytest.raises(TypeError, match=r"planned\[0\]@p0 has no body"):
        replay.submit()
    runtime.close()
