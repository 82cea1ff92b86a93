"""Ranks that are threads of this process: a world of them runs one function, and all of them must come back in time."""

from __future__ import annotations

import faulthandler
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from maniple.regions.error import RunError
from maniple.runtime.control.control import RankStopped
from maniple.runtime.control.world import World, local_worlds
from maniple.runtime.execution.rank import RankRuntime

T = TypeVar("T")

DEADLINE_S = 90.0


def run_on_worlds(worlds: list[World], body: Callable[[World], T], deadline_s: float = DEADLINE_S) -> list[T]:
    """What the body returned on each rank; the first error that was not an echo of another rank's is raised.

    A rank that raises stops the others, as a process that dies does. Ranks that do not end fail the test, after every
    thread's stack was printed.

    Args:
        worlds: one for each rank.
        body: the program.
        deadline_s: seconds for all ranks together.
    """
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def main(world: World) -> None:
        try:
            results[world.rank] = body(world)
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)
            world.control.fail("", f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=main, args=(world,), name=f"rank {world.rank}", daemon=True) for world in worlds]
    for thread in threads:
        thread.start()
    with deadline(deadline_s) as left:
        for thread in threads:
            thread.join(left())
    stuck = [thread.name for thread in threads if thread.is_alive()]
    if stuck:
        faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
        for world in worlds:
            world.control.fail("", "the deadline of the test has passed")
        pytest.fail(f"{', '.join(stuck)} did not end within {deadline_s:.0f} s; errors elsewhere: {errors}")
    # A task's failure reaches the program as RunError on its own rank, and as RankStopped elsewhere.
    for error in sorted(errors, key=lambda error: (isinstance(error, RankStopped), isinstance(error, RunError))):
        raise error
    for world in worlds:
        RankRuntime.of(world).close()
    return [results[world.rank] for world in worlds]


def run_on_ranks(
    size: int,
    body: Callable[[World], T],
    *,
    processors: int = 1,
    nodes: int | None = None,
    shuffle: int | None = None,
    shared: bool = False,
    deadline_s: float = DEADLINE_S,
) -> list[T]:
    """What the body returned on each rank of a new world.

    Args:
        size: number of ranks.
        body: the program.
        processors: of each rank.
        nodes: that the ranks pretend to be on; by default one each.
        shuffle: a seed, to have deliveries of different ranks overtake each other.
        shared: whether they share memory.
        deadline_s: seconds for all ranks together.
    """
    return run_on_worlds(local_worlds(size, nodes, processors, shuffle=shuffle, shared=shared), body, deadline_s)


@contextmanager
def deadline(seconds: float) -> Iterator[Callable[[], float]]:
    """A function that gives the seconds that are left, never less than zero."""
    from time import monotonic

    end = monotonic() + seconds
    yield lambda: max(0.0, end - monotonic())
