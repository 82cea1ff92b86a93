"""Memory files: another process opens one while its maker lives; what it has mapped then stays; nothing stays open."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch

from maniple.process.error import RunError
from maniple.runtime.devices.memory_file import HANDLE_BYTES, FileMemory, make_file, map_file
from maniple.runtime.devices.null_device import NullDevice

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory files are Linux's")

SIZE = 1 << 16
MAKER = f"""
import sys
from maniple.runtime.devices.memory_file import make_file
data, handle, close = make_file({SIZE})
data[:] = 5
print(handle.hex(), flush=True)
for line in sys.stdin:
    if line == "close\\n":
        close()
    print(int(data[0]), flush=True)
"""


@contextmanager
def maker() -> Iterator[tuple[subprocess.Popen[str], bytes]]:
    """Another process that has made a file."""
    with subprocess.Popen(
        [sys.executable, "-c", MAKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process, bytes.fromhex(process.stdout.readline())
        finally:
            process.kill()


def told(process: subprocess.Popen[str], word: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(word + "\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def maniple_files() -> list[str]:
    """What this process has open or mapped of memory files."""
    links = []
    for number in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the folder's own
            links.append(str(number.readlink()))
    links += [line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()]
    return [link for link in links if "maniple-peer" in link]


def test_two_processes_compute_with_the_same_memory() -> None:
    before = maniple_files()
    with maker() as (process, handle):
        data = map_file(handle, SIZE)
        assert bool((data == 5).all())
        data[0] = 9
        assert told(process, "look") == "9"
        del data
    assert maniple_files() == before


def test_what_is_mapped_stays_when_its_maker_is_killed_and_a_handle_is_worth_nothing_then() -> None:
    with maker() as (process, handle):
        data = map_file(handle, SIZE)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert bool((data == 5).all())
        with pytest.raises(RunError, match=f"memory file of process {process.pid}: No such file or directory"):
            map_file(handle, SIZE)


def test_a_file_that_was_closed_or_another_one_is_not_opened() -> None:
    with maker() as (process, handle):
        with pytest.raises(RunError, match=f"expected one of {SIZE + 1} bytes, got another"):
            map_file(handle, SIZE + 1)
        with pytest.raises(RunError, match=f"expected a handle of {HANDLE_BYTES} bytes, got 3"):
            map_file(handle[:3], SIZE)
        assert told(process, "close") == "5"
        with pytest.raises(RunError, match=f"memory file of process {process.pid}"):
            map_file(handle, SIZE)


def test_a_descriptor_that_is_used_again_is_another_file() -> None:
    _, handle, close = make_file(SIZE)
    close()
    close()  # twice is once
    again = [make_file(SIZE) for _ in range(3)]  # one of them has the number
    with pytest.raises(RunError, match="memory file"):
        map_file(handle, SIZE)
    for _, _, end in again:
        end()


def test_memory_is_pinned_for_as_long_as_it_is_open() -> None:
    pinned: list[tuple[int, int]] = []

    def pin(address: int, size: int) -> object:
        pinned.append((address, size))
        return lambda: pinned.remove((address, size))

    memory = FileMemory(pin)  # type: ignore[arg-type]
    made = memory.export(SIZE)
    opened = memory.open(made.handle, SIZE)
    assert sorted(pinned) == sorted((one.memory.data_ptr(), SIZE) for one in (made, opened))
    made.memory.fill_(3)
    assert bool((opened.memory == 3).all())
    opened.close()
    made.close()
    assert pinned == []


def test_what_is_opened_of_a_null_device_is_of_none_of_ones_own() -> None:
    first, second = NullDevice(0, SIZE, 0.0), NullDevice(1, SIZE, 0.0)
    try:
        made = first.peer_memories[0].export(SIZE)
        assert first.room.held == 0  # beside its instances
        opened = second.peer_memories[0].open(made.handle, SIZE)
        first.departures.submit(lambda: made.memory.fill_(7)).wait()
        row = second.stage(SIZE, torch.int8)
        with pytest.raises(RunError, match="outside of its streams"):
            opened.memory.fill_(1)
        second.arrivals.submit(lambda: row.copy_(opened.memory)).wait()
        assert bool((row == 7).all())
        with pytest.raises(RunError, match="would run in that device's current stream"):
            second.tasks.submit(lambda: opened.memory.add_(1)).wait()
    finally:
        first.close()
        second.close()
