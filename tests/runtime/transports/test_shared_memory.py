"""Shared memory: allocation in a rank's own file, windows on others', and what is left when processes are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.process.error import RequestError
from maniple.runtime.transports import shared_memory
from maniple.runtime.transports.shared_memory import BOARD, GROWTH, LINE, SLOTS, SharedMemory, shared_files

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


def pair() -> tuple[SharedMemory, SharedMemory]:
    with shared_files(2) as files:
        first, second = (SharedMemory(rank, dict(enumerate(files))) for rank in range(2))
    return first, second


def test_what_one_rank_writes_another_sees() -> None:
    owner, peer = pair()
    block = owner.arena.allocate(100)
    window = peer.window(0, owner.arena.start_of(int(block.ctypes.data)), 100)
    window[:] = np.arange(100)
    assert block.tolist() == list(range(100))


def test_a_window_on_what_was_allocated_after_the_file_was_mapped() -> None:
    owner, peer = pair()
    first = owner.arena.allocate(10)
    early = peer.window(0, owner.arena.start_of(int(first.ctypes.data)), 10)
    second = owner.arena.allocate(3 * GROWTH)
    late = peer.window(0, owner.arena.start_of(int(second.ctypes.data)), 3 * GROWTH)
    early[:], late[-1] = 1, 7
    assert (first.sum(), second[-1]) == (10, 7)


@given(st.lists(st.tuples(st.integers(1, GROWTH), st.booleans()), min_size=1, max_size=30))
def test_allocations_never_overlap_and_are_used_again(wanted: list[tuple[int, bool]]) -> None:
    owner, _ = pair()
    held: list[tuple[int, Bytes]] = []
    for size, drop in wanted:
        block = owner.arena.allocate(size)
        start = owner.arena.start_of(int(block.ctypes.data))
        assert start % LINE == 0
        assert block.nbytes == size
        assert start >= BOARD
        assert all(start + size <= other or other + old.nbytes <= start for other, old in held)
        held.append((start, block))
        del block
        if drop:
            held.pop(0)
    assert owner.arena.allocated_bytes() == sum(-(-block.nbytes // LINE) * LINE for _, block in held)
    held.clear()
    assert owner.arena.allocated_bytes() == 0


def test_memory_that_is_let_go_of_does_not_grow_the_file() -> None:
    owner, _ = pair()
    before = os.fstat(owner._descriptors[0]).st_size
    for _ in range(50):
        block = owner.arena.allocate(GROWTH // 2)
        del block
    assert os.fstat(owner._descriptors[0]).st_size == before + GROWTH


def test_too_little_memory_is_refused_with_the_size_that_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    owner, _ = pair()
    kept = owner.arena.allocate(10)

    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    need = os.fstat(owner._descriptors[0]).st_size + 4 * GROWTH
    with pytest.raises(RequestError, match=rf"needs {need} bytes .*No space left.*--transport zmq"):
        owner.arena.reserve([4 * GROWTH])
    monkeypatch.undo()
    kept[:] = 1  # what was there is still there, and there is room again
    owner.arena.reserve([4 * GROWTH])
    assert kept.sum() == 10


def test_more_than_the_host_has_is_not_even_asked_for() -> None:
    owner, _ = pair()
    with pytest.raises(RequestError, match="this host has"):
        owner.arena.allocate(1 << 50)


def test_a_board_has_room_for_so_many_counters() -> None:
    owner, peer = pair()
    assert owner.counter(1, SLOTS - 1) % LINE == peer.counter(1, SLOTS - 1) % LINE
    with pytest.raises(RequestError, match="start more ranks"):
        owner.counter(0, SLOTS)


def test_descriptors_that_are_not_there_are_named() -> None:
    with pytest.raises(RequestError, match="must not close"):
        SharedMemory(0, {0: 987654})


def test_bytes_are_counted_by_account() -> None:
    owner, _ = pair()
    owner.wrote(10, 1)
    owner.wrote(5, 2)
    assert (owner.count_bytes(1), owner.count_bytes(2), owner.total()) == (10, 5, 15)


# One end of a ping-pong: writes a value, raises its counter, waits for the other's, checks that its value is there.
PLAYER = """
import sys
from maniple.runtime.transports.shared_counter import publish, has_reached
from maniple.runtime.transports.shared_memory import SharedMemory
rank, rounds, files = int(sys.argv[1]), int(sys.argv[2]), [int(part) for part in sys.argv[3].split(",")]
shared = SharedMemory(rank, dict(enumerate(files)))
mine, theirs = shared.window(1 - rank, 60000, 1000), shared.window(rank, 60000, 1000)
print("ready", flush=True)
for turn in range(1, rounds + 1):
    if turn % 2 == rank:
        mine[:] = turn % 251
        publish(shared.counter(rank, 0), turn)
    else:
        while not has_reached(shared.counter(1 - rank, 0), turn, 100_000):
            pass
        assert (theirs == turn % 251).all(), turn
"""


@contextmanager
def players(rounds: int) -> Iterator[list[subprocess.Popen[str]]]:
    with shared_files(2) as files, ExitStack() as stack:
        names = ",".join(map(str, files))
        yield [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", PLAYER, str(rank), str(rounds), names],
                    pass_fds=files,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for rank in range(2)
        ]


def test_two_processes_see_what_was_written_before_a_counter_was_raised() -> None:
    with players(20_000) as both:
        assert [player.wait(timeout=60) for player in both] == [0, 0]


def names_left() -> set[str]:
    folders = [Path("/dev/shm"), Path(tempfile.gettempdir())]
    return {str(path) for folder in folders if folder.is_dir() for path in folder.glob("maniple-[0-9]*-*")}


def test_processes_that_are_killed_leave_no_name() -> None:
    before = names_left()
    with players(1 << 40) as both:
        for player in both:
            assert player.stdout is not None
            assert player.stdout.readline() == "ready\n"
        for player in both:
            os.kill(player.pid, signal.SIGKILL)
            assert player.wait(timeout=10) == -signal.SIGKILL
    assert names_left() == before


def test_elsewhere_than_on_linux_files_lie_in_the_temporary_folder_without_a_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shared_memory.sys, "platform", "darwin")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    owner, peer = pair()
    block = owner.arena.allocate(8)
    peer.window(0, owner.arena.start_of(int(block.ctypes.data)), 8)[:] = 3
    assert block.sum() == 24
    assert list(tmp_path.iterdir()) == []
