"""What replays leave behind: no instance is made or freed, and Python's own memory stays flat."""

from __future__ import annotations

import gc
import sys
import tracemalloc
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from launched import Place, add, summed, total
from thread_ranks import run_on_worlds

import maniple as mp
from maniple.runtime.control.world import World
from maniple.runtime.execution import recording
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.execution.recorder import Recorder
from maniple.runtime.machine.world_machine import host_machine
from maniple.runtime.observe.timeline import Event, Kind
from maniple.runtime.session.session import Session
from maniple.testing import local_worlds

ROWS = mp.blocks((4,))
NAMES = ("x", "sums", "beside")
WARM_UP, REPLAYS = 100, 400
DEADLINE_S = 240.0  # of a machine that is busy with other things; alone it takes a few seconds
FLAT = 8192  # bytes over the replays: of each 20, less than an object and its place in a list
SIZE = 400  # bytes of a region
WORLDS: dict[str, Callable[[], list[World]]] = {
    "one rank": lambda: local_worlds(1, processors=2),
    "messages": lambda: local_worlds(2),
    "shared memory": lambda: local_worlds(2, nodes=1, shared=True),
}


def stepping(session: Session) -> Callable[[int], None]:
    """A trace with a copy between ranks, a reduction that is folded, and values that nobody takes."""
    x, y, sums = (session.region((100,) if name != "sums" else (), name=name) for name in ("x", "y", "sums"))
    x.write(torch.arange(100.0))
    y.fill(1.0)
    shifted = Place(lambda index: (index + 1) % len(session.dynamic.machine.processors))

    def run(times: int) -> None:
        for _ in range(times):
            with session.trace("step"):
                session.fill(sums, 0.0)
                session.index_launch(add, ROWS.colors, 0.001, x[ROWS], y[ROWS])
                session.index_launch(total, ROWS.colors, y[ROWS], sums)
                session.index_launch(add, ROWS.colors, 0.001, y[ROWS], x[ROWS], mapper=shifted)
                session.index_launch(summed, ROWS.colors, x[ROWS])
        session.fence()

    return run


def held(world: World) -> tuple[int, ...]:
    """What the allocators of a rank have given, and how often what lasts has moved."""
    memories = RankRuntime.of(world).memories.values()
    shared = 0 if world.shared is None else world.shared.arena.allocated_bytes()
    return (*(memory.allocated_bytes() for memory in memories), *(memory.version for memory in memories), shared)


@mp.task
def scale(x: mp.ReadWrite) -> None:
    x.neg_().neg_()


class Counting(Recorder):
    """A recorder that counts every event and keeps one, so that it takes no memory of its own."""

    def __init__(self, rank: int, capacity: int) -> None:
        super().__init__(rank, capacity)
        self.counts: Counter[Kind] = Counter()

    def add(self, event: Event) -> None:
        self.counts[event.kind] += 1
        super().add(event)


def together(world: World, what: Callable[[], object]) -> None:
    """Have one rank do something while no rank runs anything."""
    world.control.gather(b"before")
    if world.rank == 0:
        what()
    world.control.gather(b"after")


# Python's table of finalizers, which every instance enters for as long as it lives.
FINALIZERS = weakref.finalize._registry  # type: ignore[attr-defined]
ENTRY = 24  # bytes, of a dictionary


@pytest.fixture
def padded() -> Iterator[None]:
    """The table of finalizers is the process's, as large as what other tests have left alive, and has one size here.

    It is made anew each time that so many have come and gone. With a power of two of them it then has room for between
    two and three times as many, and a few more or less change nothing.
    """
    more = (1 << len(FINALIZERS).bit_length()) - len(FINALIZERS)
    kept = [weakref.finalize(padded, int) for _ in range(more)]
    yield
    for each in kept:
        each.detach()


def watch_memory() -> None:
    """Begin to watch Python's memory, and have the table of finalizers made anew: one from before is not counted."""
    tracemalloc.start()
    for _ in range(sys.getsizeof(FINALIZERS) // ENTRY):
        weakref.finalize(watch_memory, int).detach()


def tidy(session: Session) -> None:
    """Drop what the runtime drops when there are 64 of it: rows that are done, and bound movements.

    How many of them there are between two times, and so their memory, says nothing of what is left behind.
    """
    for live in session.dynamic._live.values():
        live._tidy_at = 0
        live.tidy()
        live.moves.clear()


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("padded")
@pytest.mark.parametrize("where", WORLDS)
def test_hundreds_of_replays_make_no_instance_and_leave_no_object_behind(where: str) -> None:
    grown: list[int] = []

    def note() -> None:
        gc.collect()
        grown.append(tracemalloc.get_traced_memory()[0])

    def body(world: World) -> tuple[int, int, bool]:
        runtime = RankRuntime.of(world)
        run = stepping(Session(runtime, host_machine(world), mp.Mapper()))
        run(20)
        recorder = Counting(world.rank, capacity=1)
        runtime.journal.open(recorder)
        for memory in runtime.memories.values():
            memory.recorder = recorder
        together(world, watch_memory)
        run(WARM_UP)
        together(world, note)
        before = held(world)  # once what was recorded before is collected
        run(REPLAYS)
        together(world, note)
        together(world, tracemalloc.stop)
        recording.stop(runtime)
        counts = recorder.counts
        return counts[Kind.ALLOCATED] + counts[Kind.FREED], counts[Kind.ENDED], held(world) == before

    try:
        found = run_on_worlds(WORLDS[where](), body, DEADLINE_S)
    finally:
        tracemalloc.stop()
    for instances, ended, same in found:
        assert instances == 0
        assert ended > REPLAYS
        assert same
    assert grown[1] - grown[0] < FLAT


@pytest.mark.usefixtures("padded")
def test_replays_between_evictions_leave_nothing_behind() -> None:
    """A trace's two regions and a third that is launched on between its replays, in a memory that has no room for all.

    Every launch evicts what the replay has left; every replay brings it back.
    """
    grown: list[int] = []
    room = 3 * SIZE + 40  # of two regions, and of the trace's scratch

    def note() -> None:
        gc.collect()
        grown.append(tracemalloc.get_traced_memory()[0])

    def body(world: World) -> tuple[int, list[float]]:
        machine = host_machine(world)
        first, second = machine.memories
        session = Session(
            RankRuntime.of(world), replace(machine, memories=(replace(first, capacity_bytes=room), second)), mp.Mapper()
        )
        a, b, c = (session.region((100 if name != "c" else 120,), name=name) for name in "abc")
        for region in (a, b, c):
            region.fill(1.0)
        here, most = Place(lambda _: 0), 0

        def run(times: int) -> int:
            most = 0
            for _ in range(times):
                with session.trace("pair"):
                    session.launch(add, -1.0, a, b, mapper=here)
                    session.launch(add, 1.0, b, a, mapper=here)
                session.launch(scale, c, mapper=here)
                session.fence()
                most = max(most, session.runtime.kept_bytes())
            tidy(session)
            return most

        most = run(30)
        together(world, watch_memory)
        run(150)
        together(world, note)
        run(60)
        together(world, note)
        together(world, tracemalloc.stop)
        return most, [region.read()[0].item() for region in (a, b, c)]

    try:
        (most, found), (other, again) = run_on_worlds(local_worlds(2), body)
    finally:
        tracemalloc.stop()
    # (a, b) is (1, 1), (1, 0), (0, -1), (-1, -1), (-1, 0), (0, 1) and then (1, 1) again
    assert found == again == [1.0, 1.0, 1.0]
    assert most <= room
    assert other > 0, "what was evicted went to the other rank"
    assert grown[1] - grown[0] < FLAT


def test_a_replay_makes_room_for_what_lives_within_it_and_for_scratch() -> None:
    """Contributions to sums live within the run; a third region is evicted if it and they are a byte too many."""
    kept = 2 * SIZE + 480  # of x, of the sums, and of the region beside them

    def run(capacity: int) -> tuple[int, bool]:
        def body(world: World) -> tuple[int, bool]:
            machine = host_machine(world)
            first, second = machine.memories
            tight = replace(machine, memories=(replace(first, capacity_bytes=capacity), second))
            session = Session(RankRuntime.of(world), tight, mp.Mapper())
            x, sums, beside = (session.region((120 if name == "beside" else 100,), name=name) for name in NAMES)
            for region in (x, sums, beside):
                region.fill(1.0)
            here = Place(lambda _: 0)
            for last in (False, True):
                with session.trace("sum"):
                    session.launch(total, x, sums, mapper=here)
                if not last:
                    session.launch(scale, beside, mapper=here)
            session.fence()
            (loaded,) = session.tracing.traces["sum"]._loaded
            besides = [resident.size for resident in loaded.replay.besides[0]]
            assert len(besides) == 2
            assert besides[0] >= SIZE
            assert besides[1] > 0
            here_too = 0 in session.dynamic.live(beside.logical.id).analysis.instances.main
            assert sums.read()[0].item() == 201.0
            return sum(besides), here_too

        found, again = run_on_worlds(local_worlds(2), body)
        assert found == again
        return found

    besides, _ = run(2 * kept)
    assert run(kept + besides) == (besides, True)
    assert run(kept + besides - 1) == (besides, False)
