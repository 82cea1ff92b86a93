"""What is under way: the counters of lanes go on from run to run, and all rows of all queues count."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from placed_program import opened

import maniple as mp
from maniple.runtime.control.waiting import Waiting
from maniple.runtime.control.world import World
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.execution.ready_queue import ReadyQueue
from maniple.runtime.execution.under_way import UnderWay
from maniple.runtime.machine.machine import Machine

TIMEOUT_S = 30.0


@pytest.fixture
def runtime() -> Iterator[RankRuntime]:
    made = RankRuntime(World.solo(processors=2, cores=1))
    made.start_processors(Machine.cpu(2))
    yield made
    made.close()


@given(st.lists(st.dictionaries(st.integers(0, 3), st.integers(1, 5), max_size=4), max_size=6))
def test_every_run_begins_where_the_one_before_has_raised_the_counters_to(lanes: list[dict[int, int]]) -> None:
    under_way = UnderWay(Waiting(World.solo(cores=1)))
    raised = dict.fromkeys(range(4), 0)
    for number, lengths in enumerate(lanes, 1):
        replay = SimpleNamespace(lanes=SimpleNamespace(lengths=lengths), failure=None)
        run = under_way.begin(replay, 0, 0, 0)  # type: ignore[arg-type]
        assert (run.number, run.base) == (number, {processor: raised[processor] for processor in lengths})
        for processor, length in lengths.items():
            raised[processor] += length


def test_rows_of_every_queue_are_waited_for(runtime: RankRuntime) -> None:
    gates = [threading.Event(), threading.Event()]
    queues = [
        ReadyQueue(Machine.cpu(2), runtime.resources, runtime.waiting, runtime.journal, in_order=False) for _ in gates
    ]
    for number, queue in enumerate(queues):
        runtime.under_way.attend(queue)
        queue.release([queue.task(number, lambda number=number: gates[number].wait(TIMEOUT_S), [], 0)])  # type: ignore[misc]
    assert runtime.under_way.rows == 2
    drained = threading.Event()
    thread = threading.Thread(target=lambda: (runtime.drain(), drained.set()), daemon=True)
    thread.start()
    gates[0].set()
    runtime.waiting.await_done(lambda: runtime.under_way.rows == 1)
    assert not drained.is_set()
    gates[1].set()
    assert drained.wait(TIMEOUT_S)
    thread.join(TIMEOUT_S)


def test_a_task_of_a_replay_that_has_begun_and_not_ended_is_named() -> None:
    """What a rank that others wait for is late in."""
    inside, gate, holds = threading.Event(), threading.Event(), [False]

    @mp.task(name="slow")
    def slow(x: mp.ReadWrite) -> None:
        x.add_(1.0)
        if holds[0]:
            inside.set()
            assert gate.wait(TIMEOUT_S)

    session = opened(World.solo(processors=1, cores=1))
    x = session.region((4,), name="x")
    x.fill(0.0)
    for number in range(4):
        session.fence()
        holds[0] = number == 3
        with session.trace("slow"):
            session.launch(slow, x)
    assert inside.wait(TIMEOUT_S)
    assert session.runtime.under_way.doing() == "slow[]@p0"
    gate.set()
    session.fence()
    assert session.runtime.under_way.doing() == ""
