"""Memory files: memory without a name, which another process of the same user opens by this one's number for it.

Where there is no name, nothing is to be unlinked: the system frees the memory with the last process that maps it. A
handle is good for as long as its process lives and keeps the file open, as one of CUDA is.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from maniple.process.error import RunError
from maniple.runtime.devices.peer_memory import PeerMemory, Segment

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []

_HANDLE = struct.Struct("<5Q")  # process, descriptor, and as fstat(2) says: device, inode, bytes
HANDLE_BYTES = _HANDLE.size


def make_file(size: int) -> tuple[np.ndarray[tuple[int], np.dtype[np.int8]], bytes, Callable[[], object]]:
    """Make a file; gives its bytes, its handle, and what closes it. The bytes stay while something refers to them.

    Args:
        size: of it, above 0.

    Raises:
        RunError: the system does not give it.
    """
    if not sys.platform.startswith("linux"):
        raise RunError(f"memory files are opened by other processes on Linux only, got {sys.platform}")
    try:
        descriptor = os.memfd_create("maniple-peer")
    except OSError as error:
        raise RunError(f"memory file: {error.strerror or error}") from error
    try:
        # Memory that is promised now is there later; without this, writing to it could end the process.
        os.ftruncate(descriptor, size)
        os.posix_fallocate(descriptor, 0, size)
        mapped = mmap.mmap(descriptor, size)
        found = os.fstat(descriptor)
    except (OSError, ValueError) as error:
        os.close(descriptor)
        raise RunError(f"memory file: the system does not give {size} bytes: {error}") from error
    handle = _HANDLE.pack(os.getpid(), descriptor, found.st_dev, found.st_ino, size)
    return np.frombuffer(mapped, np.int8), handle, _closing(descriptor)


def _closing(descriptor: int) -> Callable[[], object]:
    held = [descriptor]

    def close() -> None:
        with suppress(IndexError):
            os.close(held.pop())

    return close


def map_file(handle: bytes, size: int) -> np.ndarray[tuple[int], np.dtype[np.int8]]:
    """Map a file of another process.

    Args:
        handle: of the file.
        size: its bytes.

    Raises:
        RunError: there is none, or not that one any more.
    """
    if len(handle) != _HANDLE.size:
        raise RunError(f"memory file: expected a handle of {_HANDLE.size} bytes, got {len(handle)}")
    process, number, *wanted = _HANDLE.unpack(handle)
    try:
        descriptor = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR)
    except OSError as error:
        raise RunError(f"memory file of process {process}: {error.strerror or error}") from error
    try:
        found = os.fstat(descriptor)
        if [found.st_dev, found.st_ino, found.st_size] != wanted or found.st_size != size:
            raise RunError(f"memory file of process {process}: expected one of {size} bytes, got another")
        return np.frombuffer(mmap.mmap(descriptor, size), np.int8)
    except (OSError, ValueError) as error:
        raise RunError(f"memory file of process {process}: {error}") from error
    finally:
        os.close(descriptor)


class FileMemory(PeerMemory):
    """Memory of the host that ranks share; see `PeerMemory`.

    Args:
        pin: has the device use memory from an address on, so many bytes, without the host; gives what ends that.
    """

    way: ClassVar[str] = "memory of the host that ranks share"
    of_device: ClassVar[bool] = False

    def __init__(self, pin: Callable[[int, int], Callable[[], object]] | None = None) -> None:
        self.hardware = "host"
        self._pin = pin

    def export(self, size: int) -> Segment:
        """See `PeerMemory.export`."""
        data, handle, close = make_file(size)
        return self._segment(data, handle, close)

    def open(self, handle: bytes, size: int) -> Segment:
        """See `PeerMemory.open`."""
        return self._segment(map_file(handle, size), b"", lambda: None)

    def _segment(
        self, data: np.ndarray[tuple[int], np.dtype[np.int8]], handle: bytes, close: Callable[[], object]
    ) -> Segment:
        unpin = None if self._pin is None else self._pin(int(data.ctypes.data), data.nbytes)

        def end() -> None:
            if unpin is not None:
                unpin()
            close()

        return Segment(torch.from_numpy(data), handle, end)
