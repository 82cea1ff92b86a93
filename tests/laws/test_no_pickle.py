"""Law 7: no code on the wire. Two ranks train while pickle raises."""

from __future__ import annotations

import pickle  # noqa: TID251 - to see that nobody else does
from types import SimpleNamespace

import numba.core.caching
import numba.core.serialize
import pytest
from placed_program import Placed, opened
from thread_ranks import run_on_ranks
from trained_networks import NETWORKS, SHORT, trained

import maniple as mp
from maniple.runtime.control.world import World
from maniple.runtime.machine.world_machine import host_machine


@pytest.fixture
def no_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("pickle was used")

    # numba keeps what it compiled beside the source, pickled, on this machine: a file of its own, not the wire.
    for module in (numba.core.caching, numba.core.serialize):
        monkeypatch.setattr(module, "pickle", SimpleNamespace(**vars(pickle)))
    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler", "_Pickler", "_Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)


@mp.task
def total(x: mp.Read, names: list[str]) -> list[object]:
    return [int(x.sum()), *names]


@pytest.mark.usefixtures("no_pickle")
def test_training_needs_no_pickle() -> None:
    network = NETWORKS["mlp7"]

    def body(world: World) -> int:
        plan = mp.search(network.graph("float32"), host_machine(world), strategy="expert")
        return trained(network, "float32", plan, world, SHORT).moved[-1][1]

    assert min(run_on_ranks(2, body)) > 0


@pytest.mark.usefixtures("no_pickle")
def test_programs_of_launches_need_no_pickle() -> None:
    def body(world: World) -> object:
        session = opened(world)
        x = session.region((10,), "int64")
        x.fill(3)
        return session.launch(total, x, ["a", "b"], mapper=Placed([1])).get()

    assert run_on_ranks(2, body) == [[30, "a", "b"]] * 2


@pytest.mark.usefixtures("no_pickle")
def test_pickle_does_raise() -> None:
    with pytest.raises(AssertionError, match="pickle was used"):
        pickle.dumps(1)
