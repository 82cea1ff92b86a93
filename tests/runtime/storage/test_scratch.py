"""Scratch of bodies: measured where it is said to be, and what does not fit with it is refused before the step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from device_machine import device_machine
from torch.autograd.profiler_legacy import profile
from trained_networks import NETWORKS, OPTIMIZER

import maniple as mp
from maniple import trainer as trainer_module
from maniple.mappers.default import DefaultMapper
from maniple.process.error import RequestError, RunError
from maniple.process.host_allocation import watch_host_run
from maniple.process.taken_memory import Taken
from maniple.runtime.control.world import World
from maniple.runtime.devices.processor import CpuProcessor, Processor
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.lanes.binding import Binder
from maniple.runtime.machine.world_machine import host_machine
from maniple.runtime.schedule.lane import Step
from maniple.runtime.schedule.launch import Launch
from maniple.runtime.schedule.schedule import RowKind
from maniple.runtime.session.session import Session
from maniple.runtime.storage import scratch
from maniple.runtime.storage.scratch import ScratchTable
from maniple.testing import local_worlds

SIZE = 100  # elements of four bytes
INSTANCE = 4 * SIZE
SCRATCH = 6 * INSTANCE
ran: list[int] = []


@mp.task
def spread(x: mp.ReadWrite) -> None:
    """Takes six times its instance beside it, though never more than four at once in one tensor."""
    ran.append(1)
    four = x.repeat(4)
    x.copy_(four[:SIZE] + x.repeat(1))


@mp.task
def modest(x: mp.ReadWrite) -> None:
    x.neg_()


@mp.task
def compiled(x: mp.ReadWrite) -> None:
    x.add_(1)


@compiled.variant("numba")
def compiled_numba(x) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    x[:] = x + 1


def small(world: World, capacity: int, machine: mp.Machine | None = None) -> Session:
    machine = machine or host_machine(world)
    memories = tuple(replace(memory, capacity_bytes=capacity) for memory in machine.memories)
    return Session(RankRuntime.of(world), replace(machine, memories=memories), mp.Mapper())


@pytest.fixture
def world() -> Iterator[World]:
    made = World.solo(processors=1, cores=1)
    yield made
    RankRuntime.of(made).close()


def traced(session: Session, task: mp.Task[..., None], runs: int) -> None:
    x = session.region((SIZE,), "float32", "x")
    x.fill(1.0)
    for _ in range(runs):
        with session.trace("step"):
            session.launch(task, x)
    session.fence()


def test_a_trace_that_fits_but_for_its_scratch_is_refused_before_it_is_replayed(world: World) -> None:
    traced(small(world, INSTANCE + SCRATCH), spread, 3)
    ran.clear()
    with pytest.raises(RequestError) as caught:
        traced(small(world, INSTANCE + SCRATCH - 1), spread, 2)
    assert ran == [1], "only the recording ran"
    said = str(caught.value)
    assert (
        f"it holds {INSTANCE + SCRATCH - 1:,} B, and {INSTANCE + SCRATCH:,} B want to live there, 1 B too many:" in said
    )
    assert f"{SCRATCH:,} B  scratch of " in said
    assert "spread[]@p0 (recorded)" in said
    assert f"{INSTANCE:,} B  x[0:{SIZE}] (main)" in said


def test_a_body_is_measured_once_and_a_replay_never(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[Taken | None] = []
    taken = scratch.watch_run

    def noted(processor: Processor, work: Callable[[], object]) -> Taken | None:
        measured.append(taken(processor, work))
        return measured[-1]

    monkeypatch.setattr(scratch, "watch_run", noted)
    session = small(world, 1 << 20)
    traced(session, spread, 5)
    traced(session, modest, 5)
    assert measured == [Taken(0, SCRATCH), Taken(0, 0)]


@mp.task
def profiling(x: mp.ReadWrite) -> int:
    with profile() as found:  # type: ignore[no-untyped-call]
        x.neg_()
    return len(found.function_events)


def test_a_task_that_profiles_itself_is_recorded_and_replayed(world: World) -> None:
    session = small(world, 2 * INSTANCE)
    x = session.region((SIZE,), "float32", "x")
    x.fill(1.0)
    seen = []
    for _ in range(3):
        with session.trace("step"):
            seen.append(session.launch(profiling, x))
    assert all(future.get() >= 1 for future in seen)
    assert x.read()[0].item() == -1.0
    (told,) = session.runtime.scratch._known.values()
    assert (told.peak, told.source) == (0, scratch.UNHEARD)


def test_a_launch_under_automatic_tracing_is_looked_up_until_it_is_known(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    watched = ScratchTable.watch

    def noted(table: ScratchTable, launch: Launch, point: int, *rest: Any) -> Callable[[], object]:
        asked.append(point)
        return watched(table, launch, point, *rest)

    monkeypatch.setattr(ScratchTable, "watch", noted)
    session = Session(RankRuntime.of(world), host_machine(world), DefaultMapper())
    session.auto_trace()
    x = session.region((SIZE,), "float32", "x")
    x.write(torch.ones(SIZE))
    for _ in range(20):
        session.launch(modest, x)
        session.fence()  # so that no trace is found
    assert 1 < len(asked) < 5, "measured, then found measured, then not asked for"


def test_what_is_not_recorded_is_not_measured(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "watch_run", None)
    session = small(world, 1 << 20)
    x = session.region((SIZE,), "float32", "x")
    x.fill(1.0)
    session.launch(spread, x)
    session.fence()


def test_compiled_bodies_take_nothing_that_is_heard(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    class Compiled(mp.Mapper):
        def map_task(self, task: mp.plugins.TaskView) -> mp.plugins.TaskMapping:
            return replace(super().map_task(task), variant="numba")

    machine = replace(
        host_machine(world),
        memories=tuple(replace(memory, capacity_bytes=INSTANCE) for memory in host_machine(world).memories),
    )
    traced(Session(RankRuntime.of(world), machine, Compiled()), compiled, 3)


def test_every_rank_refuses_what_one_measured() -> None:
    """The second rank alone runs the body that takes much."""

    def body(world: World) -> str:
        session = small(world, INSTANCE + SCRATCH - 1)
        x, y = (session.region((SIZE,), "float32", name) for name in "xy")
        x.fill(1.0)
        y.fill(1.0)
        for _ in range(2):
            with session.trace("step"):
                session.launch(modest, x, mapper=On(0))
                session.launch(spread, y, mapper=On(1))
        return "ran"

    def refused(world: World) -> str:
        with pytest.raises(RequestError) as caught:
            body(world)
        return str(caught.value)

    worlds = local_worlds(2)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(refused, worlds, timeout=30)
    for world in worlds:
        RankRuntime.of(world).close()
    assert first == second
    assert "memory 1 (rank 1)" in first
    assert "spread[]@p1 (recorded)" in first


class On(mp.Mapper):
    """Everything on one processor."""

    def __init__(self, processor: int) -> None:
        self.processor = processor

    def shard(self, launch: mp.plugins.LaunchView) -> list[int]:
        return [launch.machine.rank_of(self.processor)] * len(launch.colors)

    def select_processor(self, task: mp.plugins.TaskView) -> int:
        return self.processor


@spread.variant("cuda")
def spread_on_gpu(x: torch.Tensor) -> None:
    x.copy_(x.repeat(4)[:SIZE] + x.repeat(1))


def test_a_gpus_memory_must_have_room_for_scratch() -> None:
    for room, fits in ((INSTANCE + SCRATCH, True), (INSTANCE + SCRATCH - 1, False)):
        (world,) = local_worlds(1, device="null")
        session = small(world, room, device_machine(1, 0, 1))
        if fits:
            traced(session, spread, 3)
        else:
            with pytest.raises(RequestError, match=r"scratch of .*spread"):
                traced(session, spread, 2)
        RankRuntime.of(world).close()


def graph() -> mp.Graph:
    g = mp.Graph("wide")
    x, y = g.input("x", (8, 16)), g.input("y", (8,), dtype="int64")
    (h,) = g.call(lambda t: t.repeat(1, 50)[:, :16] + t, g.linear(x, 16), name="wide")
    g.loss(g.cross_entropy(g.linear(h, 3), y))
    return g


def test_a_step_that_fits_but_for_its_scratch_is_refused_before_it_runs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    capacity = 1 << 20

    def host(world: World, processors: tuple[int, ...] = ()) -> mp.Machine:
        machine = host_machine(world, processors)
        return replace(machine, memories=tuple(replace(m, capacity_bytes=capacity) for m in machine.memories))

    monkeypatch.setattr(trainer_module, "host_machine", host)
    network, runtime = graph(), RankRuntime.of(world)
    plan = mp.search(network, mp.Machine.cpu(1), strategy="data_parallel")
    batch = {"x": torch.ones(8, 16), "y": torch.zeros(8, dtype=torch.int64)}
    with mp.Trainer(network, plan, optimizer=OPTIMIZER, world=world) as trainer:
        (loaded,) = trainer._loaded.values()
        runtime.scratch.rehearse(trainer.schedule, runtime.processors, runtime.await_event)
        besides = runtime.scratch.residents(trainer.schedule, runtime.processors)[0]
        need = loaded.replay.needs()[0] + sum(resident.size for resident in besides)
    assert any(r.size >= 50 * 8 * 16 * 4 and "wide.backward[]@p0 (rehearsed)" in r.name for r in besides)
    capacity = need
    with mp.Trainer(network, plan, optimizer=OPTIMIZER, world=world) as trainer:
        trainer.step(**batch)
    capacity = need - 1
    with pytest.raises(RequestError, match=r"this step does not fit[\s\S]*scratch of wide.backward"):
        mp.Trainer(network, plan, optimizer=OPTIMIZER, world=world)


@pytest.mark.parametrize("name", ["digits", "residual"])
def test_a_rehearsal_takes_what_the_step_takes(name: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    network = NETWORKS[name]
    found: dict[int, Taken] = {}
    call = Binder._call

    def measured(binder: Binder, step: Step, turn: int) -> Callable[[], object]:
        bound: list[Callable[[], object]] = []
        kept = watch_host_run(lambda: bound.append(call(binder, step, turn))).kept

        def run() -> None:
            found[step.row] = Taken(kept, watch_host_run(bound[0]).peak)

        return run

    monkeypatch.setattr(Binder, "_call", measured)
    runtime, network_graph = RankRuntime.of(world), network.graph("float32")
    plan = mp.search(network_graph, mp.Machine.cpu(1), strategy="data_parallel")
    with mp.Trainer(network_graph, plan, optimizer=OPTIMIZER, world=world) as trainer:
        for _ in range(2):
            trainer.step(**network.samples(0, network.batch, "float32"))
        schedule, (processor,) = trainer.schedule, runtime.processors.values()
        runtime.scratch.rehearse(schedule, runtime.processors, runtime.await_event)
    compared = 0
    for row, taken in found.items():
        told = runtime.scratch.of(schedule, row, processor)
        if told is not None and schedule.kind[row] == RowKind.TASK:
            assert told.source == "rehearsed"
            assert (told.kept, told.peak) == (taken.kept, taken.peak), schedule.label(row)
            compared += 1
    assert compared > 10
    assert max(taken.peak for taken in found.values()) > 0
    assert max(taken.kept for taken in found.values()) > 0


def test_a_body_that_takes_no_blank_values_is_said_not_to_be_measured(world: World) -> None:
    g = mp.Graph("picky")
    x, y = g.input("x", (4, 3, 3), "float64"), g.input("y", (4,), dtype="int64")
    (h,) = g.call(torch.linalg.inv, x, name="inverse")
    g.loss(g.cross_entropy(g.linear(g.flatten(h), 3), y))
    plan, runtime = mp.search(g, mp.Machine.cpu(1), strategy="data_parallel"), RankRuntime.of(world)
    with mp.Trainer(g, plan, optimizer=OPTIMIZER, world=world) as trainer:
        schedule, (processor,) = trainer.schedule, runtime.processors.values()
        runtime.scratch.rehearse(schedule, runtime.processors, runtime.await_event)
        listed, *_ = runtime.scratch.residents(schedule, runtime.processors)[0]
        (row,) = (row for row in range(len(schedule)) if schedule.label(row).startswith("inverse.forward"))
        told = runtime.scratch.of(schedule, row, processor)
    assert told is not None
    assert (listed.size, listed.name) == (0, f"scratch of inverse.forward[]@p0 ({told.source})")
    assert told.source.startswith("not measured: _LinAlgError: ")


def loaded(world: World, capacity: int, monkeypatch: pytest.MonkeyPatch) -> mp.Trainer:
    """A trainer of the graph above, in memories that hold so much."""
    machine = host_machine(world)
    tight = replace(machine, memories=tuple(replace(memory, capacity_bytes=capacity) for memory in machine.memories))
    monkeypatch.setattr(trainer_module, "host_machine", lambda *_: tight)
    network = graph()
    plan = mp.search(network, mp.Machine.cpu(1), strategy="data_parallel")
    return mp.Trainer(network, plan, optimizer=OPTIMIZER, world=world)


def test_instances_that_do_not_fit_are_refused_before_a_body_is_rehearsed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsed: list[int] = []
    monkeypatch.setattr(scratch, "_rehearse", lambda *_: rehearsed.append(1))
    with pytest.raises(RequestError, match="this step does not fit"):
        loaded(world, 1000, monkeypatch)
    assert not rehearsed


def test_a_rank_without_threads_rehearses_on_its_program_s(monkeypatch: pytest.MonkeyPatch) -> None:
    (world,) = local_worlds(1, stepped=True)
    try:
        with loaded(world, 1 << 15, monkeypatch) as trainer:
            runtime = RankRuntime.of(world)
            found = runtime.scratch.residents(trainer.schedule, runtime.processors)
        assert any("(rehearsed)" in resident.name for resident in found[0])
    finally:
        RankRuntime.of(world).close()


def test_a_rehearsal_that_a_closed_processor_drops_is_not_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = RankRuntime.of(world)
    enqueue = Processor.enqueue

    def dropped(processor: Processor, work: Callable[[], object], priority: int) -> None:
        runtime.close()
        enqueue(processor, work, priority)

    monkeypatch.setattr(CpuProcessor, "enqueue", dropped)
    with pytest.raises(RunError, match="was closed"):
        loaded(world, 1 << 15, monkeypatch)


def test_memory_that_runs_out_in_a_rehearsal_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> torch.Tensor:
        return torch.empty(1 << 62, dtype=torch.int8)

    monkeypatch.setattr(scratch, "_blank", exhausted)
    with pytest.warns(UserWarning, match=r"scratch of linear.forward.* and \d+ more .*memory ran out"):
        loaded(world, 1 << 15, monkeypatch).close()
