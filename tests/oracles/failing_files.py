"""File systems that fail at a chosen operation, on top of the real one: with an error, or as a machine goes off."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

from maniple.process.file_system import AbstractFileSystem, Disk


class Gone(BaseException):
    """The machine has gone off: nothing of the program goes on."""


class FailingFiles(AbstractFileSystem):
    """The disk, of which one operation fails.

    Args:
        at: which operation, from 0; -1 for none.
        how: `full` raises ENOSPC from then on, until `free`; `off` stops the program there, and what was not
            synchronized is lost; `kill` sends the process SIGKILL.
    """

    def __init__(self, at: int, how: str = "full") -> None:
        self.at, self.how, self.done = at, how, 0
        self.said: list[str] = []
        self.disk = Disk()
        self._unsynced: dict[int, Path] = {}
        self._names: dict[Path, list[tuple[Path, Path | None, bytes | None]]] = {}
        self.gone = False

    def free(self) -> None:
        self.at = -1

    def _do(self, what: str) -> None:
        if self.gone:
            raise Gone
        self.said.append(what)
        if self.at >= 0 and self.done >= self.at:
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "off":
                self._lose()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), what)
        self.done += 1

    def _lose(self) -> None:
        """Undo what was not synchronized: names first, newest first, then the bytes of files."""
        self.gone = True
        for changes in self._names.values():
            for new, old, before in reversed(changes):
                if old is not None:
                    new.replace(old)
                elif new.is_dir():
                    for file in new.iterdir():
                        file.unlink()
                    new.rmdir()
                elif before is None:
                    new.unlink(missing_ok=True)
                if before is not None:
                    new.write_bytes(before)
        for path in self._unsynced.values():
            if path.exists():
                path.write_bytes(b"")
        raise Gone

    def _note(self, new: Path, old: Path | None, before: bytes | None) -> None:
        self._names.setdefault(new.parent, []).append((new, old, before))

    def make_folder(self, path: Path) -> None:
        self._do(f"make_folder {path.name}")
        self.disk.make_folder(path)
        self._note(path, None, None)

    def create(self, path: Path) -> int:
        self._do(f"create {path.name}")
        file = self.disk.create(path)
        self._unsynced[file] = path
        self._note(path, None, None)
        return file

    def append(self, file: int, data: memoryview) -> None:
        try:
            self._do("append")
        except OSError:
            self.disk.append(file, data[: len(data) // 2])  # as much as had room
            raise
        self.disk.append(file, data)

    def sync(self, file: int) -> None:
        self._do("sync")
        self.disk.sync(file)
        self._unsynced.pop(file, None)

    def close(self, file: int) -> None:
        self.disk.close(file)

    def rename(self, old: Path, new: Path) -> None:
        self._do(f"rename {new.name}")
        before = new.read_bytes() if new.exists() else None
        self.disk.rename(old, new)
        self._note(new, old, before)

    def sync_folder(self, path: Path) -> None:
        self._do(f"sync_folder {path.name}")
        self.disk.sync_folder(path)
        self._names.pop(path, None)

    def remove(self, path: Path) -> None:
        self._do(f"remove {path.name}")
        before = path.read_bytes() if path.exists() else None
        self.disk.remove(path)
        if before is not None:
            self._note(path, None, before)

    def remove_folder(self, path: Path) -> None:
        self._do(f"remove_folder {path.name}")
        self.disk.remove_folder(path)
        self._names.pop(path, None)
