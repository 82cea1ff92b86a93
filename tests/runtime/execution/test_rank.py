"""The runtime of one rank: one per world, its threads, its first failure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
import torch

import maniple as mp
from maniple.operators.lowering.step_program import FragmentCache, Program, lower
from maniple.process.error import RunError
from maniple.regions.logical_region import LogicalRegion
from maniple.regions.privilege import WRITE_DISCARD
from maniple.regions.rectangle import Rect
from maniple.runtime.control.world import World
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.machine.machine import Machine
from maniple.runtime.machine.world_machine import host_machine
from maniple.runtime.program.mapper import Mapper
from maniple.runtime.schedule.launch import Launch, Point, Requirement
from maniple.runtime.session.session import Session
from maniple.testing import local_worlds

TIMEOUT_S = 30.0


def test_a_world_has_one_runtime() -> None:
    world = World.solo()
    runtime = RankRuntime.of(world)
    assert RankRuntime.of(world) is runtime
    assert RankRuntime.of(World.solo()) is not runtime
    assert runtime.resources.engine is None
    runtime.close()


def test_a_runtime_that_failed_is_replaced_in_a_world_of_one() -> None:
    world = World.solo()
    failed = RankRuntime.of(world)
    failed.start_processors(Machine.cpu(2))
    threads = [processor._thread for processor in failed.processors.values()]
    failed.fail(RunError("broken"))
    with pytest.raises(RunError, match="broken"):  # nothing is replaced before somebody was told
        RankRuntime.of(world)
    fresh = RankRuntime.of(world)
    assert fresh is not failed
    fresh.check()
    assert not any(thread.is_alive() for thread in threads)
    fresh.close()


def test_a_runtime_that_failed_stays_in_a_world_of_several() -> None:
    world, _ = local_worlds(2)
    runtime = RankRuntime.of(world)
    runtime.fail(RunError("broken"))
    assert RankRuntime.of(world) is runtime
    runtime.close()


def test_the_first_failure_counts() -> None:
    runtime = RankRuntime(World.solo())
    runtime.check()
    runtime.fail(RunError("first"))
    runtime.fail(RunError("second"))
    with pytest.raises(RunError, match="first"):
        runtime.check()
    runtime.close()


def test_a_failure_elsewhere_ends_a_wait_for_an_event() -> None:
    runtime = RankRuntime(World.solo())
    caught: list[str] = []

    def wait() -> None:
        with pytest.raises(RunError) as error:
            runtime.await_event(threading.Event())
        caught.append(str(error.value))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    runtime.fail(RunError("broken"))
    thread.join(TIMEOUT_S)
    assert caught == ["broken"]
    runtime.close()


def test_a_stop_of_the_run_is_a_failure_of_every_rank() -> None:
    worlds = local_worlds(2)
    runtimes = [RankRuntime.of(world) for world in worlds]
    worlds[1].control.fail("reading", "OSError: gone")
    for runtime in runtimes:
        with pytest.raises(RunError, match=r"node 1 \(rank 1\) raised OSError: gone"):
            runtime.check()
        runtime.close()


def test_processors_are_kept_unless_their_cores_change() -> None:
    runtime = RankRuntime(World.solo())
    runtime.start_processors(Machine.cpu(2, cores=1))
    first = dict(runtime.processors)
    runtime.start_processors(Machine.cpu(3, cores=1))
    assert sorted(runtime.processors) == [0, 1, 2]
    assert all(runtime.processors[number] is first[number] for number in first)
    runtime.start_processors(Machine.cpu(1, cores=2))
    assert runtime.processors[0] is not first[0]
    assert runtime.processors[0].cores == 2
    runtime.close()
    assert runtime.processors == {}


def test_a_rank_starts_its_own_processors_only() -> None:
    worlds = local_worlds(2)
    runtime = RankRuntime.of(worlds[1])
    runtime.start_processors(Machine.cpu(2, ranks=2))
    assert sorted(runtime.processors) == [2, 3]
    runtime.close()


def test_a_replay_waits_for_untraced_launches_before_it() -> None:
    """A processor that runs a step runs it whole, so what was launched before must not be left behind it."""
    world = World.solo(processors=1, cores=1)
    runtime = RankRuntime.of(world)
    machine = host_machine(world)
    ran: list[str] = []

    def bind(point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], object]:
        return lambda: ran.append("step")

    region = LogicalRegion(1000, "r", Rect((0,), (1,)), "float32")
    step = Launch("step", (Point((), 0),), (Requirement(region, WRITE_DISCARD, (region.bounds,)),), bind)
    replay = runtime.load(lower(Program((step,), {}), FragmentCache(machine)), [])
    replay.submit().wait()
    session = Session(runtime, machine, Mapper())
    event = threading.Event()

    @mp.task
    def wait() -> None:
        assert event.wait(TIMEOUT_S)
        ran.append("task")

    session.launch(wait)
    session.launch(wait)
    submitted = threading.Thread(target=lambda: replay.submit().wait(), daemon=True)
    submitted.start()
    event.set()
    submitted.join(TIMEOUT_S)
    assert ran == ["step", "task", "task", "step"]
    runtime.close()
