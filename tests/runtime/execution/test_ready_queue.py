"""The ready queue: rows that start when the last one that they wait for is done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from maniple.process.error import RunError
from maniple.regions.logical_region import LogicalRegion
from maniple.regions.privilege import WRITE_DISCARD, reduce
from maniple.regions.rectangle import Rect
from maniple.runtime.analysis.dependence import Node, PlacedUse, RegionAnalysis
from maniple.runtime.control.world import World
from maniple.runtime.execution import ready_queue
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.execution.ready_queue import FORGET_AT, LiveRegion, ReadyQueue
from maniple.runtime.execution.ready_row import RowState
from maniple.runtime.machine.machine import Machine

TIMEOUT_S = 30.0
WHOLE = Rect((0,), (4,))
REGION = LogicalRegion(0, "x", WHOLE, "float32")


@pytest.fixture
def runtime() -> Iterator[RankRuntime]:
    made = RankRuntime(World.solo(processors=2, cores=1))
    made.start_processors(Machine.cpu(2))
    yield made
    made.close()


def made(runtime: RankRuntime) -> ReadyQueue:
    queue = ReadyQueue(Machine.cpu(2), runtime.resources, runtime.waiting, runtime.journal, in_order=False)
    runtime.under_way.attend(queue)
    return queue


def live() -> LiveRegion:
    return LiveRegion(REGION, RegionAnalysis(WHOLE, {}))


def node(use: int) -> Node:
    return Node(0, use, 0)


def test_a_row_starts_when_all_that_it_waits_for_is_done(runtime: RankRuntime) -> None:
    queue, region = made(runtime), live()
    gates = [threading.Event(), threading.Event()]
    ran: list[str] = []

    def held(number: int) -> None:
        assert gates[number].wait(TIMEOUT_S)
        ran.append(f"held {number}")

    rows = [queue.task(number, lambda number=number: held(number), [(region, node(number))], 0) for number in (0, 1)]  # type: ignore[misc]
    rows.append(queue.task(0, lambda: ran.append("last"), [(region, node(2))], 0))
    queue.link(region, [(node(0), node(2)), (node(1), node(2))])
    assert ran == []
    queue.release(rows)
    gates[1].set()
    gates[0].set()
    runtime.drain()
    assert sorted(ran[:2]) == ["held 0", "held 1"]
    assert ran[2] == "last"
    assert all(row.state is RowState.DONE for row in rows)
    assert runtime.under_way.rows == 0


def test_a_program_that_is_far_ahead_waits_until_half_is_done(
    runtime: RankRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a window of eight on a processor that is held:  1 2 ... 8 (waits; the processor goes on) ... 4 (goes on)."""
    monkeypatch.setattr(ready_queue, "WINDOW", 8)
    queue, region, gate = made(runtime), live(), threading.Event()
    waited: list[tuple[int, int]] = []
    wait = runtime.waiting.await_done

    def noted(done: Callable[[], bool]) -> None:
        before = queue.rows
        gate.set()
        wait(done)
        waited.append((before, queue.rows))

    monkeypatch.setattr(runtime.waiting, "await_done", noted)
    for number in range(8):
        queue.await_room()
        assert waited == []
        queue.release([queue.task(0, lambda: gate.wait(TIMEOUT_S), [(region, node(number))], 0)])
    assert queue.rows == 8
    queue.await_room()
    ((before, after),) = waited
    assert before == 8
    assert after <= 4


def test_nothing_starts_before_it_is_released(runtime: RankRuntime) -> None:
    queue, region = made(runtime), live()
    done = threading.Event()
    row = queue.task(0, done.set, [(region, node(0))], 0)
    assert (row.left, row.state) == (1, RowState.WAITING)
    assert not done.is_set()
    queue.release([row])
    assert done.wait(TIMEOUT_S)
    runtime.drain()


def test_rows_that_are_done_or_elsewhere_are_not_waited_for(runtime: RankRuntime) -> None:
    queue, region = made(runtime), live()
    first = queue.task(0, lambda: None, [(region, node(0))], 0)
    queue.release([first])
    runtime.drain()
    second = queue.task(0, lambda: None, [(region, node(1))], 0)
    queue.link(region, [(node(0), node(1)), (node(7), node(1)), (node(1), node(1))])
    assert second.left == 1
    queue.release([second])
    runtime.drain()


def test_a_row_that_stands_for_two_nodes_is_one_row(runtime: RankRuntime) -> None:
    queue, first, second = made(runtime), live(), live()
    row = queue.task(0, lambda: None, [(first, node(0)), (second, node(3))], 0)
    assert first.rows[node(0)] is second.rows[node(3)] is row
    queue.release([row])
    runtime.drain()


def test_a_failure_ends_the_drain(runtime: RankRuntime) -> None:
    queue, region = made(runtime), live()

    def explode() -> None:
        raise RunError("broken")

    queue.release([queue.task(0, explode, [(region, node(0))], 0)])
    with pytest.raises(RunError, match="broken"):
        runtime.drain()


def test_values_share_one_instance_and_contributions_have_their_own(runtime: RankRuntime) -> None:
    region = live()
    uses = [PlacedUse(0, (), 0, 0, WHOLE)]
    ((_, main),) = region.analysis.use(WRITE_DISCARD, uses)
    region.view(runtime.memories, main.instance, WHOLE).fill_(1.0)
    ((_, part),) = region.analysis.use(reduce("+"), uses)
    region.view(runtime.memories, part.instance, WHOLE).fill_(9.0)
    assert torch.equal(region.view(runtime.memories, main.instance, Rect((1,), (3,))), torch.ones(2))
    assert list(region.temporary) == [part.instance]


def test_what_is_done_is_forgotten_and_what_waits_is_kept(runtime: RankRuntime) -> None:
    queue, region = made(runtime), live()
    uses = [PlacedUse(0, (), 0, 0, WHOLE)]
    ((_, waiting),) = region.analysis.use(reduce("+"), uses)
    region.view(runtime.memories, waiting.instance, WHOLE)
    rows = [queue.task(0, lambda: None, [(region, node(number))], 0) for number in range(FORGET_AT)]
    queue.release(rows[:-1])
    gone = threading.Event()
    runtime.processors[0].enqueue(gone.set, -1)
    assert gone.wait(TIMEOUT_S)
    region.tidy()
    assert list(region.rows) == [node(FORGET_AT - 1)]
    assert list(region.temporary) == [waiting.instance]
    queue.release(rows[-1:])
    runtime.drain()
