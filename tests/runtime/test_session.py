"""Sessions: launches, what they refuse, futures, places, and what is left after a failure."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import maniple as mp
from maniple.regions.error import RequestError, RunError
from maniple.runtime.failure import TaskFailed, UnwrittenRegion
from maniple.runtime.mapper import LaunchView, Mapper, TaskView
from maniple.runtime.rank import RankRuntime
from maniple.runtime.session import Session
from maniple.runtime.world import World, local_worlds

TIMEOUT_S = 30.0


@mp.task
def fill(value: float, x: mp.WriteDiscard) -> None:
    x.fill_(value)


@mp.task
def add(a: float, x: mp.Read, y: mp.ReadWrite) -> None:
    y += a * x


@mp.task
def total(x: mp.Read, sums: mp.ReduceSum) -> None:
    sums += x.sum()


@mp.task
def extremes(x: mp.Read, low: mp.ReduceMin, high: mp.ReduceMax, product: mp.ReduceProduct) -> None:
    low.copy_(torch.minimum(low, x.min()))
    high.copy_(torch.maximum(high, x.max()))
    product *= x.prod()


@mp.task
def where(color: mp.Color) -> list[int]:
    return list(color)


@mp.task
def summed(x: mp.Read) -> float:
    return float(x.sum())


@mp.task
def liar(x: mp.Read) -> None:
    x += 1


@mp.task
def explode(x: mp.ReadWrite) -> None:
    raise ZeroDivisionError("one over zero")


@mp.task
def wait(event: threading.Event, x: mp.ReadWrite) -> None:
    assert event.wait(TIMEOUT_S)
    x += 1


@mp.task
def tell(event: threading.Event, x: mp.ReadWrite) -> None:
    event.set()
    x += 1


class Place(Mapper):
    """Every point on the processor that a function of its index says."""

    def __init__(self, choose: Callable[[int], int]) -> None:
        self.choose = choose

    def shard(self, launch: LaunchView) -> Sequence[int]:
        return [launch.machine.rank_of(self.choose(index)) for index in range(len(launch.colors))]

    def select_processor(self, task: TaskView) -> int:
        return self.choose(task.index)


def made(world: World) -> Session:
    return Session(RankRuntime.of(world), world.machine(), Mapper())


@pytest.fixture
def session() -> Iterator[Session]:
    """One rank of two processors."""
    session = made(World.solo(processors=2, cores=1))
    yield session
    session.runtime.close()


def on_ranks(size: int, body: Callable[[Session], object]) -> list[object]:
    """Run one program on several ranks that are threads."""
    worlds = local_worlds(size)

    def main(world: World) -> object:
        try:
            return body(made(world))
        except BaseException as error:
            world.control.fail("", repr(error))
            raise

    try:
        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(main, worlds, timeout=TIMEOUT_S))
    finally:
        for world in worlds:
            RankRuntime.of(world).close()


# ---------------------------------------------------------------------------------------------------- what launches do


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
    live = session._live[sums.logical.id]
    assert len(live.rows) + len(live.temporary) < 300
    assert session.runtime.under_way == 0


# ------------------------------------------------------------------------------------------------------------- futures


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
    with pytest.raises(KeyError):
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


def test_a_tensor_is_no_value_for_a_future(session: Session) -> None:
    @mp.task
    def returns_a_tensor() -> torch.Tensor:
        return torch.ones(2)

    with pytest.raises(RunError, match=r"returned a value that no message can carry.*write tensors to regions"):
        session.launch(returns_a_tensor).get()


# ------------------------------------------------------------------------------------------------- what is ready runs


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

    @which.variant("other")
    def other() -> str:
        return "other"

    class Other(Mapper):
        def select_variant(self, task: TaskView) -> str:
            return task.variants[task.index]

    assert session.launch(which).get() == "cpu"
    seen = session.index_launch(which, 2, mapper=Other())
    assert [seen[0], seen[1]] == ["cpu", "other"]


def test_a_fence_waits_for_everything(session: Session) -> None:
    event = threading.Event()
    x = session.region((1,))
    x.fill(0.0)
    future = session.launch(wait, event, x, mapper=Place(lambda _: 1))
    assert not future.ready.is_set()
    event.set()
    session.fence()
    assert future.ready.is_set()


# --------------------------------------------------------------------------------------------------------- what is refused


@mp.task
def both(first: mp.ReadWrite, second: mp.Read) -> None: ...


@mp.task
def pair(x: mp.WriteDiscard, y: mp.Read) -> None:
    x.copy_(y)


def refused(session: Session, launch: Callable[[], object], *parts: str) -> None:
    """It is refused with these words, and nothing was started or forgotten."""
    with pytest.raises(RequestError) as caught:
        launch()
    for part in parts:
        assert part in str(caught.value), str(caught.value)
    assert session.runtime.error is None


def test_interfering_points_are_refused(session: Session) -> None:
    x = session.region((8,), name="x")
    x.fill(0.0)
    overlap = mp.rectangles([((0,), (5,)), ((4,), (8,))])
    refused(session, lambda: session.index_launch(fill, overlap.colors, 1.0, x[overlap]), "fill", "x", "[4:5]")
    refused(session, lambda: session.index_launch(fill, 2, 1.0, x), "fill", "x")
    rows = mp.blocks((2,))
    refused(
        session,
        lambda: session.index_launch(both, rows.colors, x[rows], x[mp.halo(rows, (1,))]),
        "both use x",
        "read-write",
        "launch twice",
    )
    refused(session, lambda: session.launch(both, x, x), "two arguments both use x")
    assert x.read().tolist() == [0.0] * 8


def test_a_read_before_the_first_write_is_refused(session: Session) -> None:
    x = session.region((8,), name="x")
    rows = mp.blocks((2,))
    with pytest.raises(UnwrittenRegion, match=r"summed reads x\[0:8\], which nothing has written; fill or write it"):
        session.launch(summed, x)
    session.launch(fill, 1.0, x[rows][0])
    refused(session, lambda: session.launch(summed, x), "x[4:8]")
    assert session.launch(summed, x[rows][0]).get() == 4.0
    refused(session, x.read, "read", "x[4:8]")


def test_a_launch_refused_for_one_region_leaves_the_others_alone(session: Session) -> None:
    """The first requirement is legal and the second is not: neither may count as done."""
    x, y = session.region((4,), name="x"), session.region((4,), name="y")
    refused(session, lambda: session.launch(pair, x, y), "pair reads y")
    refused(session, x.read, "x[0:4]")
    x.fill(3.0)
    event = threading.Event()
    session.launch(wait, event, x, mapper=Place(lambda _: 1))
    refused(session, lambda: session.launch(pair, x, y), "pair reads y")
    later = session.launch(summed, x, mapper=Place(lambda _: 0))
    assert not later.ready.is_set()
    event.set()
    assert later.get() == 16.0


def test_arguments_that_do_not_fit_are_refused(session: Session) -> None:
    x = session.region((4,), name="x")
    x.fill(0.0)
    rows = mp.blocks((2,))
    refused(session, lambda: session.launch(fill, 1.0), "takes 2 arguments at launch, got 1", "x: write-discard")
    refused(session, lambda: session.launch(fill, 1.0, x, 3), "takes 2 arguments at launch, got 3")
    refused(session, lambda: session.launch(where, 1), "takes 0 arguments")
    refused(session, lambda: session.launch(fill, x, x), "parameter value has no privilege, but was given a region")
    refused(session, lambda: session.launch(fill, x[rows], x), "parameter value has no privilege")
    refused(session, lambda: session.launch(fill, 1.0, 2.0), "parameter x needs a region or region[partition], got float")
    refused(session, lambda: session.index_launch(summed, 3, x[rows]), "parameter x", "no tile for point (2,)")
    refused(session, lambda: session.index_launch(summed, (2, 2), x[rows]), "parameter x", "no tile for point (0, 0)")
    refused(session, lambda: session.launch(summed, x[rows]), "parameter x", "no tile for point ()")


@pytest.mark.parametrize("domain", [0, (0,), (2, 0), mp.Rect((3,), (3,))])
def test_an_empty_domain_is_refused(session: Session, domain: mp.Rect | tuple[int, ...] | int) -> None:
    refused(session, lambda: session.index_launch(where, domain), "where", "launch domain", "is empty")


@pytest.mark.parametrize("shape", [(0,), (-1, 3), (2, 1.5), ("3",)])
def test_extents_below_one_are_refused(session: Session, shape: tuple[int, ...]) -> None:
    refused(session, lambda: session.region(shape, name="x"), "region x", "expected extents >= 1")


def test_an_unknown_dtype_is_refused(session: Session) -> None:
    refused(session, lambda: session.region((2,), "float23"), "unknown type 'float23'", "did you mean 'float")


def test_a_tensor_that_does_not_fit_is_refused(session: Session) -> None:
    x = session.region((4,), name="x")
    refused(session, lambda: x.write(torch.ones(3)), "expected a tensor of shape (4,)", "(3,)")
    refused(session, lambda: x.write(torch.ones(4, dtype=torch.float64)), "torch.float32", "torch.float64")


def test_a_region_of_another_program_is_refused(session: Session) -> None:
    other = made(World.solo(processors=1, cores=1))
    foreign = other.region((4,), name="foreign")
    own = session.region((4,), name="own")
    assert foreign.logical.id == own.logical.id
    own.fill(1.0)
    refused(session, lambda: session.launch(summed, foreign), "foreign", "belongs to another program")
    refused(session, lambda: session.launch(summed, foreign[mp.blocks((2,))][0]), "belongs to another program")
    other.runtime.close()


def test_a_task_that_writes_what_it_declared_as_read_is_found_when_debugging(session: Session) -> None:
    x = session.region((4,), name="x")
    x.fill(1.0)
    session.launch(liar, x).get()  # not looked for
    with session.debug():
        assert session.launch(summed, x).get() == 8.0
        future = session.launch(liar, x)
    assert not session.debugging
    with pytest.raises(TaskFailed, match="wrote its argument 'x', which it declares as read; declare it ReadWrite"):
        future.get()


# ------------------------------------------------------------------------------------------------------------ failures


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
    for again in (session.fence, x.read, lambda: session.launch(where).get()):
        with pytest.raises(TaskFailed):
            again()


def test_the_source_line_is_that_of_the_launch(session: Session) -> None:
    x = session.region((1,))
    x.fill(1.0)
    session.fence()
    line = sys._getframe().f_lineno + 1
    future = session.launch(explode, x)
    with pytest.raises(TaskFailed, match=rf"test_session\.py:{line}\)"):
        future.get()


def test_a_world_of_one_rank_is_usable_again_after_a_failure() -> None:
    x = mp.region((4,), name="before")
    x.fill(1.0)
    with pytest.raises(TaskFailed):
        mp.launch(explode, x).get()
    y = mp.region((4,), name="after")
    y.fill(2.0)
    assert mp.launch(summed, y).get() == 8.0
    with pytest.raises(RequestError, match="before.*belongs to another program"):
        mp.launch(summed, x)
    with pytest.raises(TaskFailed):
        x.read()
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


# --------------------------------------------------------------------------------------------- the mapper is not trusted


class Answers(Mapper):
    """Gives one illegal answer."""

    def __init__(self, callback: str, answer: object) -> None:
        setattr(self, callback, lambda _: answer)


@pytest.mark.parametrize(
    ("callback", "answer", "words"),
    [
        ("shard", [0], "answered 1 ranks for"),
        ("shard", [0, 5], "answered 5 for"),
        ("shard", None, "answered None for"),
        ("select_processor", 9, "answered 9 for"),
        ("select_processor", 1.0, "answered 1.0 for"),
        ("select_variant", "gpu", "answered 'gpu' for"),
        ("order", 0.5, "answered 0.5 for"),
    ],
)
def test_illegal_answers_are_refused_with_the_legal_ones(
    session: Session, callback: str, answer: object, words: str
) -> None:
    refused(
        session,
        lambda: session.index_launch(where, 2, mapper=Answers(callback, answer)),
        f"mapper Answers.{callback} {words}",
        "legal: ",
    )
    assert session.index_launch(where, 2)[1] == [1]
