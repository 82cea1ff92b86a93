"""Peaks of devices: the most that torch's allocator had of one, for several who look from different times on.

The allocator of a device has one peak, which whoever looks must set back. Here the peak until then is first written
down for all others that look:

    allocator   3 9 4 | 4 6 5 | 5 7        (| a look begins, or one is asked)
    looks       first . . . . . . . .      9
                      second . . . . .     7

What it has *given* is in tensors. What it has *taken* of the device is more by what is rounded up, what lies in
pieces, and what it keeps for later, the memory of captured graphs included.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import NamedTuple, Protocol, final
from weakref import WeakSet

import torch

__all__: list[str] = []


class Bytes(NamedTuple):
    """Memory of a device.

    Args:
        given: in tensors.
        taken: of the device.
    """

    given: int
    taken: int


class Allocator(Protocol):
    """What is asked of the allocator of a device."""

    def held(self) -> Bytes:
        """What it has now."""
        ...

    def most(self) -> Bytes:
        """The most since it was set back."""
        ...

    def set_back(self) -> None:
        """Forget what was the most until now."""
        ...


@final
class DevicePeaks:
    """The peaks of one device.

    Args:
        allocator: whose peaks they are.
    """

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._lock = threading.Lock()
        self._looks: WeakSet[Look] = WeakSet()

    def look(self) -> Look:
        """Look from now on, until nobody refers to what this gives."""
        with self._lock:
            self._note()
            made = Look(self, self._allocator.held())
            self._looks.add(made)
        return made

    def held(self) -> Bytes:
        """What the allocator has now."""
        return self._allocator.held()

    def update(self) -> None:
        """Write down the most until now."""
        with self._lock:
            self._note()

    def _note(self) -> None:
        most = self._allocator.most()
        for look in self._looks:
            look.most = Bytes(max(look.most.given, most.given), max(look.most.taken, most.taken))
        self._allocator.set_back()


@final
class Look:
    """The most since it began.

    Args:
        peaks: of the device.
        before: what there was then.
    """

    def __init__(self, peaks: DevicePeaks, before: Bytes) -> None:
        self._peaks = peaks
        self.before = self.most = before

    def peak(self) -> Bytes:
        """The most until now."""
        self._peaks.update()
        return self.most


@final
class _Cuda:
    """Torch's allocator of a CUDA device, by the device's number."""

    def __init__(self, number: int) -> None:
        self._number = number

    def held(self) -> Bytes:
        return Bytes(torch.cuda.memory_allocated(self._number), torch.cuda.memory_reserved(self._number))

    def most(self) -> Bytes:
        return Bytes(torch.cuda.max_memory_allocated(self._number), torch.cuda.max_memory_reserved(self._number))

    def set_back(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._number)


NO_CAPTURE = threading.RLock()
"""Held while a graph is captured: nothing may be given back to a device meanwhile."""


def give_back() -> None:
    """Have what torch's allocator keeps for later given back to the devices."""
    with NO_CAPTURE:
        torch.cuda.empty_cache()


def peaks_of(device: torch.device) -> DevicePeaks:
    """The peaks of a CUDA device, one value in a process."""
    return _of_number(torch.cuda.current_device() if device.index is None else device.index)


@cache
def _of_number(number: int) -> DevicePeaks:
    return DevicePeaks(_Cuda(number))
