"""Runs that follow each other overlap: a run begins, and its tiles cross, before the one before has ended."""

from __future__ import annotations

import threading

import pytest
from launched import TIMEOUT_S, Place, made, tell, wait
from thread_ranks import run_on_worlds

import maniple as mp
from maniple.runtime.control.world import World
from maniple.testing import local_worlds

RUNS = 6


@mp.task
def look(x: mp.Read, seen: mp.ReadWrite) -> None:
    seen += x


def chain(world: World, told: list[threading.Event]) -> float:
    """Run `n` ends on the second processor only when run `n + 1` has begun on the first.

        processor 0   tell 2   tell 3             tell 4
        processor 1   look 2  wait for 3   look 3  wait for 4  look 4

    The first two runs, the recording and a replay that waits for it, find their events set.
    """
    session = made(world)
    x, seen = (session.region((3,), name=name) for name in ("x", "seen"))
    x.fill(0.0)
    seen.fill(0.0)
    first, second = Place(lambda _: 0), Place(lambda _: 1)
    for run in range(RUNS):
        with session.trace("step"):
            session.launch(tell, told[run], x, mapper=first)
            session.launch(look, x, seen, mapper=second)
            session.launch(wait, told[run + 1], seen, mapper=second)
    told[RUNS].set()
    return float(seen.read()[0])


@pytest.mark.parametrize("where", ["one rank", "messages", "shared memory"])
def test_a_run_begins_before_the_one_before_has_ended(where: str) -> None:
    told = [threading.Event() for _ in range(RUNS + 1)]
    for event in told[:3]:
        event.set()
    worlds = {
        "one rank": lambda: local_worlds(1, processors=2),
        "messages": lambda: local_worlds(2),
        "shared memory": lambda: local_worlds(2, nodes=1, shared=True),
    }[where]()
    total = float(sum(range(1, RUNS + 1)) + RUNS)
    assert run_on_worlds(worlds, lambda world: chain(world, told), 2 * TIMEOUT_S) == [total] * len(worlds)
