"""Laws 1 and 3 where ranks share memory: the bits of any other transport, and as many bytes written as predicted."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from thread_ranks import run_on_worlds
from trained_networks import NETWORKS, SHORT, Training, trained

import maniple as mp
from maniple.regions.index_space import IndexSpace
from maniple.runtime.control.world import World
from maniple.runtime.lanes import binding
from maniple.runtime.machine.world_machine import host_machine
from maniple.runtime.storage.copy_kernels import Wire
from maniple.testing import local_worlds

Bits = np.ndarray[tuple[int, ...], np.dtype[np.generic]]

CASES = [
    ("digits", "data_parallel", 2, 1),
    ("residual", "spatial", 3, 1),
    ("mlp24", "expert", 2, 2),
    ("mlp13", "random", 4, 1),
]


def on_all(
    name: str, strategy: str, ranks: int, processors: int, *, shared: bool, hosts: int = 1, shuffle: int | None = None
) -> list[Training]:
    network = NETWORKS[name]

    def body(world: World) -> Training:
        plan = mp.search(network.graph("float64"), host_machine(world), strategy=strategy, seed=3)
        return trained(network, "float64", plan, world, SHORT)

    worlds = local_worlds(ranks, hosts, processors, shuffle=shuffle, shared=shared, hosts=hosts)
    return run_on_worlds(worlds, body)


@pytest.mark.parametrize(("name", "strategy", "ranks", "processors"), CASES)
def test_shared_memory_gives_the_bits_of_any_other_transport(
    name: str, strategy: str, ranks: int, processors: int
) -> None:
    """Folds have a fixed order, so not even the last bit may differ."""
    compare(
        on_all(name, strategy, ranks, processors, shared=True), on_all(name, strategy, ranks, processors, shared=False)
    )


@pytest.mark.parametrize("strategy", ["data_parallel", "random"])
def test_so_do_several_ranks_on_each_of_several_hosts(strategy: str) -> None:
    """Some steps then wait for what the copy engine of another rank of their host has moved."""
    compare(
        on_all("mlp13", strategy, 4, 1, shared=True, hosts=2, shuffle=5),
        on_all("mlp13", strategy, 4, 1, shared=False, hosts=2),
    )


def compare(one: list[Training], other: list[Training]) -> None:
    """Hold what ranks that share memory found against what ranks that do not found."""
    for shared, apart in zip(one, other, strict=True):
        assert shared.losses == apart.losses
        assert shared.moved == apart.moved
        assert all(predicted == measured > 0 for predicted, measured in shared.moved)
        for key, value in apart.parameters.items():
            assert torch.equal(shared.parameters[key], value), key


def test_bytes_are_counted_where_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A push that writes twice is measured twice: what is counted is what was copied, not what was planned."""
    bind, lock, written = binding.bind_push, threading.Lock(), [0]

    def bind_push(
        view: torch.Tensor, target: Bits, wire: Wire, points: IndexSpace | None = None
    ) -> Callable[[], object]:
        push = bind(view, target, wire, points)

        def counted() -> None:
            push()
            push()
            with lock:
                written[0] += 2 * target.nbytes
            assert np.array_equal(target, view.numpy())

        return counted

    monkeypatch.setattr(binding, "bind_push", bind_push)
    network = NETWORKS["mlp7"]

    def body(world: World) -> tuple[dict[str, int], int]:
        plan = mp.search(network.graph("float64"), host_machine(world), strategy="data_parallel")
        with mp.Trainer(network.graph("float64"), plan, optimizer=mp.SGD(lr=0.1), world=world) as trainer:
            for batch in network.batches("float64")[:3]:
                trainer.step(**batch)
            return trainer.bytes(), trainer.total_bytes()

    for moved, total in run_on_worlds(local_worlds(2, shared=True), body):
        assert moved["measured"] == 2 * moved["predicted"]
        assert total == written[0]
