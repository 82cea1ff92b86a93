"""Peer memory: memory that a rank makes and other ranks of its host open, so that tiles need no sockets between them.

A rank *exports* a segment, which gives a handle, a few bytes that travel like any others. Another rank of the host
*opens* the handle, and both compute with the same memory until each has closed it. Nothing here orders anything: who
writes and who reads agree by messages (see ``peers``).

A device has at most one of either kind, and names that of the device first:

    of the device   a tile is copied twice where it lies: into the segment by its sender, out of it by its receiver
    of the host     the same with the host's memory between, over which engines copy while the devices compute
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

if TYPE_CHECKING:
    import torch

__all__: list[str] = []


@final
@dataclass(frozen=True, eq=False, slots=True)
class Segment:
    """Memory that this rank has exported, or opened.

    Args:
        memory: its bytes, int8.
        handle: what opens it; empty where it was opened.
        close: lets go of it. What was exported stays until those that opened it have closed it, where that counts.
    """

    memory: torch.Tensor
    handle: bytes
    close: Callable[[], object]


class PeerMemory(ABC):
    """One kind of memory that a device can export and open.

    A class says of all:

        way         what messages call it: tiles travel "through `way`"
        of_device   whether it is the device's own memory

    and each has:

        hardware    which piece of hardware its memory is; two that are equal share it
    """

    way: ClassVar[str]
    of_device: ClassVar[bool]
    hardware: str

    @abstractmethod
    def export(self, size: int) -> Segment:
        """Make a segment of at least so many bytes, of any content, beside what the device may hold of instances.

        Raises:
            RunError: it cannot be made, or not be exported.
        """

    @abstractmethod
    def open(self, handle: bytes, size: int) -> Segment:
        """Open a segment of another rank of this host.

        Args:
            handle: of a segment of a memory of the same kind.
            size: its bytes.

        Raises:
            RunError: it cannot be opened.
        """
