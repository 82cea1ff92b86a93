"""What a thousand replays leave behind: no instance is made or freed, and Python's own memory stays flat."""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from launched import Place, add, summed, total
from thread_ranks import run_on_worlds

import maniple as mp
from maniple.runtime import recording
from maniple.runtime.hosting import host_machine
from maniple.runtime.rank import RankRuntime
from maniple.runtime.session import Session
from maniple.runtime.recorder import Recorder
from maniple.runtime.timeline import Event, Kind
from maniple.runtime.world import World, local_worlds

ROWS = mp.blocks((4,))
WARM_UP, REPLAYS = 150, 1000
FLAT = 8192  # bytes over a thousand replays
SIZE = 400  # bytes of a region
WORLDS: dict[str, Callable[[], list[World]]] = {
    "one rank": lambda: local_worlds(1, processors=2),
    "messages": lambda: local_worlds(2),
    "shared memory": lambda: local_worlds(2, nodes=1, shared=True),
}


def opened(world: World, regions: int | None) -> Session:
    """A session; in memories that hold so many regions, where a number is given."""
    machine = host_machine(world)
    if regions is not None:
        memories = tuple(replace(memory, capacity_bytes=regions * SIZE) for memory in machine.memories)
        machine = replace(machine, memories=memories)
    return Session(RankRuntime.of(world), machine, mp.Mapper())


def stepping(session: Session) -> Callable[[int], None]:
    """A trace with a copy between ranks, a reduction that is folded, and values that nobody takes."""
    x, y, sums = (session.region((100,) if name != "sums" else (), name=name) for name in ("x", "y", "sums"))
    x.write(torch.arange(100.0))
    y.fill(1.0)
    shifted = Place(lambda index: (index + 1) % len(session.untraced.machine.processors))

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
    shared = 0 if world.shared is None else world.shared.arena.allocated()
    return (*(memory.allocated_bytes() for memory in memories), *(memory.version for memory in memories), shared)


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


@pytest.mark.parametrize("where", WORLDS)
def test_a_thousand_replays_make_no_instance_and_leave_no_object_behind(where: str) -> None:
    grown: list[int] = []

    def note() -> None:
        gc.collect()
        grown.append(tracemalloc.get_traced_memory()[0])

    def body(world: World) -> tuple[int, int, bool]:
        run, runtime = stepping(opened(world, None)), RankRuntime.of(world)
        run(20)
        recorder = runtime.recorder = Counting(world.rank, capacity=1)
        for memory in runtime.memories.values():
            memory.recorder = recorder
        together(world, tracemalloc.start)
        run(WARM_UP)
        before = held(world)
        together(world, note)
        run(REPLAYS)
        together(world, note)
        together(world, tracemalloc.stop)
        recording.stop(runtime)
        counts = recorder.counts
        return counts[Kind.ALLOCATED] + counts[Kind.FREED], counts[Kind.ENDED], held(world) == before

    try:
        found = run_on_worlds(WORLDS[where](), body)
    finally:
        tracemalloc.stop()
    for instances, ended, same in found:
        assert instances == 0
        assert ended > REPLAYS
        assert same
    assert grown[1] - grown[0] < FLAT


@pytest.mark.parametrize("size", [1, 2])
def test_replays_that_evict_for_each_other_leave_nothing_behind(size: int) -> None:
    """Two traces in a memory that holds the regions of one and its scratch: each makes room for itself."""
    grown: list[int] = []
    kept: list[int] = []

    def note() -> None:
        gc.collect()
        grown.append(tracemalloc.get_traced_memory()[0])

    def body(world: World) -> list[float]:
        session = opened(world, 4)
        pairs = [[session.region((100,), name=f"{name}{pair}") for name in "ab"] for pair in range(2)]
        here = Place(lambda _: 0)

        def run(times: int) -> None:
            for _ in range(times):
                for pair, (a, b) in enumerate(pairs):
                    session.fill(a, 1.0)
                    session.fill(b, 0.0)
                    with session.trace(f"pair {pair}"):
                        session.launch(add, 1.0, a, b, mapper=here)
                        session.launch(add, 1.0, b, a, mapper=here)
                    session.fence()
                    kept.append(RankRuntime.of(world).kept_bytes())

        run(10)
        together(world, tracemalloc.start)
        run(20)
        together(world, note)
        run(100)
        together(world, note)
        together(world, tracemalloc.stop)
        return [region.read()[0].item() for pair in pairs for region in pair]

    try:
        found = run_on_worlds(local_worlds(size), body)
    finally:
        tracemalloc.stop()
    assert found == [[2.0, 1.0, 2.0, 1.0]] * size
    assert max(kept) <= 4 * SIZE
    assert grown[1] - grown[0] - 8 * 200 * size < FLAT  # the sizes that were noted
