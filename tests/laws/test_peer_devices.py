"""The laws on devices of ranks that open each other's memory, in place of messages: null devices of one host.

In worlds of one node null devices are all different ones, and tiles go through their memory; in those of a node a rank
all are the first of theirs, which counts as the same one, and tiles go through memory of the host.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import test_launches_against_oracle as launched
import test_traces_against_oracle as traced
import torch
from device_machine import device_machine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_devices import train
from thread_ranks import run_on_worlds
from trained_networks import Training

from maniple.process.error import RunError
from maniple.runtime.control.world import World
from maniple.runtime.devices.null_memory import NullMemory
from maniple.runtime.devices.peer_memory import Segment
from maniple.runtime.peers import peer_tiles
from maniple.testing import local_worlds

# (ranks, CPU processors of each, GPU processors of each)
WORLDS = ((2, 0, 1), (2, 0, 2), (2, 1, 1), (3, 0, 1))


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> Iterator[None]:
    """Whatever a test did, no descriptor of a segment is left of its ranks."""
    yield
    until = time.monotonic() + 5.0
    while (left := segments_open()) and time.monotonic() < until:
        time.sleep(0.01)  # the thread of a rank that failed may still have the frames of its error
    assert not left


def segments_open() -> list[str]:
    gc.collect()
    links = []
    for number in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the folder's own
            links.append(str(number.readlink()))
    return [link for link in links if "maniple-peer" in link]


def moved_by_messages(worlds: list[World]) -> int:
    return sum(world.transport.total() for world in worlds if world.transport is not None)


@pytest.fixture(scope="module")
def on_cpus() -> Training:
    return train("residual", "random", local_worlds(2))


@pytest.mark.parametrize(
    ("nodes", "ring"),
    [(1, peer_tiles.RING_BYTES), (1, 4096), (2, 4096)],
    ids=["memory of devices", "small rings", "memory of the host"],
)
def test_training_through_memory_of_peers_gives_the_bits_of_training_on_cpus(
    on_cpus: Training, nodes: int, ring: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_tiles, "RING_BYTES", ring)
    worlds = local_worlds(2, nodes, device="null", shared=True)
    on_devices = train("residual", "random", worlds)
    assert on_devices.losses == on_cpus.losses
    assert on_devices.moved == on_cpus.moved
    assert all(torch.equal(on_devices.parameters[key], value) for key, value in on_cpus.parameters.items())
    assert moved_by_messages(worlds) == 0
    assert sum(world.local.total for world in worlds) > 0


def test_two_devices_of_each_rank_reach_each_others_peers() -> None:
    on_cpus = train("residual", "data_parallel", local_worlds(4, nodes=2))
    worlds = local_worlds(2, 1, processors=2, device="null", shared=True)
    on_devices = train("residual", "data_parallel", worlds)
    # Two ranks fetch the loss instead of four, so sums may be folded elsewhere, and in another order.
    assert on_devices.losses == pytest.approx(on_cpus.losses, rel=0, abs=1e-12)
    assert moved_by_messages(worlds) == 0


@settings(max_examples=settings().max_examples // 8, suppress_health_check=list(HealthCheck))
@given(launched.cases(), st.sampled_from(WORLDS), st.booleans())
def test_a_program_on_peers_means_what_its_launches_mean(
    case: launched.Case, world: tuple[int, int, int], apart: bool
) -> None:
    machine = device_machine(*world)
    count = len(machine.processors)

    def placed(step: object) -> object:
        if not isinstance(step, launched.Step):
            return step
        return replace(step, places=tuple(place % count for place in step.places))

    case = replace(case, steps=tuple(map(placed, case.steps)))  # type: ignore[arg-type]
    wanted = launched.expected(case)
    worlds = local_worlds(world[0], 1 if apart else None, shuffle=case.shuffle, device="null", shared=True)
    for outcomes in run_on_worlds(worlds, lambda own: launched.ran(case, own, machine)):
        assert outcomes == wanted


@settings(max_examples=settings().max_examples // 16, suppress_health_check=list(HealthCheck))
@given(traced.cases(), st.sampled_from(WORLDS))
def test_a_traced_program_on_peers_means_what_its_launches_mean(case: traced.Case, world: tuple[int, int, int]) -> None:
    machine = device_machine(*world)
    count = len(machine.processors)

    def placed(step: object) -> object:
        if not isinstance(step, launched.Step):
            return step
        return replace(step, places=tuple(place % count for place in step.places))

    case = replace(
        case,
        traces=tuple(tuple(map(placed, steps)) for steps in case.traces),  # type: ignore[arg-type]
        program=tuple(map(placed, case.program)),  # type: ignore[arg-type]
    )
    case, wanted = traced.legal(case)
    worlds = local_worlds(world[0], 1, shuffle=case.shuffle, device="null", shared=True)
    for outcomes in run_on_worlds(worlds, lambda own: traced.ran(case, own, annotated=True, machine=machine)):
        assert outcomes == wanted


def test_memory_that_cannot_be_opened_after_all_ends_the_run_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = NullMemory.open

    def refuse(self: NullMemory, handle: bytes, size: int) -> Segment:
        if size >= peer_tiles.RING_BYTES:
            raise RunError("the system has no room for another mapping")
        return plain(self, handle, size)

    monkeypatch.setattr(NullMemory, "open", refuse)
    with pytest.raises(RunError, match="the system has no room for another mapping"):
        train("residual", "random", local_worlds(2, 1, device="null", shared=True))
