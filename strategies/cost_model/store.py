"""The store of measurements: one file for each device and set of software, which all processes of a user share."""

from __future__ import annotations

import fcntl
import hashlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, final

from maniple.process.error import RequestError
from maniple.runtime.devices.registry import CPU
from maniple.strategies.cost_model.measurement import Measurements, read_measurements, write_measurements

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__: list[str] = []


@final
class Store:
    """What was measured on this device with this software, in a folder.

    Whoever adds holds the lock of the file from reading to writing, so that of two processes neither loses what the
    other has measured; a reader takes no lock, for files are replaced whole. Of two measurements of one task the one
    that was timed more often stays, or else the first, so that what was predicted with it is predicted again.

    Args:
        folder: made when something is added.
        kind: the device, by its name in the registry.
    """

    def __init__(self, folder: Path, kind: str = CPU) -> None:
        self._here = Measurements.here(kind)
        told = f"{self._here.device}\n{self._here.software}".encode()
        self.path = folder / f"costs-{hashlib.blake2b(told, digest_size=8).hexdigest()}.json"

    def read(self) -> Measurements:
        """Give what was measured; nothing where nothing was.

        Raises:
            RequestError: the file or an entry of it is wrong, or it was made by another device or other software.
        """
        if not self.path.exists():
            return Measurements(self._here.device, self._here.software)
        found = read_measurements(self.path)
        for entry, theirs, ours in (
            ("device", found.device, self._here.device),
            ("software", found.software, self._here.software),
        ):
            if theirs != ours:
                raise RequestError(
                    f"{self.path}: {entry}: expected {ours!r}, got {theirs!r}; remove it, or name it with --costs "
                    "to predict for the computer that it is from"
                )
        return found

    def add(self, found: Measurements) -> None:
        """Add those measurements of this device and software that last to those that are there by now.

        Raises:
            RequestError: see `read`; or the place cannot be written.
        """
        with self._hold_lock():
            held = self.read()
            new = {
                key: one
                for key, one in found.lasting().tasks.items()
                if key not in held.tasks or one.timed > held.tasks[key].timed
            }
            if new:
                write_measurements(self.path, Measurements(held.device, held.software, held.tasks | new))

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = self.path.with_suffix(".lock").open("w")
        except OSError as error:
            raise RequestError(
                f"{self.path}: cannot be written ({error.strerror}); have MANIPLE_CACHE name a folder that can"
            ) from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
