"""The ring of events, and recordings of programs on threads."""

from __future__ import annotations

import json
from itertools import count

import pytest
import torch
from thread_ranks import run_on_ranks

from maniple.mappers.default import DefaultMapper
from maniple.process.error import RequestError
from maniple.regions.partition import blocks
from maniple.runtime.control.world import World
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.execution.recorder import Recorder
from maniple.runtime.execution.recording import record
from maniple.runtime.machine.machine import Machine
from maniple.runtime.observe.timeline import Event, Kind, Timeline
from maniple.runtime.program.task import Read, ReadWrite, task
from maniple.runtime.session.session import Session


@task
def double(x: ReadWrite) -> None:
    x.mul_(2)


@task
def total(x: Read) -> float:
    return float(x.sum())


def program(world: World) -> tuple[RankRuntime, Session]:
    runtime = RankRuntime.of(world)
    return runtime, Session(runtime, Machine.detect(world), DefaultMapper())


def numbered(kind: Kind, time_ns: int) -> Event:
    return Event(kind, time_ns, 0, "p0", "a", "task", 0, time_ns)


def test_the_ring_keeps_the_newest_and_counts_what_it_dropped() -> None:
    recorder = Recorder(0, capacity=3)
    kept = []
    for number in range(5):
        recorder.add(numbered(Kind.STARTED, number))
        kept.append(([event.time_ns for event in recorder.events()], recorder.dropped))
    assert kept == [([0], 0), ([0, 1], 0), ([0, 1, 2], 0), ([1, 2, 3], 1), ([2, 3, 4], 2)]


def test_a_ring_without_room_is_refused() -> None:
    with pytest.raises(RequestError, match="at least 1"):
        Recorder(0, capacity=0)


def test_storage_is_noted_when_it_goes() -> None:
    ticks = count()
    recorder = Recorder(0, clock=lambda: next(ticks))
    storage = torch.zeros(4, dtype=torch.float64)
    recorder.note_allocation("x", storage)
    del storage
    assert [(e.kind, e.time_ns, e.size) for e in recorder.events()] == [(Kind.ALLOCATED, 0, 32), (Kind.FREED, 1, 32)]


def test_a_recorder_that_is_gone_hears_of_nothing() -> None:
    recorder = Recorder(0)
    storage = torch.zeros(4)
    recorder.note_allocation("x", storage)
    del recorder
    del storage  # its finalizer finds nobody to tell


def record_two_launches(world: World) -> Timeline:
    runtime, session = program(world)
    x = session.region((4, 2))
    session.fill(x, 1.0)
    tiles = x[blocks((2, 1))]
    with record(runtime, 1000) as recording:
        session.index_launch(double, (2, 1), tiles)
        assert session.launch(total, x).get() == 16.0
        with pytest.raises(RequestError, match="after the with block"):
            _ = recording.timeline
        with pytest.raises(RequestError, match="recorded already"), record(runtime, 1000):
            pass
    session.index_launch(double, (2, 1), tiles)  # not recorded any more
    session.fence()
    return recording.timeline


def test_a_program_is_recorded_on_all_ranks_alike() -> None:
    one, other = run_on_ranks(2, record_two_launches)
    assert one == other
    assert one.dropped == (0, 0)
    found = sorted({(e.rank, e.lane, e.category, e.kind.value) for e in one.events if e.category != "memory"})
    launched = [("program", "launch", kind) for kind in ("analysed", "launched", "mapped")]
    moved = [("copy engine", "copy", kind) for kind in ("copied", "started")]
    ran = [("task", kind) for kind in ("ended", "ready", "started")]
    assert found == sorted(
        [(rank, *what) for rank in (0, 1) for what in (*launched, *moved)]
        + [(r, f"p{r}", *w) for r in (0, 1) for w in ran]
        + [(0, "p0", "fold", kind) for _, kind in ran]  # the instance that `total` reads grows to the whole region
    )
    for span in one.spans:
        times = [span.start_ns, *(time for kind, time in span.marks if kind == Kind.MAPPED), span.end_ns]
        assert times == sorted(times)
        assert all(time <= span.start_ns for kind, time in span.marks if kind == Kind.READY)
    names = [span.name.rpartition(".")[2] for span in one.spans if span.category == "task"]
    assert sorted(names) == ["double[0,0]@p0", "double[1,0]@p1", "total[]@p0"]


def record_a_trace(world: World) -> tuple[Timeline, int]:
    runtime, session = program(world)
    x = session.region((4, 2))
    session.fill(x, 1.0)

    def step() -> None:
        with session.trace("step"):
            session.index_launch(double, (2, 1), x[blocks((2, 1))])
            session.launch(total, x)

    step()
    step()
    with record(runtime, 1000) as recording:
        for _ in range(3):
            step()
    assert runtime.journal.recorder is None
    return recording.timeline, session.machine.processors[0].id


def test_replays_are_recorded_with_their_dependences_and_one_critical_path() -> None:
    (timeline, _), (other, _) = run_on_ranks(2, record_a_trace)
    assert timeline == other
    runs = sorted({event.run for event in timeline.events if event.run})
    assert len(runs) == 3
    tasks = [(span.item[0], span.name.rpartition(".")[2]) for span in timeline.spans if span.category == "task"]
    for run in runs:
        assert sorted(name for number, name in tasks if number == run) == [
            "double[0,0]@p0",
            "double[1,0]@p1",
            "total[]@p0",
        ]
        launched = [e for e in timeline.events if (e.run, e.rank, e.kind) == (run, 0, Kind.LAUNCHED)]
        assert [event.name.rpartition(".")[2] for event in launched] == ["double", "total"]
        assert [event.row for event in launched] == [0, 1]
    ends = {span.item: span.end_ns for span in timeline.spans if span.rank == 0}
    starts = {span.item: span.start_ns for span in timeline.spans if span.rank == 0}
    joined = [(a, b) for a, b in timeline.dependences if a in ends and b in starts]
    assert joined
    assert all(ends[before] <= starts[after] for before, after in joined)
    assert timeline.critical_path[-1].end_ns == max(s.end_ns for s in timeline.spans if s.category != "launch")


def test_a_ring_that_is_too_small_says_so() -> None:
    def small(world: World) -> Timeline:
        runtime, session = program(world)
        x = session.region((4, 2))
        with record(runtime, 4) as recording:
            for _ in range(5):
                session.fill(x, 1.0)
        return recording.timeline

    (timeline,) = run_on_ranks(1, small)
    assert len(timeline.events) == 4
    assert timeline.dropped[0] > 10
    json.dumps(timeline.to_chrome())


def test_an_error_inside_ends_the_recording() -> None:
    runtime, session = program(World.solo(cores=1))
    with pytest.raises(ValueError, match="mine"), record(runtime, 10):
        raise ValueError("mine")
    assert runtime.journal.recorder is None
    assert runtime.memories[0].recorder is None
    session.fence()
