"""The file system as whoever writes files that must survive sees it: few operations, each of which may fail."""

from __future__ import annotations

import errno
import fcntl
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from mmap import mmap
from pathlib import Path
from typing import final

__all__: list[str] = []


class AbstractFileSystem(ABC):
    """What a writer asks of a file system. Every operation may raise `OSError`; none is undone by a later one.

    What was written is only there after a failure of the machine once the file was synchronized, and a name only once
    its folder was.
    """

    @abstractmethod
    def make_folder(self, path: Path) -> None:
        """Make a folder that is not there yet; its parent is."""

    @abstractmethod
    def create(self, path: Path) -> int:
        """Make a file, or empty it, and open it for writing."""

    @abstractmethod
    def append(self, file: int, data: memoryview) -> None:
        """Write all of some bytes behind what a file holds; they are there once it was synchronized."""

    @abstractmethod
    def sync(self, file: int) -> None:
        """Return once what a file holds is on its storage."""

    @abstractmethod
    def close(self, file: int) -> None:
        """Write no more to a file; what was not synchronized may be missing there."""

    @abstractmethod
    def rename(self, old: Path, new: Path) -> None:
        """Give a file another name at once, in place of whatever has it."""

    @abstractmethod
    def sync_folder(self, path: Path) -> None:
        """Return once the names in a folder are on its storage."""

    @abstractmethod
    def remove(self, path: Path) -> None:
        """Remove a file; nothing where there is none."""

    @abstractmethod
    def remove_folder(self, path: Path) -> None:
        """Remove a folder without files; nothing where there is none."""

    @final
    def write_beside(self, path: Path, pieces: Iterable[memoryview]) -> None:
        """Write a file under another name, whole and to its storage, and only then give it its own.

        Args:
            path: the file.
            pieces: its bytes, in order.

        Raises:
            OSError: it could not be written; what was of it is removed as far as that goes.
        """
        partial = path.with_name(path.name + PARTIAL)
        try:
            file = self.create(partial)
            try:
                for piece in pieces:
                    self.append(file, piece)
                self.sync(file)
            finally:
                self.close(file)
            self.rename(partial, path)
            self.sync_folder(path.parent)
        except BaseException:  # also of what gives the pieces, and an interrupt
            self._forget(partial)
            raise

    def _forget(self, path: Path) -> None:
        try:
            self.remove(path)
        except OSError:
            return  # what failed before is what is told


PARTIAL = ".partial"
"""What the name of a file ends with that is not whole."""


STAGE = 1 << 20
"""Bytes that are written past the page cache at a time, from memory that begins with a page."""

DIRECT = getattr(os, "O_DIRECT", 0)
"""What asks for that; nothing where the system has no such flag."""


@final
class _Stage:
    """What a file is given next, kept until it fills a stage, which goes to the storage past the page cache.

    Files that are not read soon need no pages of the cache: taking those costs the cores more time than everything else
    about a checkpoint, and what trains needs the cores. A file system that knows no such writes gets ordinary ones, and
    so do a last part and what a full disk took less of.
    """

    def __init__(self, file: int) -> None:
        self._file, self._memory, self._held, self._direct = file, memoryview(mmap(-1, STAGE)), 0, True

    def append(self, data: memoryview) -> None:
        """Take bytes, and write whole stages."""
        while data:
            taken = min(len(data), STAGE - self._held)
            self._memory[self._held : self._held + taken] = data[:taken]
            self._held += taken
            data = data[taken:]
            if self._held == STAGE:
                self._write_stage()

    def _write_stage(self) -> None:
        written = 0
        if self._direct and self._ask(direct=True):
            try:
                written = os.write(self._file, self._memory)
            except OSError as error:
                if error.errno != errno.EINVAL:  # as of storage whose blocks are larger than a page
                    raise
            self._direct = written == STAGE
        self._write(written)

    def finish(self) -> None:
        """Write what is left."""
        self._write(0)

    def _write(self, first: int) -> None:
        rest = self._memory[first : self._held]
        if rest:
            self._ask(direct=False)
        while rest:
            rest = rest[os.write(self._file, rest) :]
        self._held = 0

    def _ask(self, *, direct: bool) -> bool:
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._file, fcntl.F_SETFL, flags | DIRECT if direct else flags & ~DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._direct = False
        return self._direct


@final
class Disk(AbstractFileSystem):
    """The file system of the operating system."""

    def __init__(self) -> None:
        self._stages: dict[int, _Stage] = {}

    def make_folder(self, path: Path) -> None:
        """See `AbstractFileSystem`."""
        path.mkdir()

    def create(self, path: Path) -> int:
        """See `AbstractFileSystem`."""
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._stages[file] = _Stage(file)
        return file

    def append(self, file: int, data: memoryview) -> None:
        """See `AbstractFileSystem`."""
        self._stages[file].append(data)

    def sync(self, file: int) -> None:
        """See `AbstractFileSystem`."""
        self._stages[file].finish()
        os.fsync(file)

    def close(self, file: int) -> None:
        """See `AbstractFileSystem`."""
        del self._stages[file]
        os.close(file)

    def rename(self, old: Path, new: Path) -> None:
        """See `AbstractFileSystem`."""
        old.replace(new)

    def sync_folder(self, path: Path) -> None:
        """See `AbstractFileSystem`."""
        file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def remove(self, path: Path) -> None:
        """See `AbstractFileSystem`."""
        path.unlink(missing_ok=True)

    def remove_folder(self, path: Path) -> None:
        """See `AbstractFileSystem`."""
        if path.is_dir():
            path.rmdir()
