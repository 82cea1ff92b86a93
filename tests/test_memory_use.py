"""Memory of a training: what it was predicted to take is what the system says that it took, and a break is seen."""

from __future__ import annotations

import platform
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import cast

import pytest
import torch

import maniple as mp
from maniple import memory_use, trained_module
from maniple.memory_use import MemoryUse
from maniple.runtime.control.world import World
from maniple.runtime.devices.host_device import HostDevice
from maniple.runtime.devices.null_device import NullDevice
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.storage.memory import Memory
from maniple.testing import local_worlds

# A weight of 36 MiB is mapped alone: smaller ones lie on the heap, between what else the process has freed there.
WIDTH, BATCH = 3072, 64


def graph(width: int = WIDTH) -> mp.Graph:
    g = mp.Graph("wide")
    h = g.relu(g.linear(g.input("x", (BATCH, width)), width))
    g.loss(g.cross_entropy(g.linear(g.relu(g.linear(h, width)), 10), g.input("y", (BATCH,), dtype="int64")))
    return g


def used(world: World, width: int = WIDTH) -> tuple[dict[str, int], dict[str, int]]:
    """What is said before the first step and after three."""
    made = graph(width)
    plan = mp.search(made, mp.Machine.cpu(1, ranks=world.size), strategy="data_parallel")
    x, y = torch.rand(BATCH, width, generator=torch.Generator().manual_seed(0)), torch.arange(BATCH) % 10
    try:
        with mp.Trainer(made, plan, optimizer=mp.SGD(lr=0.01, momentum=0.9), world=world) as trainer:
            before = trainer.memory()
            for _ in range(3):
                trainer.step(x, y)
            after = trainer.memory()
    finally:
        RankRuntime.of(world).close()
    return before[world.rank], after[world.rank]


def test_what_was_predicted_is_measured() -> None:
    used(World.solo(cores=1), 64)  # what the first trainer of a process imports and compiles is of none
    before, after = used(World.solo(cores=1))
    parameters = 4 * 2 * WIDTH * WIDTH
    assert list(before) == ["predicted"]
    assert before["predicted"] > 2 * parameters  # with momentum
    assert after["predicted"] == before["predicted"]
    assert after["measured"] == after["host"] + after["shared"] + after["devices"]
    assert after["measured"] == pytest.approx(after["predicted"], rel=0.15)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps what is freed below what stays")
def test_what_initial_values_leave_free_is_no_part_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value is made from what is freed again on the heap, below something small that stays."""
    used(World.solo(cores=1), 64)
    made = trained_module.initial_values
    more, stays = 48 << 20, list[bytes]()

    def below(*args: object) -> torch.Tensor:
        freed = [b"\1" * (96 << 10) for _ in range(more // (96 << 10))]
        stays.append(b"\1" * (96 << 10))
        del freed
        return made(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(trained_module, "initial_values", below)
    _, after = used(World.solo(cores=1))
    assert stays
    assert after["measured"] == pytest.approx(after["predicted"], rel=0.15)


def test_what_the_runtime_does_not_know_of_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage twice as large as asked for, and the runtime's own sum is none the wiser."""
    allocate = Memory._bytes
    more: list[torch.Tensor] = []

    def wasteful(self: Memory, name: str, size: int, *given: object, **named: object) -> torch.Tensor:
        more.append(torch.ones(size, dtype=torch.int8))
        return allocate(self, name, size, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Memory, "_bytes", wasteful)
    world = World.solo(cores=1)
    _, after = used(world)
    assert after["measured"] > 1.7 * after["predicted"]


def test_devices_say_which_of_torchs_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their classes; what torch knows nothing of is not watched."""

    class Torchs(HostDevice):
        torch_device = torch.device("cuda", 3)

    watched: list[object] = []
    monkeypatch.setattr(memory_use, "Watch", lambda _, devices: watched.extend(devices))
    memories = [SimpleNamespace(device=device) for device in (None, HostDevice(0, 1), Torchs(1, 1))]
    world = SimpleNamespace(device="theirs", shared=None)
    rank = SimpleNamespace(world=world, memories=dict(enumerate(memories)), processors={})
    MemoryUse(cast("RankRuntime", rank))
    assert watched == [torch.device("cuda", 3)]


def test_what_libraries_keep_for_a_stream_was_there_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device's libraries are asked where its tasks will ask them, before anything is looked at."""
    log: list[str] = []
    watch = memory_use.Watch

    def watched(*args: object) -> object:
        log.append("watch")
        return watch(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(NullDevice, "settle", lambda _: log.append(threading.current_thread().name))
    monkeypatch.setattr(memory_use, "Watch", watched)
    (world,) = local_worlds(1, device="null")
    made = graph()
    plan = mp.search(made, mp.Machine.cpu(1), strategy="data_parallel")
    try:
        with mp.Trainer(made, plan, optimizer=mp.SGD(lr=0.01), world=world):
            assert log == ["null device 0: tasks", "watch"]
    finally:
        RankRuntime.of(world).close()


def test_each_rank_says_its_own() -> None:
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(used, local_worlds(2)))
    for before, after in found:
        assert before["predicted"] == after["predicted"] > 0
        assert after["measured"] > 0
