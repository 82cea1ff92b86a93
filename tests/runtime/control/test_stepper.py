"""The stepper: ranks of one thread compute what ranks of many threads do, in one order, and never wait for ever."""

from __future__ import annotations

import threading

import pytest
import torch
from launched import on_ranks

import maniple as mp
from maniple.process.error import RunError
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.machine.machine import Machine
from maniple.runtime.program.mapper import Mapper
from maniple.runtime.session.session import Session
from maniple.testing import Stepper, local_worlds

CELLS, RUNS = 8, 3
TILES = mp.blocks((CELLS // 2,))
AROUND = mp.halo(TILES, (1,))


@mp.task
def smooth(weight: float, near: mp.Read, far: mp.WriteDiscard) -> None:
    far.copy_(weight * near[: len(far)] + near[-len(far) :])


@mp.task
def note(seen: list[list[float]], x: mp.Read) -> None:
    seen.append(x.tolist())


@mp.task
def explode(x: mp.ReadWrite) -> None:
    raise ZeroDivisionError("one over zero")


def buffers(session: Session) -> list[mp.Region]:
    found = [session.region((CELLS,), dtype="float64", name=f"x{number}") for number in range(2)]
    for region in found:
        region.write(torch.arange(float(CELLS), dtype=torch.float64))
    return found


def step(session: Session, x: list[mp.Region], weight: float) -> None:
    with session.trace("step"):
        for number in range(4):
            session.index_launch(smooth, TILES.colors, weight, x[number % 2][AROUND], x[1 - number % 2][TILES])


def stepped(size: int) -> list[Session]:
    worlds = local_worlds(size, stepped=True)
    return [Session(RankRuntime.of(world), Machine.cpu(1, ranks=size), Mapper()) for world in worlds]


def close(sessions: list[Session]) -> None:
    for session in sessions:
        session.runtime.close()


def by_one_thread(size: int) -> list[list[float]]:
    """What the tiles hold on every rank after some runs, in the order in which tasks saw them."""
    sessions = stepped(size)
    seen: list[list[float]] = []
    try:
        threads = threading.active_count()
        regions = [buffers(session) for session in sessions]
        for run in range(RUNS):
            for session, x in zip(sessions, regions, strict=True):
                step(session, x, 0.5 + run)
            for session in sessions:
                session.fence()
        for session, x in zip(sessions, regions, strict=True):
            session.index_launch(note, TILES.colors, seen, x[0][TILES])
        for session in sessions:
            session.fence()
        assert threading.active_count() == threads
    finally:
        close(sessions)
    return seen


@pytest.mark.parametrize("size", [1, 2, 4])
def test_one_thread_computes_what_threads_do_in_one_order(size: int) -> None:
    def program(session: Session) -> object:
        x = buffers(session)
        for run in range(RUNS):
            step(session, x, 0.5 + run)
        return x[0].read().tolist()

    (whole, *_) = on_ranks(size, program)
    seen = by_one_thread(size)
    assert sorted(seen) == sorted(whole[at : at + 2] for at in range(0, CELLS, 2))  # type: ignore[index]
    assert seen == by_one_thread(size)


def test_a_failure_reaches_whoever_waits() -> None:
    sessions = stepped(2)
    try:
        for session in sessions:
            x = buffers(session)[0]
            session.index_launch(explode, TILES.colors, x[TILES])
        for session in sessions:
            with pytest.raises(RunError, match="explode"):
                session.fence()
    finally:
        close(sessions)


def test_what_can_never_go_on_is_refused() -> None:
    sessions = stepped(2)
    try:
        for session in sessions:
            buffers(session)
        first = sessions[0]
        with pytest.raises(RunError, match="its own thread makes"):
            first.runtime.world.control.gather(b"")
        x = buffers(first)
        first.index_launch(smooth, TILES.colors, 1.0, x[0][AROUND], x[1][TILES])
        first.index_launch(smooth, TILES.colors, 1.0, x[1][AROUND], x[0][TILES])
        with pytest.raises(RunError, match="no rank can go on"):
            first.fence()
    finally:
        close(sessions)


def test_turns_are_taken_in_order_until_it_is_done() -> None:
    stepper, took = Stepper(), list[str]()

    def turn(name: str) -> bool:
        took.append(name)
        return True

    def idle() -> bool:
        return False

    stepper.add(lambda: turn("a"))
    stepper.add(idle)
    stepper.add(lambda: turn("b"))
    stepper.until(lambda: len(took) >= 4)
    assert took == ["a", "b", "a", "b"]
    alone = Stepper()
    alone.add(idle)
    with pytest.raises(RunError, match="no rank can go on"):
        alone.until(lambda: False)
    alone.remove(idle)
    with pytest.raises(ValueError, match="got both"):
        local_worlds(2, shared=True, stepped=True)
