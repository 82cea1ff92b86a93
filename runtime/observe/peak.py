"""Peaks: the most memory that this process had at once above what it had before, as the system and torch tell it.

Nothing here asks the runtime what it believes to have allocated, so any program is measured in the same way, torch's
own too. On the host that is the resident set, without pages of files (libraries, above all) and without what it shares
with the ranks of its host, which is told apart:

    before            the resident set when the watch was made, after garbage was collected and given to the system
    host              the most of it since the watch began, above that
    shared            blocks of this rank's segment that were touched meanwhile
    devices           the most that torch's CUDA allocator had given out in tensors, above what it had before
    reserved          the most that it had taken of the devices for that, above what it had before: more by what lies in
                      pieces, what it keeps for later, and the memory of captured graphs

The figures between add up to what a program holds; what is reserved says how much of a device must be free for that.
What was imported before counts for nobody. The resident set is one of the process: ranks that are its threads are told
the same.
"""

from __future__ import annotations

import gc
import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self, final

from maniple.process import malloc_tuning
from maniple.runtime.devices import device_peaks
from maniple.runtime.devices.device_peaks import Bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from maniple.runtime.transports.shared_memory import Arena

__all__: list[str] = []

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
SET_BACK = b"5"
"""What has the system forget the peak of the resident set (proc(5))."""
EVERY_S = 2e-3
"""How far apart the resident set is looked at where the system does not tell its peak."""


@final
@dataclass(frozen=True, slots=True)
class Peak:
    """The most memory that a process had at once, above what it had before, in bytes.

    Args:
        host: of its own.
        shared: that other ranks of its host write into.
        devices: of CUDA devices, in tensors.
        reserved: of CUDA devices, taken by torch's allocator for these.
        way: how the host's was found: `peak` by the system itself, `sampled` by a thread, `ever` as what the most since
            the process began has grown by, which is too little where it had more before.
    """

    host: int
    shared: int
    devices: int
    reserved: int
    way: str

    @property
    def total(self) -> int:
        """All of it, as it is held."""
        return self.host + self.shared + self.devices


@final
class Watch:
    """Watches the memory of this process: from when it is made for what there was before, from `begin` for the most.

    Args:
        arena: the segment of this rank, where it has one.
        devices: CUDA devices.
    """

    def __init__(self, arena: Arena | None = None, devices: Sequence[torch.device] = ()) -> None:
        gc.collect()
        malloc_tuning.give_back()
        self._arena = arena
        self._allocators = tuple(device_peaks.peaks_of(device) for device in dict.fromkeys(devices))
        self._give_back()
        self._host = _own()
        self._shared = 0 if arena is None else arena.touched_bytes()
        self._on_devices = [allocator.held() for allocator in self._allocators]
        self._looks = [allocator.look() for allocator in self._allocators]
        self._sampler: _Sampler | None = None
        self._begun = False

    def begin(self) -> Self:
        """Forget what was the most until now; for the whole process, so that a watch that began before sees it too."""
        self._begun = True
        self._looks = [allocator.look() for allocator in self._allocators]
        if STATUS.exists() and not _set_back():
            self.end()
            self._sampler = _Sampler()
        return self

    @contextmanager
    def aside(self) -> Iterator[None]:
        """A stretch of work that is not watched: what it took, or keeps, is not of the rest. Then it begins anew.

        What lies free on the heap is kept by nobody: it is given back at both ends, for the rest will take it again.
        """
        malloc_tuning.give_back()
        before, on_devices = _own(), [allocator.held() for allocator in self._allocators]
        try:
            yield
        finally:
            malloc_tuning.give_back()
            self._host += max(0, _own() - before)
            self._give_back()
            self._on_devices = [
                Bytes(*(there + max(0, now - then) for there, now, then in zip(*figures, strict=True)))
                for figures in zip(self._on_devices, (a.held() for a in self._allocators), on_devices, strict=True)
            ]
            if self._begun:
                self.begin()

    def peak(self) -> Peak:
        """Give the most since it began."""
        way = "sampled" if self._sampler is not None else "peak" if STATUS.exists() else "ever"
        most = _most() if self._sampler is None else self._sampler.most
        shared = 0 if self._arena is None else self._arena.touched_bytes()
        grown = [
            (peak.given - before.given, peak.taken - before.taken)
            for peak, before in zip([look.peak() for look in self._looks], self._on_devices, strict=True)
        ]
        given, taken = (sum(max(0, each[place]) for each in grown) for place in (0, 1))
        return Peak(max(0, most - self._host), max(0, shared - self._shared), given, taken, way)

    def _give_back(self) -> None:
        """Have devices get back what is kept for later: it is of what went before."""
        if self._allocators:
            device_peaks.give_back()

    def end(self) -> None:
        """Look no more."""
        if self._sampler is not None:
            self._sampler.end()


@contextmanager
def measure_peak(arena: Arena | None = None, devices: Sequence[torch.device] = ()) -> Iterator[Callable[[], Peak]]:
    """Measure the most memory that this process has inside, above what it had before.

    Args:
        arena: the segment of this rank, where it has one.
        devices: CUDA devices.

    Yields:
        What gives the most until it is called.
    """
    watch = Watch(arena, devices).begin()
    try:
        yield watch.peak
    finally:
        watch.end()


class _Sampler:
    """A thread that looks at the resident set again and again."""

    def __init__(self) -> None:
        self._most = _own()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="peak", daemon=True)
        self._thread.start()

    @property
    def most(self) -> int:
        """The most that was seen."""
        self._most = max(self._most, _own())
        return self._most

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            self._most = max(self._most, _own())


def _set_back() -> bool:
    """Have the system forget the peak of the resident set; says whether it did."""
    with suppress(OSError):
        CLEAR.write_bytes(SET_BACK)
        return True
    return False


def _status() -> dict[str, int]:
    """What the system says of this process's memory, in bytes."""
    fields = (line.split() for line in STATUS.read_text().splitlines() if line.endswith(" kB"))
    return {name.rstrip(":"): int(size) * 1024 for name, size, _ in fields}


def _own() -> int:
    """The resident set at present, without pages of files, such as libraries, and of segments."""
    return _status()["RssAnon"] if STATUS.exists() else _ever()


def _most() -> int:
    """The most of that since the system was told to forget it.

    At the peak no more pages of files and segments were there than now: what was touched stays.
    """
    if not STATUS.exists():
        return _ever()
    status = _status()
    return max(status["VmHWM"], status["VmRSS"]) - status["RssFile"] - status["RssShmem"]


def _ever() -> int:
    """The most since the process began, where the system tells nothing else."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
