"""A device that is lost in the middle of a step: every rank hears of it, with whose it was, and nothing waits for it.

Null devices are lost here: what is in their streams by then fails, and all that they are given later.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from thread_ranks import run_on_worlds
from trained_networks import NETWORKS

import maniple as mp
from maniple.process.error import RunError
from maniple.runtime.control.world import World
from maniple.runtime.devices.null_device import NullDevice
from maniple.runtime.execution.rank import RankRuntime
from maniple.testing import local_worlds

WHY = "CUDA error: unspecified launch failure"


def lose_within_a_run(world: World, loser: int) -> str:
    """Train, lose a rank's device while two steps are under way, and give what the rank is told."""
    network = NETWORKS["residual"]
    machine = mp.Machine.cpu(1, ranks=world.size)
    plan = mp.search(network.graph("float64"), machine, strategy="random", seed=3)
    batch = network.samples(0, network.batch, "float64")

    def batches() -> Iterator[dict[str, torch.Tensor]]:
        for number in range(12):
            if number == 6 and world.rank == loser:
                device = RankRuntime.of(world).processors[world.rank].device
                assert isinstance(device, NullDevice)
                device.lose(WHY)
            yield batch

    trainer = mp.Trainer(network.graph("float64"), plan, optimizer=mp.SGD(0.1), world=world)
    with pytest.raises(RunError) as failed:
        list(trainer.run(batches()))
    with pytest.raises(RunError):
        trainer.step(**batch)
    RankRuntime.of(world).close()
    return str(failed.value)


@pytest.mark.parametrize(("ranks", "loser", "shared"), [(1, 0, False), (2, 1, False), (2, 0, True), (2, 1, True)])
def test_every_rank_is_told_whose_device_was_lost_and_no_thread_stays(ranks: int, loser: int, *, shared: bool) -> None:
    before = {thread.name for thread in threading.enumerate()}
    worlds = local_worlds(ranks, 1 if shared else None, device="null", shared=shared)
    told = run_on_worlds(worlds, lambda world: lose_within_a_run(world, loser), 60.0)
    assert all(f"the device failed ({WHY})" in text for text in told), told
    assert all(f"(rank {loser})" in text for rank, text in enumerate(told) if rank != loser), told
    left = [thread for thread in threading.enumerate() if "null device" in thread.name and thread.name not in before]
    for thread in left:
        thread.join(30.0)
    assert not any(thread.is_alive() for thread in left)
