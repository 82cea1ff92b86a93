"""The file system as whoever writes files that must survive sees it: few operations, each of which may fail."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
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
        """Write all of some bytes behind what a file holds."""

    @abstractmethod
    def sync(self, file: int) -> None:
        """Return once what a file holds is on its storage."""

    @abstractmethod
    def close(self, file: int) -> None:
        """Write no more to a file."""

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
        except OSError:
            self._forget(partial)
            raise

    def _forget(self, path: Path) -> None:
        try:
            self.remove(path)
        except OSError:
            return  # what failed before is what is told


PARTIAL = ".partial"
"""What the name of a file ends with that is not whole."""


@final
class Disk(AbstractFileSystem):
    """The file system of the operating system."""

    def make_folder(self, path: Path) -> None:
        """See `AbstractFileSystem`."""
        path.mkdir()

    def create(self, path: Path) -> int:
        """See `AbstractFileSystem`."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)

    def append(self, file: int, data: memoryview) -> None:
        """See `AbstractFileSystem`."""
        while data:
            data = data[os.write(file, data) :]

    def sync(self, file: int) -> None:
        """See `AbstractFileSystem`."""
        os.fsync(file)

    def close(self, file: int) -> None:
        """See `AbstractFileSystem`."""
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
