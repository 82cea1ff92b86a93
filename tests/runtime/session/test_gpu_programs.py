"""Programs on GPU processors, over null devices: who waits for whom, failures, capacity, recordings, refusals."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import maniple as mp
from maniple.mappers.registry import make_mapper
from maniple.process.error import RequestError
from maniple.runtime.control.world import World
from maniple.runtime.devices.null_device import NullDevice
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.execution.recording import record
from maniple.runtime.schedule.failure import TaskFailed
from maniple.runtime.session.session import Session
from maniple.testing import local_worlds

sys.path.insert(0, str(Path(__file__).parents[2] / "laws"))

from device_machine import device_machine
from placed_program import Placed


@mp.task
def grow(x: mp.ReadWrite) -> None:
    x += 1


@mp.task
def total(x: mp.Read) -> float:
    return float(x.sum())


@mp.task
def broken(x: mp.ReadWrite) -> None:
    raise ValueError("no good")


for each in (grow, total, broken):
    each.variant("cuda")(each.function)


def on_null(cpus: int, gpus: int, room: int = 1 << 20) -> Session:
    (world,) = local_worlds(1, device="null")
    return Session(RankRuntime.of(world), device_machine(1, cpus, gpus, room), make_mapper("default"))


@pytest.fixture
def session() -> Iterator[Session]:
    made = on_null(1, 1)
    yield made
    made.runtime.close()


def device(session: Session, processor: int) -> NullDevice:
    found = session.runtime.processors[processor].device
    assert isinstance(found, NullDevice)
    return found


@pytest.mark.parametrize("traced", [False, True])
def test_the_host_goes_on_while_the_device_is_at_work(session: Session, *, traced: bool) -> None:
    """Launches return and are submitted; futures, reads and fences wait for the events."""
    x = session.region((4,), name="x")
    x.fill(1.0)
    gpu = Placed([1])

    def step() -> mp.Future:
        session.launch(grow, x, mapper=gpu)
        return session.launch(total, x, mapper=gpu)

    if traced:
        for _ in range(2):
            with session.trace("step"):
                step()
    session.fence()
    fenced = threading.Event()
    with device(session, 1).pause():
        if traced:
            with session.trace("step"):
                future = step()
        else:
            future = step()
        waiter = threading.Thread(target=lambda: (session.runtime.drain(), fenced.set()))
        waiter.start()
        assert not future.done
        assert not fenced.wait(0.05)
    assert future.get() == 4 * (4.0 if traced else 2.0)
    waiter.join()
    assert fenced.is_set()
    assert x.read().tolist() == [4.0 if traced else 2.0] * 4


def test_values_go_to_and_fro_between_host_and_devices() -> None:
    session = on_null(1, 2)
    x = session.region((3, 5), name="x")
    x.fill(0.0)
    for turn in range(12):
        session.launch(grow, x, mapper=Placed([turn % 3]))
    assert x.read().tolist() == [[12.0] * 5] * 3
    # Every turn moves all of x once, but the first and those that find it there; the read brings it home.
    assert session.runtime.world.local.total == 12 * 60
    session.runtime.close()


@pytest.mark.parametrize("traced", [False, True])
def test_a_failure_on_a_device_names_the_task_and_cancels_what_depends_on_it(*, traced: bool) -> None:
    session = on_null(1, 1)
    x, gpu = session.region((4,), name="x"), Placed([1])
    x.fill(1.0)
    if traced:
        for turn in range(3):
            with session.trace("step"):
                if turn == 2:
                    device(session, 1).tasks.submit(_raise)
                session.launch(grow, x, mapper=gpu)
        with pytest.raises(TaskFailed, match=r"grow\[\]@p1 failed on .*: RuntimeError: broke"):
            session.fence()
    else:
        session.launch(broken, x, mapper=gpu)
        session.launch(grow, x, mapper=Placed([0]))
        with pytest.raises(TaskFailed, match=r"broken\[\]@p1 failed on .*: ValueError: no good \(uses read-write x"):
            session.fence()
    session.runtime.close()


def _raise() -> None:
    raise RuntimeError("broke")


def test_what_a_device_has_no_room_for_goes_to_the_host() -> None:
    session = on_null(1, 1, room=4 * 100 + 50)
    regions = [session.region((25,), name=f"r{number}") for number in range(6)]
    for region in regions:
        region.write(torch.zeros(25))
    for _ in range(2):
        for number, region in enumerate(regions):
            for _ in range(number):
                session.launch(grow, region, mapper=Placed([1]))
    found = [region.read().unique().tolist() for region in regions]
    assert found == [[2.0 * number] for number in range(6)]
    assert device(session, 1).room.peak <= 450
    large = session.region((200,), name="large")
    with pytest.raises(RequestError, match=r"does not fit into memory 1 .*it holds 450 B"):
        session.launch(grow_all, large, mapper=Placed([1]))
    session.runtime.close()


@mp.task
def grow_all(x: mp.WriteDiscard) -> None:
    x.fill_(1)


grow_all.variant("cuda")(grow_all.function)


@pytest.mark.parametrize("traced", [False, True])
def test_a_recording_has_the_times_of_the_device(session: Session, *, traced: bool) -> None:
    x = session.region((4,), name="x")
    x.fill(1.0)
    for _ in range(2):
        with session.trace("step"):
            session.launch(grow, x, mapper=Placed([1]))
            session.launch(grow, x, mapper=Placed([0]))
    with record(session.runtime, 1000) as recording:
        if traced:
            with session.trace("step"):
                session.launch(grow, x, mapper=Placed([1]))
                session.launch(grow, x, mapper=Placed([0]))
        else:
            session.launch(grow, x, mapper=Placed([1]))
            session.launch(grow, x, mapper=Placed([0]))
    spans = [span for span in recording.timeline.spans if span.category != "launch"]
    lanes = [span.lane for span in spans]
    assert lanes == ["copy engine", "p1", "copy engine", "p0"]
    for before, after in pairwise(spans):
        assert before.start_ns <= before.end_ns <= after.start_ns


def test_a_mapper_is_told_what_tasks_took_on_the_device(session: Session) -> None:
    class Measured(Placed):
        found: tuple[mp.plugins.TaskProfile, ...] = ()

        def task_options(self, launch: mp.plugins.LaunchView) -> mp.plugins.TaskOptions:
            return mp.plugins.TaskOptions(profile=True)

        def report_profiling(self, profile: tuple[mp.plugins.TaskProfile, ...]) -> None:
            self.found = profile

    session.mapper = mapper = Measured([1])
    x = session.region((4,), name="x")
    x.fill(1.0)
    for _ in range(3):
        session.launch(grow, x)
    session.fence()
    ((name, processor, count),) = [(row.name, row.processor, row.count) for row in mapper.found]
    assert (name.rpartition(".")[2], processor, count) == ("grow", 1, 3)
    assert all(row.seconds > 0 for row in mapper.found)


def test_a_machine_with_gpus_is_refused_on_cpus() -> None:
    with pytest.raises(RequestError, match="run it with --device cuda"):
        Session(RankRuntime(World.solo(cores=1)), device_machine(1, 1, 1), make_mapper("default"))


def test_a_task_without_a_variant_for_gpus_is_refused_there(session: Session) -> None:
    @mp.task
    def plain(x: mp.ReadWrite) -> None:
        x += 1

    @plain.variant("numba.cuda")
    def kernel(x: object) -> None:
        raise AssertionError

    x = session.region((4,), name="x")
    x.fill(1.0)
    with pytest.raises(RequestError, match="a gpu processor, for which it has no variant"):
        session.launch(plain, x, mapper=Placed([1]))
