"""Pinned rows: memory of the host that a device copies from and to, used again when neither host nor device is at it.

torch's own allocator of pinned memory records an event in every stream that has used a row, when the row is let go of.
A stream that is being captured just then is given that event as a part of its graph, and whoever asks for it later
fails. So a device keeps its rows itself, and looks at what its streams have ended instead of recording anything:

    a row is let go of    tasks has begun 7 pieces, arrivals 2: any of these may be at it
    it is used again      once tasks has ended 7 and arrivals 2
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []

_LEAST = 512  # bytes: the least that is taken for a row


class _Left(NamedTuple):
    """A block that the host has let go of, and how much its device had begun by then, by stream."""

    block: torch.Tensor
    begun: tuple[int, ...]


@final
class PinnedRows:
    """The pinned rows of a device; any thread may take one, and let go of one.

    Args:
        allocate: gives a block of so many bytes.
        begun: how many pieces of work each stream was given; any of them may use a row that the host has let go of.
        ended: how many of them are over.
    """

    def __init__(
        self,
        allocate: Callable[[int], torch.Tensor],
        begun: Callable[[], tuple[int, ...]],
        ended: Callable[[], tuple[int, ...]],
    ) -> None:
        self._allocate = allocate
        self._begun = begun
        self._ended = ended
        # The collector may let go of a row on any thread and at any time, also inside of this queue: it is made for it.
        self._told: SimpleQueue[_Left] = SimpleQueue()
        self._free: defaultdict[int, SimpleQueue[torch.Tensor]] = defaultdict(SimpleQueue)

    def take(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Give a row of elements of any content.

        Args:
            count: of elements.
            dtype: of each.
        """
        size = count * dtype.itemsize
        block = self._block(max(_LEAST, 1 << (size - 1).bit_length() if size else 0))
        array = block.numpy()[:size]
        weakref.finalize(array, self._leave, block).atexit = False
        return torch.from_numpy(array).view(dtype)  # its storage holds the array, whatever views of it there are

    def _leave(self, block: torch.Tensor) -> None:
        self._told.put(_Left(block, self._begun()))

    def _block(self, size: int) -> torch.Tensor:
        ended = self._ended()
        for _ in range(self._told.qsize()):
            try:
                left = self._told.get_nowait()
            except Empty:
                break
            if all(have >= need for have, need in zip(ended, left.begun, strict=True)):
                self._free[left.block.numel()].put(left.block)
            else:
                self._told.put(left)
        try:
            return self._free[size].get_nowait()
        except Empty:
            return self._allocate(size)
