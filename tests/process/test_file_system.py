"""Files are what was appended to them, whether the file system takes writes past its page cache, fewer, or none."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from maniple.process import file_system
from maniple.process.error import RequestError
from maniple.process.file_system import DIRECT, PARTIAL, STAGE, Disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

EDGES = (0, 1, 4095, 4096, STAGE - 1, STAGE, STAGE + 1, 2 * STAGE, 3 * STAGE + 5)


def some_bytes(count: int) -> bytes:
    """Give bytes that no shift by a power of two leaves as they are."""
    return (bytes(range(251)) * (count // 251 + 1))[:count]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.sampled_from(EDGES) | st.integers(0, 3 * STAGE), max_size=5))
def test_a_file_holds_its_pieces_in_order(tmp_path: Path, sizes: list[int]) -> None:
    pieces = [some_bytes(size + 7)[7:] for size in sizes]
    Disk().write_beside(tmp_path / "file", map(memoryview, pieces))
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("fault", [OSError("no room"), RequestError("a file is damaged"), KeyboardInterrupt()])
def test_nothing_is_left_of_a_file_whose_pieces_end_in_a_fault(tmp_path: Path, fault: BaseException) -> None:
    def pieces() -> Iterator[memoryview]:
        yield memoryview(some_bytes(STAGE))
        raise fault

    (tmp_path / "file").write_bytes(b"before")
    with pytest.raises(type(fault)):
        Disk().write_beside(tmp_path / "file", pieces())
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"before"


def of_direct_writes(took: Callable[[int, memoryview], int]) -> Callable[[int, memoryview], int]:
    """Give what writes as the system does, but past the page cache as is given."""
    write = os.write

    def writes(file: int, data: memoryview) -> int:
        return took(file, data) if fcntl.fcntl(file, fcntl.F_GETFL) & DIRECT else write(file, data)

    return writes


def refuse(_: int, data: memoryview) -> int:
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(len(data)))


@pytest.mark.skipif(not DIRECT, reason="this system has no O_DIRECT")
@pytest.mark.parametrize("left", [None, 0, 4096, STAGE - 4096])
def test_what_a_write_past_the_cache_leaves_is_written_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int | None
) -> None:
    calls, write = [], os.write

    def some(file: int, data: memoryview) -> int:
        calls.append(len(data))
        return write(file, data[:left])

    monkeypatch.setattr(file_system.os, "write", of_direct_writes(refuse if left is None else some))
    data = some_bytes(3 * STAGE + 9)
    Disk().write_beside(tmp_path / "file", [memoryview(data)])
    assert (tmp_path / "file").read_bytes() == data
    assert calls == ([] if left is None else [STAGE]), "a file system that took less once is not asked again"


@pytest.mark.skipif(not DIRECT, reason="this system has no O_DIRECT")
def test_a_full_disk_is_told_and_nothing_of_the_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(len(data)))

    monkeypatch.setattr(file_system.os, "write", of_direct_writes(full))
    with pytest.raises(OSError, match="No space left"):
        Disk().write_beside(tmp_path / "file", [memoryview(some_bytes(2 * STAGE))])
    assert not (tmp_path / f"file{PARTIAL}").exists()
    assert not (tmp_path / "file").exists()


def test_what_was_not_synchronized_need_not_be_there_and_no_file_stays_open(tmp_path: Path) -> None:
    disk = Disk()
    file = disk.create(tmp_path / "file")
    disk.append(file, memoryview(b"lost"))
    disk.close(file)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)
    assert (tmp_path / "file").read_bytes() in (b"", b"lost")
