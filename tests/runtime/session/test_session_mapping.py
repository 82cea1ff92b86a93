"""Sessions and their mappers: layouts, sources, tunables, measurements, memoization, variants, epochs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from launched import TIMEOUT_S, Place, add, fill, made, on_ranks, summed, total

import maniple as mp
from maniple.process.error import RequestError
from maniple.runtime.control.world import World
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.program.mapper import (
    CopyView,
    LaunchView,
    Mapper,
    TaskMapping,
    TaskOptions,
    TaskProfile,
    TaskView,
    TunableView,
)
from maniple.runtime.schedule.failure import TaskFailed
from maniple.runtime.session.session import Session

ROWS = mp.blocks((2,))
Vector = np.ndarray[tuple[int], np.dtype[np.float64]]


@mp.task
def strides(x: mp.ReadWrite) -> list[int]:
    x += 1
    return list(x.stride())


class Columns(Mapper):
    """Asks for the axes of two-dimensional arguments the other way round."""

    def __init__(self, order: tuple[int, int] = (1, 0)) -> None:
        self.chosen = order

    def map_task(self, task: TaskView) -> TaskMapping:
        axes = [use.requirement.region.bounds.ndim for use in task.launch.uses]
        return TaskMapping(task.variants[0], layouts=tuple(self.chosen if count == 2 else None for count in axes))


@pytest.mark.parametrize("size", [1, 2])
def test_an_instance_is_made_with_the_layout_that_its_mapper_chose(size: int) -> None:
    def body(session: Session) -> object:
        x = session.region((4, 3), name="x")
        tiles = mp.blocks((2, 1))
        session.index_launch(fill, (2, 1), 1.0, x[tiles], mapper=Columns())
        seen = session.index_launch(strides, (2, 1), x[tiles], mapper=Columns())
        for _ in range(2):  # replayed, and across ranks: every rank reads what others hold
            with session.trace("step"):
                session.index_launch(strides, (2, 1), x[tiles])
        return seen[0, 0], x.read().tolist()

    # An instance has room for what its rank uses: all rows, or half of them.
    assert on_ranks(size, body) == [([1, 4 // size], [[4.0] * 3] * 4)] * size


def test_an_instance_keeps_its_layout(session: Session) -> None:
    x = session.region((4, 3), name="x")
    x.write(torch.ones(4, 3))
    message = r"Columns\.map_task answered layout \(1, 0\) for .*strides, region x in memory 0; legal: \(0, 1\)"
    with pytest.raises(RequestError, match=message):
        session.launch(strides, x, mapper=Columns())
    assert session.launch(strides, x, mapper=Columns((0, 1))).get() == [3, 1]


class Far(Mapper):
    """Takes values from the highest rank that has them, and notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def select_sources(self, copy: CopyView) -> Sequence[int]:
        self.asked.append((copy.region, copy.target))
        return [len(copy.sources) - source for source in copy.sources]


def test_a_mapper_chooses_where_values_are_copied_from() -> None:
    def body(world_session: Session) -> object:
        mapper = Far()
        session = Session(world_session.runtime, world_session.machine, mapper)
        x = session.region((4,), name="x")
        session.launch(fill, 2.0, x, mapper=Place(lambda _: 0))
        session.launch(summed, x, mapper=Place(lambda _: 2))  # now memories 0 and 2 have it
        transport = session.runtime.world.transport
        assert transport is not None
        session.fence()
        before = transport.total()
        session.launch(summed, x, mapper=Place(lambda _: 1)).get()
        session.fence()
        return transport.total() - before, mapper.asked

    found = on_ranks(3, body)
    assert [sent for sent, _ in found] == [0, 0, 16]  # type: ignore[misc]
    assert found[0][1] == [("x", 1)]  # type: ignore[index]


class Asked(Mapper):
    def __init__(self, answer: bool | float | str) -> None:
        self.answer = answer

    def select_tunable(self, tunable: TunableView) -> bool | float | str:
        return self.answer if tunable.name == "tiles" else tunable.default


def test_a_program_asks_for_tunable_values(session: Session) -> None:
    asking = Session(session.runtime, session.machine, Asked(8))
    assert asking.tunable("tiles", 4) == 8
    assert asking.tunable("other", "x") == "x"
    with pytest.raises(RequestError, match=r"Asked\.select_tunable answered 8 for 'tiles'; legal: bool, as"):
        asking.tunable("tiles", True)


class Measuring(Mapper):
    def __init__(self) -> None:
        self.profiles: list[tuple[TaskProfile, ...]] = []

    def task_options(self, launch: LaunchView) -> TaskOptions:
        return TaskOptions(profile=launch.name.endswith("add"))

    def report_profiling(self, profile: tuple[TaskProfile, ...]) -> None:
        self.profiles.append(profile)


def test_measurements_are_the_same_on_every_rank() -> None:
    def body(world_session: Session) -> object:
        mapper = Measuring()
        session = Session(world_session.runtime, world_session.machine, mapper)
        x, y = session.region((4,)), session.region((4,))
        x.fill(1.0)
        y.fill(1.0)
        for _ in range(3):
            session.index_launch(add, 2, 1.0, x[ROWS], y[ROWS])
        session.launch(summed, y)
        session.fence()
        session.fence()
        return mapper.profiles

    first, second = on_ranks(2, body)
    assert first == second
    snapshot, nothing = first  # type: ignore[misc]
    assert [(row.name, row.processor, row.count) for row in snapshot] == [("launched.add", p, 3) for p in (0, 1)]
    assert all(row.seconds > 0 for row in snapshot)
    assert nothing == ()


def test_options_have_arguments_checked(session: Session) -> None:
    class Checking(Mapper):
        def task_options(self, launch: LaunchView) -> TaskOptions:
            return TaskOptions(check=True)

    @mp.task
    def liar(x: mp.Read) -> None:
        x += 1

    x = session.region((2,))
    x.fill(0.0)
    with pytest.raises(TaskFailed, match="wrote its argument 'x'"):
        session.launch(liar, x, mapper=Checking()).get()


def test_what_may_not_be_memoized_is_mapped_every_time(session: Session) -> None:
    asked: list[str] = []

    class Forgetful(Mapper):
        def memoize(self, launch: LaunchView) -> bool:
            asked.append(launch.name)
            return False

    x = session.region((2,))
    x.fill(0.0)
    for _ in range(3):
        with session.trace("step"):
            session.launch(summed, x, mapper=Forgetful())
    assert len(asked) == 3


# ------------------------------------------------------------------------------------------------------------- variants


@mp.task
def scaled(a: float, color: mp.Color, x: mp.Read, y: mp.ReduceSum) -> float:
    y += a * x
    return float(x.sum())


@scaled.variant("numba")
def scaled_loop(a: float, color: tuple[int, ...], x: Vector, y: Vector) -> float:
    seen = 0.0
    for i in range(x.shape[0]):
        y[i] += a * x[i]
        seen += x[i]
    return seen


@scaled.variant("cuda")
def scaled_on_gpu(a: float, color: tuple[int, ...], x: torch.Tensor, y: torch.Tensor) -> float:
    return scaled.function(a, color, x, y)


class Chosen(Mapper):
    def __init__(self, variant: str) -> None:
        self.variant = variant

    def map_task(self, task: TaskView) -> TaskMapping:
        return TaskMapping(self.variant)


@pytest.mark.parametrize("variant", ["cpu", "numba"])
def test_variants_for_the_processor_compute_the_same(session: Session, variant: str) -> None:
    x, y = session.region((6,), "float64"), session.region((6,), "float64")
    x.write(torch.arange(6.0, dtype=torch.float64))
    y.fill(1.0)
    for number in range(3):  # launched, and replayed
        with session.trace("step"):
            sums = session.index_launch(scaled, 2, float(number), x[ROWS], y[ROWS], mapper=Chosen(variant))
    assert [sums[0], sums[1]] == [3.0, 12.0]
    assert y.read().tolist() == [1.0 + 3.0 * i for i in range(6)]


def test_a_variant_for_another_processor_is_refused(session: Session) -> None:
    x = session.region((6,), "float64")
    x.fill(0.0)
    with pytest.raises(RequestError, match=r"Chosen\.map_task answered 'cuda' .*; legal: variants \['cpu', 'numba'\]"):
        session.launch(scaled, 1.0, x, x, mapper=Chosen("cuda"))


def test_a_compiled_body_runs_without_the_interpreter_lock(session: Session) -> None:
    """Each waits for the other in compiled code, which one holder of the lock could not."""

    @mp.task
    def meet(color: mp.Color, flags: mp.ReadWrite) -> None:
        raise AssertionError("the variant was to be chosen")

    @meet.variant("numba")
    def meet_spinning(color: tuple[int, ...], flags: Vector) -> None:
        mine, other = color[0], 1 - color[0]
        flags[mine] = 1
        turns = 0
        while flags[other] == 0 and turns < 2_000_000_000:
            turns += 1
            flags[2 + mine] = turns  # may be what is waited for, as far as the compiler knows
        flags[2 + mine] = flags[other]

    flags = torch.zeros(4, dtype=torch.int64)
    compiled = meet.variants["numba"]
    for color in ((0,), (1,)):  # compiled before both run
        ready = torch.ones(4, dtype=torch.int64)
        compiled.call(color, ready.numpy())
    threads = [threading.Thread(target=compiled.call, args=((i,), flags.numpy())) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert flags.tolist() == [1, 1, 1, 1]


# --------------------------------------------------------------------------------------------------- what runs together


def test_the_points_of_an_epoch_run_at_the_same_time(session: Session) -> None:
    barrier = threading.Barrier(2)

    @mp.task
    def meet(color: mp.Color) -> int:
        barrier.wait(TIMEOUT_S)
        return color[0]

    for _ in range(5):
        seen = session.index_launch(meet, 2, must_epoch=True)
    assert seen.reduce("+") == 1


def test_an_epoch_needs_a_processor_for_each_point_and_no_trace(session: Session) -> None:
    @mp.task
    def idle() -> None: ...

    with pytest.raises(RequestError, match=r"select_processor answered \[0, 0, 1\] .*legal: a processor of its own"):
        session.index_launch(idle, 3, must_epoch=True)
    with session.trace("step"), pytest.raises(RequestError, match=r"a must-epoch launch was asked for inside trace"):
        session.index_launch(idle, 2, must_epoch=True)


def test_a_deterministic_world_has_one_order_of_events() -> None:
    """Ten runs of a program with much freedom: two processors, chains of their own, reductions, priorities."""

    def run() -> list[tuple[str, int]]:
        world = replace(World.solo(processors=2, cores=1), deterministic=True)
        session = made(world)
        order: list[tuple[str, int]] = []
        lock = threading.Lock()

        @mp.task
        def note(color: mp.Color, name: str, x: mp.ReadWrite) -> None:
            with lock:
                order.append((name, color[0]))
            x += 1

        @mp.task
        def idle(color: mp.Color) -> None:
            with lock:
                order.append(("idle", color[0]))

        x, y, sums = session.region((4,)), session.region((4,)), session.region(())
        for region in (x, y, sums):
            region.fill(0.0)
        for _ in range(4):
            session.index_launch(note, 2, "x", x[ROWS], mapper=Place(lambda index: 1 - index))
            session.index_launch(note, 2, "y", y[ROWS])
            session.index_launch(total, 2, y[ROWS], sums)
            session.index_launch(idle, 2)
            session.index_launch(idle, 2, must_epoch=True)
        assert sums.read().item() == 4.0 * (1 + 2 + 3 + 4)
        session.runtime.close()
        return [entry for entry in order if entry[0] != "idle"]

    first = run()
    assert first == [(name, point) for _ in range(4) for name in "xy" for point in range(2)]
    assert all(run() == first for _ in range(9))


def test_a_closed_runtime_is_forgotten() -> None:
    world = World.solo(processors=1, cores=1)
    session = made(world)
    runtime = session.runtime
    assert RankRuntime.of(world) is runtime
    runtime.close()
    assert RankRuntime.of(world) is not runtime
    RankRuntime.of(world).close()
