"""Peaks: what was touched is found, however it was measured, and what was there before is not."""

from __future__ import annotations

import ctypes
import platform
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from maniple.runtime.devices import device_peaks
from maniple.runtime.devices.device_peaks import Bytes
from maniple.runtime.observe import peak
from maniple.runtime.observe.peak import Watch, measure_peak
from maniple.runtime.transports.shared_memory import Arena, shared_files

SIZE = 96 << 20
SLACK = 6 << 20
"""What else a test's process may take or give back meanwhile."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a resident set by kinds")


def touched(size: int = SIZE) -> np.ndarray:
    return np.ones(size, np.uint8)


def sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a system that does not let its peak be set back."""
    monkeypatch.setattr(peak, "CLEAR", Path("/nowhere/clear_refs"))


@pytest.mark.parametrize("way", ["peak", "sampled"])
def test_what_was_given_back_counts_as_long_as_it_was_there(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "sampled":
        sampled(monkeypatch)
    held = touched()
    with measure_peak() as most:
        assert most().host < SLACK  # what was there before is not counted
        if way == "peak":
            touched()  # and gone
        else:
            kept = touched()
        found = most()
    assert found.way == way
    assert SIZE - SLACK < found.host < SIZE + SLACK
    assert found.total == found.host + found.shared + found.devices
    assert held.nbytes == SIZE
    if way == "sampled":
        assert kept.nbytes == SIZE


def test_a_thread_sees_what_is_gone_when_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    sampled(monkeypatch)
    watch = Watch().begin()
    assert watch._sampler is not None
    try:
        held = touched()
        while watch._sampler._most - watch._host < SIZE - SLACK:
            pass  # until it has looked; a test that never comes here ends at its time limit
        del held
        assert watch.peak().host > SIZE - SLACK
    finally:
        watch.end()
    assert not watch._sampler._thread.is_alive()


def test_memory_that_was_only_promised_is_not_counted() -> None:
    with measure_peak() as most:
        held = np.empty(SIZE, np.uint8)
        assert most().host < SLACK
        held[: SIZE // 2] = 1
        assert SIZE // 2 - SLACK < most().host < SIZE // 2 + SLACK


def test_a_peak_before_it_began_is_forgotten() -> None:
    watch = Watch()
    touched()
    watch.begin()
    assert watch.peak().host < SLACK


def test_what_happens_aside_is_not_counted_nor_what_it_keeps() -> None:
    watch = Watch().begin()
    with watch.aside():
        touched(2 * SIZE)
        kept = touched()
    assert watch.peak().host < SLACK
    more = touched()
    assert SIZE - SLACK < watch.peak().host < SIZE + SLACK
    assert kept.nbytes == more.nbytes


@pytest.fixture
def heap() -> ctypes.CDLL:
    """The C library's, which has to be one that keeps what lies free between other blocks."""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("only glibc is known to keep what lies free, and to give it back when it is asked")
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes = [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    return library


def leave_free(heap: ctypes.CDLL) -> int:
    """Free much of the heap below a block that stays; gives that block."""
    size = 96 << 10  # smaller than what is mapped alone
    blocks = [heap.malloc(size) for _ in range(SIZE // size)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    stays: int = heap.malloc(size)
    for block in blocks:
        heap.free(block)
    return stays


def test_what_lies_free_after_it_is_not_what_something_aside_keeps(heap: ctypes.CDLL) -> None:
    watch = Watch().begin()
    with watch.aside():
        stays = leave_free(heap)
    try:
        assert watch.peak().host < SLACK
        held = touched()
        assert SIZE - SLACK < watch.peak().host < SIZE + SLACK
        assert held.nbytes == SIZE
    finally:
        heap.free(stays)


def test_what_lay_free_before_it_hides_nothing_that_something_aside_keeps(heap: ctypes.CDLL) -> None:
    watch = Watch().begin()
    stays = leave_free(heap)
    try:
        with watch.aside():
            kept = touched()
        assert watch.peak().host < SLACK
        assert kept.nbytes == SIZE
    finally:
        heap.free(stays)


def test_segments_are_told_apart() -> None:
    with shared_files(1) as (file,):
        arena = Arena(file)
        with measure_peak(arena) as most:
            block = arena.allocate(SIZE)
            block[:] = 1
            found = most()
    assert found.host < SLACK
    assert SIZE <= found.shared < SIZE + SLACK


class Allocations:
    """The allocator of a device: 5 given of 8 taken before, and what a test does then."""

    def __init__(self) -> None:
        self.now = self.most_had = Bytes(5, 8)
        self.back = 0

    def held(self) -> Bytes:
        return self.now

    def most(self) -> Bytes:
        return self.most_had

    def set_back(self) -> None:
        self.most_had = self.now

    def have(self, given: int, taken: int) -> None:
        self.now = Bytes(given, taken)
        self.most_had = Bytes(max(self.most_had.given, given), max(self.most_had.taken, taken))

    def give_back(self) -> None:
        self.back += 1
        self.now = Bytes(self.now.given, self.now.given)


def test_devices_are_told_by_what_is_in_tensors_and_by_what_is_taken_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    held         before 5 of 5   step 9 of 20   rehearsal 30 of 40, keeps 2   step 13 of 16
    peak above                   4, 15                                        6, 11
    """
    allocator = Allocations()
    peaks = device_peaks.DevicePeaks(allocator)
    monkeypatch.setattr(device_peaks, "peaks_of", lambda device: peaks)
    monkeypatch.setattr(device_peaks, "give_back", allocator.give_back)
    watch = Watch(devices=[torch.device("cuda", 3)]).begin()
    assert allocator.back == 1  # what was kept for later is of what went before
    allocator.have(9, 20)
    other = peaks.look()  # as whoever measures a body does
    allocator.have(9, 20)
    assert other.peak() == (9, 20)
    found = watch.peak()
    assert (found.devices, found.reserved) == (4, 15)
    assert found.total == found.host + found.shared + found.devices
    with watch.aside():
        allocator.have(30, 40)
        allocator.have(11, 40)
    allocator.have(13, 16)
    found = watch.peak()
    assert (found.devices, found.reserved) == (13 - (5 + 2), 16 - 5)
    watch.end()


def test_a_system_that_tells_only_the_most_ever_gives_what_that_has_grown_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "STATUS", Path("/nowhere/status"))
    with measure_peak() as most:
        held = touched(4 * SIZE)
        found = most()
    assert found.way == "ever"
    assert 0 <= found.host < 4 * SIZE + SLACK
    assert held.nbytes == 4 * SIZE
