"""Pinned rows: memory of the host that a device copies from and to, used again when neither host nor device is at it.

torch's own allocator of pinned memory records an event in every stream that has used a row, when the row is let go of.
A stream that is being captured just then is given that event as a part of its graph, and whoever asks for it later
fails. So rows are kept here, and what streams have ended is looked at instead of recording anything:

    a row is let go of    tasks has begun 7 pieces, arrivals 2: any of these may be at it
    it is used again      once tasks has ended 7 and arrivals 2
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from math import prod
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, Protocol, final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__: list[str] = []

_LEAST = 512  # bytes: the least that is taken for a row


class Turn(Protocol):
    """A stream that counts what it was given; a closed one has ended all of it.

    Args:
        begun: how many pieces of work it was given; any of them may use a row that the host has let go of.
        ended: how many of them are over.
    """

    begun: int
    ended: int


class _Left(NamedTuple):
    """A block that the host has let go of, and how much each stream had begun by then."""

    block: torch.Tensor
    begun: tuple[tuple[Turn, int], ...]


@final
class PinnedRows:
    """Pinned rows for some streams; any thread may take one, and let go of one.

    Args:
        allocate: gives a block of so many bytes.
    """

    def __init__(self, allocate: Callable[[int], torch.Tensor]) -> None:
        self._allocate = allocate
        self._streams: tuple[Turn, ...] = ()
        # The collector may let go of a row on any thread and at any time, also inside of this queue: it is made for it.
        self._told: SimpleQueue[_Left] = SimpleQueue()
        self._free: defaultdict[int, SimpleQueue[torch.Tensor]] = defaultdict(SimpleQueue)

    def attend(self, stream: Turn) -> None:
        """Look at what a stream has begun, from now on."""
        self._streams = (*self._streams, stream)

    def leave(self, stream: Turn) -> None:
        """Look at a stream no more: it is given nothing any more."""
        self._streams = tuple(each for each in self._streams if each is not stream)

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Give a contiguous tensor of any content.

        Args:
            shape: its shape.
            dtype: of its elements.
        """
        size = prod(shape) * dtype.itemsize
        block = self._block(max(_LEAST, 1 << (size - 1).bit_length() if size else 0))
        array = block.numpy()[:size]
        weakref.finalize(array, self._leave, block).atexit = False
        return torch.from_numpy(array).view(dtype).view(shape)  # its storage holds the array, whatever views there are

    def _leave(self, block: torch.Tensor) -> None:
        self._told.put(_Left(block, tuple((stream, stream.begun) for stream in self._streams)))

    def _block(self, size: int) -> torch.Tensor:
        for _ in range(self._told.qsize()):
            try:
                left = self._told.get_nowait()
            except Empty:
                break
            if all(stream.ended >= begun for stream, begun in left.begun):
                self._free[left.block.numel()].put(left.block)
            else:
                self._told.put(left)
        try:
            return self._free[size].get_nowait()
        except Empty:
            return self._allocate(size)


def _allocate(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)


PINNED_ROWS = PinnedRows(_allocate)
"""Those of this process, for all of its CUDA streams: a row does not say which device it will be copied to."""
