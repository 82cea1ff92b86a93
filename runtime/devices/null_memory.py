"""Memory of null devices that other ranks open: files in place of exported device memory, as strict as that is.

It has a device, whose streams alone compute with it; what another rank has opened is of none of its own devices, so
nothing but a copy of what lies without gaps may be done with it.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, ClassVar, final

import torch

from maniple.runtime.devices.memory_file import make_file, map_file
from maniple.runtime.devices.null_tensor import HOMES, NullTensor
from maniple.runtime.devices.peer_memory import PeerMemory, Segment

if TYPE_CHECKING:
    import numpy as np

__all__: list[str] = []


def settle(tensor: torch.Tensor, home: str) -> None:
    """Have memory be of a device, for as long as it is there."""
    storage = tensor.untyped_storage()
    if address := storage.data_ptr():
        HOMES[address] = home
        weakref.finalize(storage, _leave_home, address, home).atexit = False


def _leave_home(address: int, home: str) -> None:
    """Forget memory that nobody refers to, unless the address is another's by now."""
    if HOMES.get(address) == home:
        del HOMES[address]


@final
class NullMemory(PeerMemory):
    """Memory of a null device; see `PeerMemory`. What is read before it is written is -1, or NaN.

    Args:
        home: the device.
        hardware: which it is.
    """

    way: ClassVar[str] = "memory of null devices"
    of_device: ClassVar[bool] = True

    def __init__(self, home: str, hardware: str) -> None:
        self.hardware = hardware
        self._home = home

    def export(self, size: int) -> Segment:
        """See `PeerMemory.export`."""
        data, handle, close = make_file(size)
        data.fill(-1)
        return Segment(_placed(torch.from_numpy(data), self._home), handle, close)

    def open(self, handle: bytes, size: int) -> Segment:
        """See `PeerMemory.open`."""
        data: np.ndarray[tuple[int], np.dtype[np.int8]] = map_file(handle, size)
        return Segment(_placed(torch.from_numpy(data), f"a peer of {self._home}"), b"", lambda: None)


def _placed(tensor: torch.Tensor, home: str) -> torch.Tensor:
    settle(tensor, home)
    return tensor.as_subclass(NullTensor)
