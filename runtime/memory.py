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
        self._kept: dict[int, tuple[Rect, torch.Tensor]] = {}
        self._filled: dict[int, float] = {}

    def allocate(self, region: LogicalRegion, rect: Rect) -> torch.Tensor:
        """Allocate storage for a rectangle of a region, whatever mode or default device the caller is in."""
        with torch.inference_mode(mode=False):
            return torch.empty(rect.shape, dtype=torch_dtype(region.dtype), device="cpu")

    def keep(self, region: LogicalRegion, rect: Rect) -> tuple[Rect, torch.Tensor]:
        """Give the lasting instance of a region, made or grown so that it has room for a rectangle.

        Returns:
            The rectangle that the instance covers, and its storage; elements never written have the value that the
            region was filled with, or zero.
        """
        held = self._kept.get(region.id)
        if held is not None and held[0].contains(rect):
            return held
        made = self.renew(region, rect if held is None else held[0].hull(rect))
        if held is not None:
            made[1][held[0].slices(made[0].lo)] = held[1]
        return made

    def kept(self, region: LogicalRegion) -> tuple[Rect, torch.Tensor] | None:
        """Give the lasting instance of a region, if there is one."""
        return self._kept.get(region.id)

    def fill(self, region: LogicalRegion, value: float) -> None:
        """Give instances of a region that are made from now on a value, of all elements."""
        self._filled[region.id] = value

    def renew(self, region: LogicalRegion, rect: Rect) -> tuple[Rect, torch.Tensor]:
        """Make a lasting instance of a region in place of the one that there is; who bound that may go on to use it.

        Args:
            region: the region.
            rect: what it has room for.
        """
        value = self._filled.get(region.id, 0.0)
        with torch.inference_mode(mode=False):
            storage = torch.full(rect.shape, value, dtype=torch_dtype(region.dtype), device="cpu")
        if region.id in self._kept:
            self.version += 1
        made = self._kept[region.id] = (rect, storage)
        return made

    def view(self, region: LogicalRegion, rect: Rect) -> torch.Tensor:
        """View a rectangle of a lasting instance."""
        covered, storage = self.keep(region, rect)
        return storage[rect.slices(covered.lo)]

    def forget(self, region: LogicalRegion) -> None:
        """Free the lasting instance of a region that nothing will name again."""
        self._filled.pop(region.id, None)
        self.drop(region)

    def drop(self, region: LogicalRegion) -> None:
        """Free the lasting instance of a region, if there is one; it may be made again."""
        if self._kept.pop(region.id, None) is not None:
            self.version += 1

    def kept_bytes(self) -> int:
        """Count the bytes of storage that lasts."""
        return sum(storage.numel() * storage.element_size() for _, storage in self._kept.values())
