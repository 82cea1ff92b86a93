"""The memory of one rank: storage for instances, some of which outlive the schedules that use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from maniple.runtime.kernels import torch_dtype

if TYPE_CHECKING:
    from maniple.regions.logical_region import LogicalRegion
    from maniple.regions.rectangle import Rect
    from maniple.runtime.recorder import Recorder

__all__: list[str] = []


class Memory:
    """Storage of one rank's memory.

    `version` grows when an instance that outlives schedules moves, so that whoever bound views of it binds again.

    Args:
        id: the memory, as the machine numbers it.
    """

    def __init__(self, id: int) -> None:  # noqa: A002  (the machine's word)
        self.id = id
        self.version = 0
        self.recorder: Recorder | None = None
        self._kept: dict[int, tuple[Rect, torch.Tensor]] = {}

    def allocate(self, region: LogicalRegion, rect: Rect) -> torch.Tensor:
        """Allocate storage for a rectangle of a region, whatever mode or default device the caller is in."""
        with torch.inference_mode(mode=False):
            storage = torch.empty(rect.shape, dtype=torch_dtype(region.dtype), device="cpu")
        if self.recorder is not None:
            self.recorder.allocated(region.name, storage)
        return storage

    def keep(self, region: LogicalRegion, rect: Rect) -> tuple[Rect, torch.Tensor]:
        """Give the lasting instance of a region, made or grown so that it has room for a rectangle.

        Returns:
            The rectangle that the instance covers, and its storage; elements never written are zero.
        """
        held = self._kept.get(region.id)
        if held is not None and held[0].contains(rect):
            return held
        wide = rect if held is None else held[0].hull(rect)
        storage = self.allocate(region, wide).zero_()
        if held is not None:
            storage[held[0].slices(wide.lo)] = held[1]
            self.version += 1
        self._kept[region.id] = (wide, storage)
        return wide, storage

    def view(self, region: LogicalRegion, rect: Rect) -> torch.Tensor:
        """View a rectangle of a lasting instance."""
        covered, storage = self.keep(region, rect)
        return storage[rect.slices(covered.lo)]

    def drop(self, region: LogicalRegion) -> None:
        """Free the lasting instance of a region, if there is one."""
        self._kept.pop(region.id, None)

    def kept_bytes(self) -> int:
        """Count the bytes of storage that lasts."""
        return sum(storage.numel() * storage.element_size() for _, storage in self._kept.values())
