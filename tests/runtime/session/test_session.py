"""Sessions: launches, what they refuse, futures, places, and what is left after a failure."""

from __future__ import annotations

import gc
import re
import sys
import threading
import weakref

import pytest
import torch
from launched import Place, add, explode, extremes, fill, made, on_ranks, summed, tell, total, wait, where

import maniple as mp
from maniple.process.error import RequestError, RunError
from maniple.runtime.control.waiting import Waiting
from maniple.runtime.control.world import World
from maniple.runtime.execution import rank
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.program.mapper import Mapper, TaskMapping, TaskView
from maniple.runtime.schedule.failure import PoisonedRegion, TaskFailed
from maniple.runtime.session.session import Session

# ----------------------------------------------------------------------------------------------------- what launches do


def program(session: Session) -> tuple[list[float], float]:
    rows = mp.blocks((3,))
    x, y = session.region((10,), name="x"), session.region((10,), name="y")
    sums = session.region((), name="sums")
    session.write(x, torch.arange(10.0))
    y.fill(1.0)
    sums.fill(0.5)
    for _ in range(3):
        session.index_launch(add, rows.colors, 2.0, x[rows], y[rows])
    session.index_launch(total, rows.colors, y[rows], sums)
    return y.read().tolist(), sums.read().item()


EXPECTED = ([1.0 + 6.0 * i for i in range(10)], 0.5 + 10.0 + 6.0 * 45)


def test_launches_do_what_they_would_do_one_after_the_other(session: Session) -> None:
    assert program(session) == EXPECTED


def test_a_launch_is_asked_once_whether_it_may_be_made(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, x, y = mp.blocks((3,)), session.region((9,)), session.region((9,))
    x.fill(1.0)
    y.fill(1.0)
    session.index_launch(add, rows.colors, 2.0, x[rows], y[rows])
    asked: list[str] = []
    check, inside = Waiting.check, rank.inside_task

    def checked(waiting: Waiting) -> None:
        asked.append("failed?")
        check(waiting)

    def counted() -> bool:
        asked.append("inside a task?")
        return inside()

    with monkeypatch.context() as patch:
        patch.setattr(Waiting, "check", checked)
        patch.setattr(rank, "inside_task", counted)
        session.index_launch(add, rows.colors, 2.0, x[rows], y[rows])
        assert asked == ["inside a task?", "failed?"]
    assert y.read().tolist() == [5.0] * 9


@pytest.mark.parametrize("size", [2, 3])
def test_any_number_of_ranks_does_the_same(size: int) -> None:
    assert on_ranks(size, program) == [EXPECTED] * size


def test_all_reductions_start_from_their_identity(session: Session) -> None:
    rows = mp.blocks((4,))
    x = session.region((8,))
    x.write(torch.tensor([3.0, -1.0, 2.0, 5.0, 1.0, 4.0, -2.0, 1.0]))
    low, high, product = (session.region((), name=name) for name in ("low", "high", "product"))
    for region, value in ((low, 0.0), (high, 0.0), (product, 2.0)):
        region.fill(value)
    session.index_launch(extremes, rows.colors, x[rows], low, high, product)
    assert (low.read().item(), high.read().item(), product.read().item()) == (-2.0, 5.0, 2.0 * 240.0)


def test_a_single_launch_takes_a_tile(session: Session) -> None:
    halves = mp.blocks((2,))
    x = session.region((6,))
    x.fill(1.0)
    session.launch(fill, 7.0, x[halves][1])
    session.launch(fill, 9.0, x[mp.blocks((2,)).bind(x.logical.bounds)][0])
    assert x.read().tolist() == [9.0] * 3 + [7.0] * 3


def test_a_point_with_an_empty_tile_sees_an_empty_tensor(session: Session) -> None:
    five = mp.blocks((5,))
    x = session.region((3,))
    x.fill(2.0)
    sums = session.index_launch(summed, five.colors, x[five])
    assert [sums[i] for i in range(5)] == [2.0, 2.0, 2.0, 0.0, 0.0]


def test_halos_read_their_neighbours(session: Session) -> None:
    rows = mp.blocks((3,))
    x = session.region((6,))
    x.fill(1.0)
    seen = session.index_launch(summed, rows.colors, x[mp.halo(rows, (1,))])
    assert [seen[i] for i in range(3)] == [3.0, 4.0, 3.0]


def test_what_read_gives_is_a_copy(session: Session) -> None:
    x = session.region((3,))
    x.fill(1.0)
    x.read().fill_(9.0)
    values = torch.ones(3)
    x.write(values)
    values.fill_(5.0)
    assert x.read().tolist() == [1.0] * 3


def test_many_launches_leave_little_behind(session: Session) -> None:
    rows = mp.blocks((2,))
    x, sums = session.region((4,)), session.region(())
    x.fill(1.0)
    for step in range(300):
        sums.fill(0.0)
        session.index_launch(total, rows.colors, x[rows], sums)
        if step % 50 == 0:
            assert sums.read().item() == 4.0
    assert sums.read().item() == 4.0
    live = session.dynamic.live(sums.logical.id)
    assert len(live.rows) + len(live.temporary) < 300
    session.fence()  # a read returns before its own row is done
    assert session.runtime.under_way.rows == 0


# -------------------------------------------------------------------------------------------------------------- futures


def test_a_future_gives_what_the_task_returned(session: Session) -> None:
    x = session.region((3,))
    x.fill(2.0)
    future = session.launch(summed, x)
    assert future.get() == 6.0
    assert future.get() == 6.0


def test_a_future_map_gives_every_point_and_says_where_it_ran(session: Session) -> None:
    seen = session.index_launch(where, (2, 2))
    assert dict(seen) == {(i, j): [i, j] for i in range(2) for j in range(2)}
    assert (len(seen), list(seen)) == (4, [(0, 0), (0, 1), (1, 0), (1, 1)])
    assert seen.placed()[1, 1] == "p1 of node 0 (rank 0)"
    assert session.index_launch(where, 3)[2] == [2]
    with pytest.raises(RequestError):
        seen[5, 5]


def test_values_are_the_same_on_every_rank() -> None:
    def body(session: Session) -> object:
        seen = session.index_launch(where, 4)
        return [seen[i] for i in range(4)], seen.placed()

    first, second = on_ranks(2, body)
    assert first == second
    values, places = first  # type: ignore[misc]
    assert values == [[0], [1], [2], [3]]
    assert places[3,] == "p1 of node 1 (rank 1)"


@pytest.mark.parametrize("value", [torch.ones(2), 1 << 70], ids=["a tensor", "a number of more than 64 bits"])
def test_what_no_message_carries_is_no_value_for_a_future(session: Session, value: object) -> None:
    @mp.task
    def returns_it() -> object:
        return value

    with pytest.raises(RunError, match=r"returned a value that no message can carry.*write tensors to regions"):
        session.launch(returns_it).get()


# --------------------------------------------------------------------------------------------------- what is ready runs


def test_a_chain_runs_while_another_on_the_same_processor_waits(session: Session) -> None:
    """The first launch waits on p1 for an event that only a later launch on p0 sets, after work of p0's own."""
    event = threading.Event()
    x, y, z = (session.region((1,), name=name) for name in "xyz")
    for region in (x, y, z):
        region.fill(0.0)
    session.launch(wait, event, x, mapper=Place(lambda _: 1))
    session.launch(add, 1.0, x, y, mapper=Place(lambda _: 0))  # waits for the event, too
    session.launch(tell, event, z, mapper=Place(lambda _: 0))  # launched later on the same processor, but ready
    assert (x.read().item(), y.read().item(), z.read().item()) == (1.0, 1.0, 1.0)


def test_priorities_order_what_is_ready(session: Session) -> None:
    class Ordered(Place):
        def order(self, task: TaskView) -> int:
            return [0, 2, 1][task.index]

    ran: list[int] = []

    @mp.task
    def note(color: mp.Color) -> None:
        ran.append(color[0])

    event = threading.Event()
    x = session.region((1,))
    x.fill(0.0)
    session.fence()
    session.launch(wait, event, x, mapper=Place(lambda _: 0))
    session.index_launch(note, 3, mapper=Ordered(lambda _: 0))
    event.set()
    session.fence()
    assert ran == [1, 2, 0]


def test_a_mapper_chooses_the_variant(session: Session) -> None:
    @mp.task
    def which() -> str:
        return "cpu"

    @which.variant("cpu", name="other")
    def other() -> str:
        return "other"

    class Other(Mapper):
        def map_task(self, task: TaskView) -> TaskMapping:
            return TaskMapping(task.variants[task.index])

    assert session.launch(which).get() == "cpu"
    seen = session.index_launch(which, 2, mapper=Other())
    assert [seen[0], seen[1]] == ["cpu", "other"]


def test_a_fence_waits_for_everything(session: Session) -> None:
    event = threading.Event()
    x = session.region((1,))
    x.fill(0.0)
    future = session.launch(wait, event, x, mapper=Place(lambda _: 1))
    assert not future.done
    event.set()
    session.fence()
    assert future.done


# ------------------------------------------------------------------------------------------------------------- failures


def test_a_task_that_raises_is_named_with_its_point_place_source_and_cause(session: Session) -> None:
    x = session.region((4,), name="x")
    x.fill(1.0)
    rows = mp.blocks((2,))
    failing = session.index_launch(explode, rows.colors, x[rows])
    with pytest.raises(TaskFailed) as caught:
        failing[0]
    message = str(caught.value)
    assert re.search(r"explode\[[01]\]@p[01] failed on node 0 \(rank 0\): ZeroDivisionError: one over zero", message)
    assert "read-write x[" in message
    assert f"launched at {__file__}:" in message
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    session.fence()
    for again in (lambda: failing[0], lambda: failing.reduce("+")):
        with pytest.raises(TaskFailed) as other:
            again()
        assert other.value is not caught.value
    for read in (x.read, lambda: session.launch(summed, x)):
        with pytest.raises(
            PoisonedRegion, match=r"reads x\[0:[24]\], which was not written because task .*explode"
        ) as bad:
            read()
        assert isinstance(bad.value.__cause__, TaskFailed)
        assert isinstance(bad.value.__cause__.__cause__, ZeroDivisionError)


def test_the_source_line_is_that_of_the_launch(session: Session) -> None:
    x = session.region((1,))
    x.fill(1.0)
    session.fence()
    line = sys._getframe().f_lineno + 1
    future = session.launch(explode, x)
    with pytest.raises(TaskFailed, match=rf"test_session\.py:{line}\)"):
        future.get()


def test_a_program_of_one_rank_goes_on_after_a_failure() -> None:
    x = mp.region((4,), name="before")
    x.fill(1.0)
    with pytest.raises(TaskFailed):
        mp.launch(explode, x).get()
    y = mp.region((4,), name="after")
    y.fill(2.0)
    assert mp.launch(summed, y).get() == 8.0
    for read in (x.read, lambda: mp.launch(summed, x)):
        with pytest.raises(PoisonedRegion, match="before"):
            read()
    mp.launch(fill, 3.0, x[mp.blocks((2,))][0])
    with pytest.raises(PoisonedRegion, match=r"before\[2:4\]"):
        x.read()
    assert mp.launch(summed, x[mp.blocks((2,))][0]).get() == 6.0
    x.fill(1.0)
    assert x.read().tolist() == [1.0] * 4
    with mp.debug():
        assert mp.index_launch(summed, 2, y[mp.blocks((2,))])[1] == 4.0
    mp.fence()


def test_a_failure_on_one_rank_reaches_the_others_that_wait() -> None:
    def body(session: Session) -> object:
        try:
            x = session.region((4,), name="x")
            x.fill(1.0)
            rows = mp.blocks((2,))
            session.index_launch(explode, rows.colors, x[rows], mapper=Place(lambda _: 1))[0]
        except RunError as error:
            session.runtime.world.control.fail("", str(error))
            return str(error)
        return None

    for message in on_ranks(2, body):
        assert "failed on node 1 (rank 1): ZeroDivisionError: one over zero" in str(message)


def test_a_region_that_nobody_can_name_is_freed_once_its_tasks_are_done() -> None:
    session = Session(RankRuntime(World.solo(cores=1)), mp.Machine.cpu(1), Mapper())
    for _ in range(20):
        region = session.region((1000,))
        region.fill(1.0)
        assert region.read().sum() == 1000
        del region
    session.region((1,))
    assert session.runtime.kept_bytes() <= 2 * 4000


@pytest.mark.timeout(60)
def test_a_rank_is_closed_while_one_processor_waits_for_another() -> None:
    session = made(World.solo(processors=2, cores=1))
    x, y = session.region((2,), name="x"), session.region((2,), name="y")
    x.fill(1.0)
    y.fill(1.0)
    first = session.runtime.processors[0]

    def until_closed() -> None:
        with first._arrived:
            first._arrived.wait_for(lambda: first._closed)

    for busy in (False, True):
        session.fence()
        if busy:
            first.enqueue(until_closed, 1)
        with session.trace("step"):
            session.launch(add, 1.0, x, y, mapper=Place(lambda _: 0))
            session.launch(add, 1.0, y, x, mapper=Place(lambda _: 1))
    session.runtime.close()


def test_what_is_kept_of_launches_keeps_no_storage_of_regions_that_are_dropped(session: Session) -> None:
    rows = mp.blocks((2,))

    @mp.task
    def twice(x: mp.ReadWrite) -> None:
        x *= 2

    x = session.region((4,))
    x.fill(1.0)
    for _ in range(3):
        session.index_launch(twice, rows.colors, x[rows])
    session.fence()
    kept = session.runtime.memories[0].lasting_instance(x.logical)
    assert kept is not None
    storage = weakref.ref(kept[1])
    del x, kept
    gc.collect()
    session.region((1,))  # where dropped regions are freed
    gc.collect()
    assert storage() is None
