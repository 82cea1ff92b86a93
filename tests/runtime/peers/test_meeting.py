"""Meetings: each pair of ranks finds out by trying what it can open, and rank 0 says it once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest
import torch
from thread_ranks import run_on_worlds

from maniple.process.error import RunError
from maniple.runtime.control.world import World
from maniple.runtime.devices.device import Device
from maniple.runtime.devices.host_device import HostDevice
from maniple.runtime.devices.memory_file import FileMemory
from maniple.runtime.devices.null_device import NullDevice
from maniple.runtime.devices.peer_memory import PeerMemory, Segment
from maniple.runtime.peers import meeting
from maniple.runtime.peers.meeting import meet, neighbours_of
from maniple.runtime.peers.reach import Reach
from maniple.testing import local_worlds

Make = Callable[[int, int], Device]
BOTH = Reach(device=True, host=True)
SAY = "maniple: tiles between GPUs of ranks of one host"
HOST = "memory of the host that ranks share"
NONE = "this container has none"
UNKNOWN = "null device 0 opens no memory of null devices"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What rank 0 says."""
    lines: list[str] = []
    monkeypatch.setattr(meeting, "announce", lines.append)
    return lines


@contextmanager
def opened(makes: list[Make]) -> Iterator[list[Device]]:
    with ExitStack() as stack:
        yield [stack.enter_context(closing(make(number, 1 << 20))) for number, make in enumerate(makes)]


def met(worlds: list[World], *makes: Make) -> list[dict[int, Reach]]:
    """What each rank finds out; `makes` opens the devices of each."""

    def body(world: World) -> dict[int, Reach]:
        with opened(list(makes)) as devices:
            own = [device for number, device in enumerate(devices) if number % world.size == world.rank]
            return meet(world, own)

    return run_on_worlds(worlds, body)


class Refusing(NullDevice):
    """A device of which nothing can be exported."""

    @property
    def peer_memories(self) -> tuple[PeerMemory, ...]:
        return (Unexported(),)


class Unexported(FileMemory):
    def export(self, size: int) -> Segment:
        raise RunError(NONE)


class Unread(NullDevice):
    """A device whose memory another opens, and finds something else in."""

    @property
    def peer_memories(self) -> tuple[PeerMemory, ...]:
        return (Other(),)


class Other(FileMemory):
    def open(self, handle: bytes, size: int) -> Segment:
        return Segment(torch.zeros(size, dtype=torch.int8), b"", lambda: None)


def test_null_devices_of_a_host_open_each_others_memory(said: list[str]) -> None:
    worlds = local_worlds(3, 1, device="null", shared=True)
    assert [neighbours_of(world) for world in worlds] == [{1, 2}, {0, 2}, {0, 1}]
    assert met(worlds, NullDevice, NullDevice, NullDevice) == [
        {1: BOTH, 2: BOTH},
        {0: BOTH, 2: BOTH},
        {0: BOTH, 1: BOTH},
    ]
    assert said == ["maniple: tiles between GPUs of ranks of one host travel through memory of null devices"]


def test_ranks_of_different_hosts_and_those_whose_transport_shares_nothing_open_nothing(said: list[str]) -> None:
    assert met(local_worlds(4, device="null", shared=True, hosts=2), *[NullDevice] * 4) == [
        {1: BOTH},
        {0: BOTH},
        {3: BOTH},
        {2: BOTH},
    ]
    assert len(said) == 1
    assert met(local_worlds(2, device="null"), NullDevice, NullDevice) == [{}, {}]
    assert len(said) == 1


def test_ranks_that_use_one_gpu_take_the_way_over_the_host_for_small_tiles(said: list[str]) -> None:
    def same(_: int, capacity: int) -> Device:
        return NullDevice(0, capacity)

    reach = Reach(device=True, host=True, shares=True)
    assert met(local_worlds(2, 1, device="null", shared=True), same, same) == [{1: reach}, {0: reach}]
    assert said == [
        f"{SAY} travel through {HOST}, from 8 MiB on through memory of null devices (they use the same GPU)",
    ]


def test_what_cannot_be_exported_or_reads_otherwise_is_said_and_not_used(said: list[str]) -> None:
    worlds = local_worlds(2, 1, device="null", shared=True)
    first, second = met(worlds, Refusing, NullDevice)
    assert (first[1].device, first[1].host, second[0].device, second[0].host) == (False, False, False, True)
    assert said == [
        f"{SAY} (ranks 0 to 1) travel through the host and the transport of other tiles; not through {HOST}: {NONE}",
        f"{SAY} (ranks 1 to 0) travel through {HOST}; not through memory of null devices: {UNKNOWN}",
    ]
    said.clear()
    found = met(local_worlds(2, 1, device="null", shared=True), Unread, Unread)
    assert not found[0][1].host
    assert "reads other values in memory of the host that ranks share than were written" in said[0]


class Unreadable(FileMemory):
    def open(self, handle: bytes, size: int) -> Segment:
        return Segment(torch.zeros(size + 1, dtype=torch.int8), b"", lambda: None)


class Short(NullDevice):
    """A device that cannot read what it opens."""

    @property
    def peer_memories(self) -> tuple[PeerMemory, ...]:
        return (Unreadable(),)


def test_a_trial_that_fails_is_told_and_breaks_no_stream(said: list[str]) -> None:
    def body(world: World) -> Reach:
        with opened([Short]) as (device,):
            found = meet(world, [device])
            device.departures.submit(lambda: None).wait()
        return found[1 - world.rank]

    for reach in run_on_worlds(local_worlds(2, 1, device="null", shared=True), body):
        assert reach.of_device(1) is None
    assert said[0].startswith(
        f"{SAY} travel through the host and the transport of other tiles; not through {HOST}: null"
    )
    assert "RuntimeError: The size of tensor" in said[0]


def test_devices_that_export_nothing_say_so(said: list[str]) -> None:
    assert met(local_worlds(2, 1, device="host", shared=True), HostDevice, HostDevice) == [{}, {}]
    assert said == [
        f"{SAY} travel through the host and the transport of other tiles: their devices export no memory",
    ]
