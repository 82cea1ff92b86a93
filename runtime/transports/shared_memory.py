"""Shared memory: what the ranks of one host can write into each other's memory.

Every rank has one file without a name, which the launcher opens and all ranks of the host inherit. Where there is no
name, nothing is to be unlinked: the system frees the memory with the last process that refers to it, however that
process ends. A rank grows its own file and allocates in it; the others map it and write where its owner tells them.

    file of rank 1   | board: 64 KiB of counters | a box of pushes to each rank | instances and tables, by rank 1 ... |
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import threading
import weakref
from collections import deque
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.process import open_files
from maniple.process.error import RequestError
from maniple.process.inventory import take_inventory
from maniple.runtime.transports.transport import Meter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]

__all__: list[str] = []

BOARD = 1 << 16
# Counters have a cache line each, so that two writers never share one.
LINE = 64
SLOTS = BOARD // LINE
PAGE = mmap.ALLOCATIONGRANULARITY
# A box: counters of tiles sent and taken, the flags of two ends that want to be woken, and the places of tiles.
SENT, TAKEN, HUNGRY, STARVED, FIRST_ENTRY = (LINE * number for number in range(5))
ENTRIES = 64
BOX = FIRST_ENTRY + 16 * ENTRIES
# What a file's blocks are counted in (stat(2)), whatever the size of those that it has.
_BLOCK = 512
# The least that a file grows by.
GROWTH = 1 << 20


@contextmanager
def shared_files(count: int) -> Iterator[tuple[int, ...]]:
    """Open one file without a name for each rank, for as long as it takes to hand the descriptors on.

    Linux has memory files, which no size of /dev/shm bounds; elsewhere they lie in the folder for temporary files.
    """
    with ExitStack() as stack:
        found = []
        for rank in range(count):
            if sys.platform == "linux":
                found.append(os.memfd_create(f"maniple-{rank}"))
                stack.callback(os.close, found[-1])
            else:
                # Unlinked as soon as it is open.
                found.append(stack.enter_context(tempfile.TemporaryFile()).fileno())
            os.ftruncate(found[-1], _head(count))
        yield tuple(found)


@contextmanager
def wakeup_pipes(count: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Open a pipe for each rank, to wake it with, for as long as it takes to hand the descriptors on.

    Gives (where to read, where to write) of each.
    """
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            ends = os.pipe()
            for end in ends:
                stack.callback(os.close, end)
            # A full pipe holds a byte that wakes its rank.
            os.set_blocking(ends[1], False)
            found.append(ends)
        yield tuple(found)


def _head(count: int) -> int:
    """The bytes of a file before what its rank allocates."""
    return -(-(BOARD + count * BOX) // PAGE) * PAGE


@final
@dataclass(eq=False, slots=True)
class _Segment:
    """A mapped range of a rank's own file, and the holes in it as {start: size}."""

    start: int
    view: Bytes
    holes: dict[int, int]

    def take(self, start: int, size: int) -> None:
        """Take the start of a hole that is large enough."""
        left = self.holes.pop(start) - size
        if left:
            self.holes[start + size] = left

    def give(self, start: int, size: int) -> None:
        """Give a range back, joined with its neighbours."""
        after = self.holes.pop(start + size, 0)
        before = next((low for low, length in self.holes.items() if low + length == start), None)
        if before is None:
            self.holes[start] = size + after
        else:
            self.holes[before] += size + after


class Arena:
    """The file of one rank as its owner sees it: grows, allocates, and takes back what nobody refers to any more.

    Args:
        descriptor: the file.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._segments: list[_Segment] = []
        self._lock = threading.Lock()
        # The collector may run on any thread and at any time, so it only leaves a note.
        self._freed: deque[tuple[_Segment, int, int]] = deque()
        self._end = os.fstat(descriptor).st_size

    def reserve(self, sizes: Iterable[int]) -> None:
        """Have room for blocks of some sizes, so that allocating them will not fail.

        Raises:
            RequestError: the system does not give them.
        """
        with self._lock:
            self._absorb()
            holes = [hole for segment in self._segments for hole in segment.holes.values()]
            for size in sorted((-(-size // LINE) * LINE for size in sizes), reverse=True):
                fitting = [hole for hole in holes if hole >= size]
                if not fitting:
                    fitting = [self._grow(size).view.nbytes]
                    holes += fitting
                found = min(fitting)
                holes.remove(found)
                holes.append(found - size)

    def allocate(self, size: int) -> Bytes:
        """Allocate bytes, of any content; they are free again when nothing refers to the array.

        Raises:
            RequestError: the system does not give them.
        """
        taken = -(-size // LINE) * LINE
        with self._lock:
            self._absorb()
            if not any(hole >= taken for segment in self._segments for hole in segment.holes.values()):
                self._grow(taken)
            # The smallest that is large enough, so that a large block finds what was reserved for it.
            _, number, start = min(
                (hole, number, start)
                for number, segment in enumerate(self._segments)
                for start, hole in segment.holes.items()
                if hole >= taken
            )
            segment = self._segments[number]
            segment.take(start, taken)
        block = np.frombuffer(segment.view.data, np.uint8, size, start)
        weakref.finalize(block, self._freed.append, (segment, start, taken)).atexit = False
        return block

    def start_of(self, address: int) -> int:
        """Give the place in the file of an address of an allocation.

        Raises:
            ValueError: it is in none.
        """
        for segment in self._segments:
            offset = address - int(segment.view.ctypes.data)
            if 0 <= offset < segment.view.nbytes:
                return segment.start + offset
        raise ValueError(f"address {address:#x} is not in memory that rank's peers can map")

    def allocated_bytes(self) -> int:
        """Count the bytes that are allocated and referred to, each allocation rounded up to a cache line."""
        with self._lock:
            self._absorb()
            held = sum(segment.view.nbytes for segment in self._segments)
            return held - sum(sum(segment.holes.values()) for segment in self._segments)

    def touched_bytes(self) -> int:
        """Count the bytes that the system has given the file so far."""
        return os.fstat(self._descriptor).st_blocks * _BLOCK

    def _absorb(self) -> None:
        while self._freed:
            segment, start, size = self._freed.popleft()
            segment.give(start, size)

    def _grow(self, size: int) -> _Segment:
        wanted = -(-max(size, GROWTH) // PAGE) * PAGE
        start = self._end
        present = take_inventory().memory_bytes
        if present and start + wanted > present:
            raise RequestError(too_small(start + wanted, f"this host has {present} bytes of memory"))
        try:
            os.ftruncate(self._descriptor, start + wanted)
            if sys.platform == "linux":
                # Memory that is promised now is there later; without this, writing to it could end the process.
                os.posix_fallocate(self._descriptor, start, wanted)
            mapped = mmap.mmap(self._descriptor, wanted, offset=start)
        except (OSError, ValueError) as error:
            with suppress(OSError):
                os.ftruncate(self._descriptor, start)
            raise RequestError(too_small(start + wanted, str(error))) from error
        segment = _Segment(start, np.frombuffer(mapped, np.uint8), {0: wanted})
        self._segments.append(segment)
        self._end = start + wanted
        return segment


def too_small(need: int, why: str) -> str:
    """Say that shared memory is too small, how much is needed, and what to do."""
    return (
        f"shared memory: this rank needs {need} bytes ({need / 2**20:.1f} MiB) that it shares with the ranks of its "
        f"host, and did not get them: {why}; free memory, use fewer ranks per host, or run with --transport zmq"
    )


@final
class SharedMemory:
    """One rank's view of the memory that the ranks of its host share.

    Args:
        rank: this rank.
        descriptors: the file of every rank of this host; duplicated, so that the caller may close them.
        wakeup_pipes: for each of them a pipe, as (where to read, where to write), likewise; none where nobody is woken.

    Raises:
        RequestError: a descriptor is not that of such a file.
    """

    def __init__(
        self, rank: int, descriptors: Mapping[int, int], wakeup_pipes: Mapping[int, tuple[int, int]] | None = None
    ) -> None:
        self.rank = rank
        self.ranks = frozenset(descriptors)
        try:
            self._descriptors = {other: os.dup(descriptor) for other, descriptor in sorted(descriptors.items())}
            self._boards = {
                other: np.frombuffer(mmap.mmap(descriptor, _head(len(descriptors))), np.uint8)
                for other, descriptor in self._descriptors.items()
            }
            self._wakeup_pipes = {other: os.dup(ends[1]) for other, ends in sorted((wakeup_pipes or {}).items())}
            self._own_wakeup = os.dup(wakeup_pipes[rank][0]) if wakeup_pipes else -1
        except (OSError, ValueError) as error:
            if open_files.are_too_many(error):
                enough = open_files.count(len(descriptors))
                raise RequestError(
                    f"shared memory: {error}; {len(descriptors)} ranks and what the program opens itself need more: "
                    f"raise the limit of open files with `ulimit -n`, to {enough} at least"
                ) from error
            raise RequestError(
                f"shared memory: the files that the launcher opened are not there ({error}); a program must not close "
                "descriptors that it did not open, or run it with --transport zmq"
            ) from error
        self._places = {other: int(board.ctypes.data) for other, board in self._boards.items()}
        self._mapped: dict[int, Bytes] = {}
        self._lock = threading.Lock()
        self._meter = Meter()
        self.arena = Arena(self._descriptors[rank])
        own = [self._own_wakeup] if wakeup_pipes else []
        opened = (*self._descriptors.values(), *self._wakeup_pipes.values(), *own)
        weakref.finalize(self, _close, opened).atexit = False

    def counter(self, rank: int, slot: int) -> int:
        """Give the address of a counter on a rank's board.

        Raises:
            RequestError: the board has fewer.
        """
        if not 0 <= slot < SLOTS:
            raise RequestError(f"a rank shares the counters of {SLOTS} processors at most; start more ranks instead")
        return self._places[rank] + LINE * slot

    @property
    def has_wakeup_pipes(self) -> bool:
        """Whether ranks can wake one another."""
        return bool(self._wakeup_pipes)

    def box(self, sender: int, receiver: int) -> tuple[Bytes, int]:
        """Give the box of a directed pair of ranks, and its address."""
        start = BOARD + BOX * sorted(self.ranks).index(receiver)
        board = self._boards[sender]
        return board[start : start + BOX], int(board.ctypes.data) + start

    def wake(self, rank: int) -> None:
        """Wake a rank that awaits a wake-up, or will."""
        with suppress(BlockingIOError):
            os.write(self._wakeup_pipes[rank], b"\0")

    def await_wakeup(self) -> None:
        """Block until this rank is woken; wake-ups that it did not wait for count as one."""
        os.read(self._own_wakeup, 4096)

    def window(self, rank: int, start: int, size: int) -> Bytes:
        """Map a range of another rank's file."""
        with self._lock:
            mapped = self._mapped.get(rank)
            if mapped is None or mapped.nbytes < start + size:
                # The file only grows; views of an earlier, shorter mapping stay valid.
                mapped = self._mapped[rank] = np.frombuffer(mmap.mmap(self._descriptors[rank], 0), np.uint8)
        return mapped[start : start + size]

    def wrote(self, size: int, account: int) -> None:
        """Count bytes that a thread of this rank has written into others' memories."""
        with self._lock:
            self._meter.add(account, size)

    def count_bytes(self, account: int) -> int | None:
        """Count the bytes of one account; None if it is too long ago to be known."""
        return self._meter.of(account)

    def total(self) -> int:
        """Count the bytes that were ever written."""
        return self._meter.total


def _close(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
