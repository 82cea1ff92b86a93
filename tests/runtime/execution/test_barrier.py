"""Barriers: every rank learns whether any of them said yes, at each one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maniple.process.error import RunError
from maniple.runtime.control.world import World
from maniple.runtime.execution.barrier import Barrier
from maniple.runtime.execution.rank import RankRuntime
from maniple.testing import local_worlds

TIMEOUT_S = 30.0


def meet(worlds: list[World], bits: list[list[bool]]) -> list[list[bool]]:
    """Have every rank say its bits, one after another; gives what each learned."""
    runtimes = [RankRuntime(world) for world in worlds]

    def one(rank: int) -> list[bool]:
        barrier = Barrier(worlds[rank], runtimes[rank].resources.progress)
        return [barrier.anybody(says=said[rank]) for said in bits]

    try:
        with ThreadPoolExecutor(len(worlds)) as pool:
            return list(pool.map(one, range(len(worlds)), timeout=TIMEOUT_S))
    finally:
        for runtime in runtimes:
            runtime.close()


@pytest.mark.parametrize("hosts", [1, 2])
@settings(max_examples=25)
@given(data=st.data())
def test_all_ranks_learn_the_same_at_every_barrier(hosts: int, data: st.DataObject) -> None:
    size = hosts * data.draw(st.integers(1, 2) if hosts == 2 else st.integers(2, 4))
    bits = data.draw(st.lists(st.lists(st.booleans(), min_size=size, max_size=size), min_size=1, max_size=12))
    learned = meet(local_worlds(size, hosts=hosts, shared=True), bits)
    assert learned == [[any(said) for said in bits]] * size


def test_who_waits_at_a_barrier_of_a_run_that_was_stopped_is_told() -> None:
    worlds = local_worlds(2, shared=True)
    waiting, other = (RankRuntime(world) for world in worlds)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(Barrier(worlds[0], waiting.resources.progress).anybody, says=False)
        other.fail(RuntimeError("no more"))
        with pytest.raises(RunError, match="no more"):
            found.result(TIMEOUT_S)
    for runtime in (waiting, other):
        runtime.close()
