"""Programs in one process: one at a time in a world, several in worlds of their own, threads one after the other."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from interrupted import interruptions
from launched import TIMEOUT_S, add, made, summed, tell, wait

import maniple as mp
from maniple.process.error import RequestError
from maniple.runtime.control.turn import Turn
from maniple.runtime.control.world import World
from maniple.runtime.execution.recording import record
from maniple.runtime.program.future import Future, FutureMap
from maniple.runtime.program.in_turn import in_turn
from maniple.runtime.session.session import Session
from maniple.runtime.session.tracing import Traced, Tracing

ROWS = mp.blocks((3,))
ENTRIES: dict[str, Callable[[Session, mp.Region], object]] = {
    "region": lambda session, _: session.region((3,)),
    "launch": lambda session, x: session.launch(summed, x),
    "index_launch": lambda session, x: session.index_launch(summed, ROWS.colors, x[ROWS]),
    "future": lambda session, x: session.future(Future, summed, None, (x,)),
    "fill": lambda session, x: session.fill(x, 1.0),
    "write": lambda session, x: session.write(x, torch.ones(3)),
    "copy": lambda session, x: session.copy(x, session.region((3,))),
    "trace": lambda session, _: session.trace("another"),
    "auto_trace": lambda session, _: session.auto_trace(),
    "read": lambda session, x: session.read(x),
    "fence": lambda session, _: session.fence(),
    "tunable": lambda session, _: session.tunable("tiles", 2),
    "debug": lambda session, _: session.debug(),
    "switch_debugging": lambda session, _: session.switch_debugging(on=True),
}


@contextmanager
def held(session: Session) -> Iterator[None]:
    """The turn is this thread's, as it is while a call takes."""
    session.turn.take()
    try:
        yield
    finally:
        session.turn.give()


def filled(session: Session, name: str = "x") -> mp.Region:
    x = session.region((3,), name=name)
    x.fill(2.0)
    return x


def test_another_thread_is_refused_while_one_waits(session: Session) -> None:
    """The main thread reads what a task has not written yet."""
    go, begun, me = threading.Event(), threading.Event(), threading.current_thread().name
    x, y = filled(session), filled(session, "y")

    def other() -> None:
        assert begun.wait(TIMEOUT_S)
        try:
            for call in (lambda: session.launch(summed, y), y.read, session.fence):
                with pytest.raises(RequestError, match=rf"while thread '{re.escape(me)}' does.*start a process"):
                    call()
        finally:
            go.set()

    with ThreadPoolExecutor(1) as pool:
        seen = pool.submit(other)
        with held(session):
            session.launch(tell, begun, x)
            session.launch(wait, go, x)
            assert x.read().tolist() == [4.0] * 3
        seen.result(TIMEOUT_S)
    assert session.launch(summed, y).get() == 6.0


def test_the_table_has_every_call_of_a_session() -> None:
    assert set(ENTRIES) == {name for name, member in vars(Session).items() if callable(member) and name[0] != "_"}


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_call_is_in_turn(session: Session, entry: str) -> None:
    x = filled(session)
    with ThreadPoolExecutor(1) as pool:
        with held(session), pytest.raises(RequestError, match="while thread"):
            pool.submit(ENTRIES[entry], session, x).result(TIMEOUT_S)
        pool.submit(ENTRIES[entry], session, x).result(TIMEOUT_S)


def test_what_a_call_gave_is_in_turn_too(session: Session) -> None:
    x = filled(session)
    with session.trace("known"):
        session.fill(x, 1.0)
    one, known = session.launch(summed, x), session.launch(summed, x)
    many: FutureMap = session.index_launch(summed, ROWS.colors, x[ROWS])
    assert known.get() == 3.0
    calls: list[Callable[[], object]] = [
        one.get,
        lambda: many[0],
        lambda: many.reduce("+"),
        many.placed,
        session.trace("known").replay,
        session.trace("known").__enter__,
        record(session.runtime, 10).__enter__,
        lambda: x.by_field(3),
    ]
    with ThreadPoolExecutor(1) as pool, held(session):
        for call in calls:
            with pytest.raises(RequestError, match="while thread"):
                pool.submit(call).result(TIMEOUT_S)
        assert pool.submit(known.get).result(TIMEOUT_S) == 3.0  # a value that is here is anybody's
    assert one.get() == 3.0


@pytest.mark.parametrize("replayed", [False, True])
def test_a_traced_block_is_one_turn(session: Session, *, replayed: bool) -> None:
    x, y = filled(session), filled(session, "y")
    with ThreadPoolExecutor(1) as pool:
        for _ in range(1 + replayed):
            with session.trace("block"):
                session.launch(add, 1.0, x, y)
                with pytest.raises(RequestError, match="while thread"):
                    pool.submit(session.launch, add, 1.0, x, y).result(TIMEOUT_S)
        assert pool.submit(y.read).result(TIMEOUT_S).tolist() == [4.0 + 2.0 * replayed] * 3


def test_a_trace_inside_another_leaves_the_turn_to_it(session: Session) -> None:
    x = filled(session)
    with session.trace("outer"):
        session.fill(x, 1.0)
        with pytest.raises(RequestError, match="inside trace 'outer'"), session.trace("inner"):
            pass
        assert session.turn.mine
    assert not session.turn.mine


def test_a_launch_that_is_held_back_is_refused_where_another_thread_comes_between(session: Session) -> None:
    """Found repeats are compared without the turn, so a launch that takes it looks whether its sequence goes on."""
    x = filled(session)
    session.auto_trace()
    while session.tracing.replaying is None:
        for value in range(4):
            session.fill(x, float(value))
    replaying = session.tracing.replaying
    assert session.tracing._candidate is not None
    take, *others = replaying._takes[len(replaying.calls.values) :]

    with ThreadPoolExecutor(1) as pool:

        def taken(*launch: object) -> object:
            values = take(*launch)  # type: ignore[arg-type]
            pool.submit(session.fill, x, 7.0).result(TIMEOUT_S)
            return values

        before = replaying._takes[: len(replaying.calls.values)]
        replaying._takes = (*before, taken, *others)  # type: ignore[assignment]
        with pytest.raises(RequestError, match="while another thread does"):
            session.fill(x, 0.0)
    assert x.read().tolist() == [7.0] * 3  # what was refused is not made later


def test_the_last_launch_of_a_sequence_is_not_made_where_another_thread_has_the_turn(session: Session) -> None:
    """It is refused before it is among those that the next launch starts."""
    x, y = filled(session), filled(session, "y")
    session.auto_trace()
    while session.tracing.replaying is None or len(session.tracing.replaying.calls.values) != 3:
        for value in range(4):
            if session.tracing.replaying is not None and len(session.tracing.replaying.calls.values) == 3:
                break
            session.fill(x, float(value))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(session.turn.take).result(TIMEOUT_S)
        with pytest.raises(RequestError, match="while thread"):
            session.fill(x, 3.0)
        pool.submit(session.turn.give).result(TIMEOUT_S)
    session.fill(y, 5.0)  # ends the sequence: what was held back is made
    assert x.read().tolist() == [2.0] * 3


def test_threads_may_follow_one_another(session: Session) -> None:
    x = filled(session)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: session.launch(summed, x).get()).result(TIMEOUT_S) == 6.0
    assert session.launch(summed, x).get() == 6.0


class Program:
    """What has a turn."""

    def __init__(self) -> None:
        self.turn = Turn()

    @in_turn
    def call(self) -> bool:
        """Do something."""
        return self.turn.mine


def test_an_interrupt_at_any_instruction_leaves_the_turn_to_others() -> None:
    program = Program()
    codes = {Program.call.__code__, Turn.take.__code__, Turn.give.__code__}
    with ThreadPoolExecutor(1) as pool:
        for _ in interruptions(lambda: program.call, codes):
            assert not program.turn.mine
            assert pool.submit(program.call).result(TIMEOUT_S)


def test_an_interrupted_block_leaves_the_turn_to_others(session: Session) -> None:
    x = filled(session)

    def block() -> None:
        with session.trace("interrupted"):
            session.fill(x, 1.0)

    codes = {Turn.take.__code__, Turn.give.__code__, Tracing.begin.__code__, Traced._end.__code__}
    with ThreadPoolExecutor(1) as pool:
        for _ in interruptions(lambda: block, codes):
            assert not session.turn.mine
            assert pool.submit(session.launch, summed, x).result(TIMEOUT_S) is not None


def test_worlds_of_their_own_run_at_once() -> None:
    """Each program waits in a task for the other's, so neither comes first."""
    sessions = [made(World.solo(processors=1, cores=1)) for _ in range(2)]
    events = [threading.Event(), threading.Event()]

    def program(number: int) -> list[float]:
        session = sessions[number]
        x = session.region((3,))
        x.fill(float(number))
        session.launch(tell, events[number], x)
        session.launch(wait, events[1 - number], x)
        found: list[float] = x.read().tolist()
        return found

    try:
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(program, range(2), timeout=TIMEOUT_S)) == [[2.0] * 3, [3.0] * 3]
    finally:
        for session in sessions:
            session.runtime.close()
