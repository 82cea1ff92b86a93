"""Recovery: how a program hears of failures, and what it says of them."""

from __future__ import annotations

import threading
import traceback

import pytest
from launched import Place, add, explode, made, on_ranks, summed

import maniple as mp
from maniple.process.error import RequestError, RunError
from maniple.runtime.control.world import World, current
from maniple.runtime.execution import recovery
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.schedule.failure import PoisonedRegion, TaskFailed
from maniple.runtime.session.session import Session

ROWS = mp.blocks((2,))


@mp.task
def fails(color: mp.Color, x: mp.ReadWrite) -> None:
    raise ValueError(f"point {color[0]}")


@mp.task
def fails_late(event: threading.Event, x: mp.ReadWrite) -> None:
    assert event.wait(60)
    raise ValueError("late")


def filled(session: Session, name: str, size: int = 4) -> mp.Region:
    region = session.region((size,), name=name)
    region.fill(1.0)
    return region


@pytest.fixture
def session() -> Session:
    return made(World.solo(processors=2, cores=1))


def test_each_failure_is_told_and_the_first_comes_first(session: Session) -> None:
    x = filled(session, "x", 12)
    session.index_launch(fails, 6, x[mp.blocks((6,))])
    with pytest.raises(TaskFailed) as caught:
        session.fence()
    lines = str(caught.value).splitlines()
    assert [line.partition("ValueError: ")[2][:7] for line in lines[:4]] == [f"point {n}" for n in range(4)]
    assert lines[4] == "and 2 more"
    assert str(caught.value.__cause__) == "point 0"
    session.fence()


@pytest.mark.parametrize("call", ["region", "fill", "launch", "read", "fence", "tunable", "trace", "debug"])
def test_whatever_is_called_next_says_it(session: Session, call: str) -> None:
    x, y = filled(session, "x"), filled(session, "y")
    event = threading.Event()
    failing = session.launch(fails_late, event, x)
    event.set()
    while not session.runtime.recovery.noted:
        session.runtime.processors[0]._thread.join(0.001)
    calls = {
        "region": lambda: session.region((1,)),
        "fill": lambda: y.fill(1.0),
        "launch": lambda: session.launch(summed, y),
        "read": y.read,
        "fence": session.fence,
        "tunable": lambda: session.tunable("n", 1),
        "trace": lambda: session.trace("t").__enter__(),
        "debug": session.debug,
    }
    with pytest.raises(TaskFailed, match="late"):
        calls[call]()
    assert y.read().tolist() == [1.0] * 4
    with pytest.raises(TaskFailed, match="late"):
        failing.get()
    assert not session.debugging


def test_every_exception_is_a_new_one(session: Session) -> None:
    x = filled(session, "x")
    future = session.launch(explode, x)
    seen = []
    for call in (future.get, future.get, x.read, x.read, future.get, x.read):
        with pytest.raises(RunError) as caught:
            call()
        seen.append(caught.value)
    assert len({id(error) for error in seen}) == len(seen)
    depths = [len(traceback.extract_tb(error.__traceback__)) for error in seen]
    assert depths[1] == depths[4]
    assert depths[2] == depths[3] == depths[5]


def test_a_program_that_never_waits_is_made_to(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "LAUNCHES", 8)
    x, y = filled(session, "x"), filled(session, "y")
    for _ in range(100):
        session.launch(add, 1.0, x, y)
        assert len(session.runtime.recovery._log) <= 8
    assert y.read().tolist() == [101.0] * 4


def test_a_trace_that_would_read_poison_does_not_start(session: Session) -> None:
    x, y = filled(session, "x"), filled(session, "y")

    def traced() -> mp.Future:
        with session.trace("t"):
            session.launch(add, 1.0, x, y)
            return session.launch(summed, y)

    assert [traced().get() for _ in range(2)] == [8.0, 12.0]
    with pytest.raises(TaskFailed):
        session.launch(explode, x).get()
    with pytest.raises(PoisonedRegion, match=r"launch .*add reads x\[0:4\]"):
        traced()
    with pytest.raises(PoisonedRegion):
        session.trace("t").replay()
    assert y.read().tolist() == [3.0] * 4
    x.fill(2.0)
    assert traced().get() == 20.0


def test_launches_that_are_held_back_were_made_before_the_failure_is_heard(session: Session) -> None:
    """Found repeats hold launches back; none of them may be lost when another has failed, nor read what it left."""
    session.auto_trace()
    x, y = filled(session, "x"), filled(session, "y")
    heard = made = 0
    for step in range(60):
        if step == 40:
            z = filled(session, "z")
            session.launch(explode, z)
        for _ in range(3):
            try:
                session.launch(add, 1.0, x, y)
                made += 1
            except TaskFailed:
                heard += 1
                session.launch(add, 1.0, x, y)
                made += 1
    try:
        session.fence()
    except TaskFailed:
        heard += 1
    assert heard == 1
    assert y.read().tolist() == [1.0 + made] * 4
    session.launch(explode, x)
    for _ in range(3):
        try:
            session.launch(add, 1.0, x, y)
        except TaskFailed:
            heard += 1
    with pytest.raises(RunError):
        y.read()
    with pytest.raises(PoisonedRegion):
        session.launch(add, 1.0, x, y)
    y.fill(2.0)
    assert session.launch(summed, y).get() == 8.0


def test_a_failure_of_an_epoch_ends_the_program_and_is_told_before_another_begins() -> None:
    x = mp.region((2,), name="x")
    x.fill(0.0)
    mp.index_launch(fails, 1, x[mp.blocks((1,))], must_epoch=True)
    runtime = RankRuntime.of(current())
    while runtime.error is None:
        runtime.processors[0]._thread.join(0.001)
    with pytest.raises(TaskFailed, match="point 0"):
        mp.region((1,))
    with pytest.raises((RequestError, TaskFailed)):
        mp.launch(summed, x)
    y = mp.region((2,))
    y.fill(1.0)
    assert mp.launch(summed, y).get() == 2.0


def test_ranks_raise_the_same_and_go_on() -> None:
    def body(session: Session) -> object:
        here = session.runtime.world.rank
        x, y, z = (filled(session, name) for name in "xyz")
        there = Place(lambda _: 1)
        future = session.launch(explode, x, mapper=there)
        session.launch(add, 1.0, x, y, mapper=Place(lambda _: 0))
        other = session.launch(summed, z, mapper=there)
        said, told = [], []
        for call in (other.get, other.get, future.get, y.read):
            try:
                said.append(call())
            except RunError as error:
                told.append(error.here if isinstance(error, TaskFailed) else here == 1)
                said.append(f"{type(error).__name__} {error}")
        assert told == [here == 1] * 3
        y.fill(0.0)
        session.index_launch(add, 2, 1.0, z[ROWS].shift(1, periodic=True), y[ROWS])
        return [*said, y.read().tolist()]

    first, second = on_ranks(2, body)
    assert first == second
    assert isinstance(first, list)
    assert first[0].startswith("TaskFailed task launched.explode[]@p1 failed on node 1 (rank 1)")
    assert first[1] == 4.0
    assert first[2] == first[0]
    assert first[3].startswith(
        "PoisonedRegion the program reads y[0:4], which was not written because task launched.ex"
    )
    assert first[4] == [1.0] * 4


def test_what_is_dropped_is_forgotten(session: Session) -> None:
    x = filled(session, "x")
    with pytest.raises(TaskFailed):
        session.launch(explode, x).get()
    assert session.runtime.recovery.poison
    del x
    session.fence()
    session.region((1,))
    assert not session.runtime.recovery.poison
    assert not session.runtime.recovery._causes
