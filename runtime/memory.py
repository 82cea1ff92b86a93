"""The memory of one rank: storage for instances, some of which outlive the schedules that use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from maniple.runtime.kernels import torch_dtype

if TYPE_CHECKING:
    from maniple.regions.logical_region import LogicalRegion
    from maniple.regions.rectangle import Rect

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
        self._layouts: dict[int, tuple[int, ...]] = {}
        self._kept: dict[int, tuple[Rect, torch.Tensor]] = {}

    def allocate(self, region: LogicalRegion, rect: Rect) -> torch.Tensor:
        """Allocate storage for a rectangle of a region, whatever mode or default device the caller is in."""
        with torch.inference_mode(mode=False):
            return torch.empty(rect.shape, dtype=torch_dtype(region.dtype), device="cpu")

    def keep(self, region: LogicalRegion, rect: Rect) -> tuple[Rect, torch.Tensor]:
        """Give the lasting instance of a region, made or grown so that it has room for a rectangle.

        Returns:
            The rectangle that the instance covers, and its storage; elements never written are zero.
        """
        held = self._kept.get(region.id)
        if held is not None and held[0].contains(rect):
            return held
        wide = rect if held is None else held[0].hull(rect)
        with torch.inference_mode(mode=False):
            order = self._layouts.get(region.id, tuple(range(wide.ndim)))
            packed = torch.zeros([wide.shape[axis] for axis in order], dtype=torch_dtype(region.dtype), device="cpu")
            storage = packed.permute([order.index(axis) for axis in range(wide.ndim)])
        if held is not None:
            storage[held[0].slices(wide.lo)] = held[1]
            self.version += 1
        self._kept[region.id] = (wide, storage)
        return wide, storage

    def lay_out(self, region: LogicalRegion, order: tuple[int, ...]) -> None:
        """Have the lasting instance of a region, when it is made, hold its axes in an order, outermost first."""
        self._layouts[region.id] = order

    def view(self, region: LogicalRegion, rect: Rect) -> torch.Tensor:
        """View a rectangle of a lasting instance."""
        covered, storage = self.keep(region, rect)
        return storage[rect.slices(covered.lo)]

    def drop(self, region: LogicalRegion) -> None:
        """Free the lasting instance of a region, if there is one."""
        self._kept.pop(region.id, None)
        self._layouts.pop(region.id, None)

    def kept_bytes(self) -> int:
        """Count the bytes of storage that lasts."""
        return sum(storage.numel() * storage.element_size() for _, storage in self._kept.values())
