"""The memory of one rank: storage for instances, some of which outlive the schedules that use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from maniple.runtime.kernels import torch_dtype

if TYPE_CHECKING:
    from maniple.regions.logical_region import LogicalRegion
    from maniple.regions.rectangle import Rect
    from maniple.runtime.recorder import Recorder
    from maniple.runtime.shared_memory import Arena

__all__: list[str] = []


class Memory:
    """Storage of one rank's memory.

    `version` grows when an instance that outlives schedules moves, so that whoever bound views of it binds again.

    Args:
        id: the memory, as the machine numbers it.
        arena: where instances lie that other ranks of this host write into; None where there are no such ranks.
    """

    def __init__(self, id: int, arena: Arena | None = None) -> None:  # noqa: A002  (the machine's word)
        self.id = id
        self.arena = arena
        self.version = 0
        self.recorder: Recorder | None = None
        self._layouts: dict[int, tuple[int, ...]] = {}
        self._kept: dict[int, tuple[Rect, torch.Tensor]] = {}

    def allocate(self, region: LogicalRegion, rect: Rect, *, shared: bool = False) -> torch.Tensor:
        """Allocate storage for a rectangle of a region, whatever mode or default device the caller is in.

        Args:
            region: the region.
            rect: what there must be room for.
            shared: whether other ranks of this host write into it, as far as there are any.

        Raises:
            RequestError: memory that is shared is too small.
        """
        return self._make(region, rect, self.arena if shared else None, self.layout(region))

    def keep(self, region: LogicalRegion, rect: Rect) -> tuple[Rect, torch.Tensor]:
        """Give the lasting instance of a region, made or grown so that it has room for a rectangle.

        Returns:
            The rectangle that the instance covers, and its storage; elements never written are zero.
        """
        held = self._kept.get(region.id)
        if held is not None and held[0].contains(rect):
            return held
        wide = rect if held is None else held[0].hull(rect)
        # Whatever lasts may be written by any rank in a later program.
        storage = self._make(region, wide, self.arena, self.layout(region)).zero_()
        if held is not None:
            storage[held[0].slices(wide.lo)] = held[1]
            self.version += 1
        self._kept[region.id] = (wide, storage)
        return wide, storage

    def lay_out(self, region: LogicalRegion, order: tuple[int, ...]) -> None:
        """Have the lasting instance of a region, when it is made, hold its axes in an order, outermost first."""
        self._layouts[region.id] = order

    def layout(self, region: LogicalRegion) -> tuple[int, ...]:
        """The order in which the instances of a region hold its axes here."""
        return self._layouts.get(region.id) or tuple(range(region.bounds.ndim))

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

    def _make(self, region: LogicalRegion, rect: Rect, arena: Arena | None, layout: tuple[int, ...]) -> torch.Tensor:
        dtype = torch_dtype(region.dtype)
        packed = [rect.shape[axis] for axis in layout]
        with torch.inference_mode(mode=False):
            if arena is None:
                storage = torch.empty(packed, dtype=dtype, device="cpu")
            else:
                storage = torch.from_numpy(arena.allocate(rect.volume * region.itemsize)).view(dtype).reshape(packed)
        if self.recorder is not None:
            self.recorder.allocated(region.name, storage)
        return storage.permute([layout.index(axis) for axis in range(rect.ndim)])
