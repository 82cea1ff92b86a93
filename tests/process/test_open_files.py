from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator

import pytest

from maniple.process import open_files
from maniple.process.error import RequestError, RunError
from maniple.runtime.transports.shared_memory import SharedMemory, shared_files


@pytest.fixture
def limit() -> Iterator[tuple[int, int]]:
    """This process's limit, restored."""
    found = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield found
    resource.setrlimit(resource.RLIMIT_NOFILE, found)


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_too_few_files_are_told_with_the_number_needed(limit: tuple[int, int], ranks: int) -> None:
    enough = open_files.count(ranks)
    resource.setrlimit(resource.RLIMIT_NOFILE, (enough, limit[1]))
    open_files.check(ranks)
    resource.setrlimit(resource.RLIMIT_NOFILE, (enough - 1, limit[1]))
    with pytest.raises(RunError, match=rf"needs {enough} open files .* may have {enough - 1}; .*`ulimit -n {enough}`"):
        open_files.check(ranks)


def test_shared_memory_tells_a_lack_of_files_from_files_that_are_closed(limit: tuple[int, int]) -> None:
    with shared_files(2) as files:
        lowest = os.dup(files[0])
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limit[1]))
        with pytest.raises(RequestError, match=rf"`ulimit -n`, to {open_files.count(2)} at least"):
            SharedMemory(0, dict(enumerate(files)))
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    with pytest.raises(RequestError, match="must not close descriptors that it did not open"):
        SharedMemory(0, {0: 10**6, 1: 10**6 + 1})
    assert not open_files.are_too_many(OSError(errno.EBADF, ""))
