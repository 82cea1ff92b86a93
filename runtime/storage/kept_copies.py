"""Kept copies: what lasts in a rank's memories as it is between two runs, in memory of the host that is kept.

    first copy    take memory, touch it, copy
    every other   copy

A block is held with its axes in the order of the instance that it is copied from, so both are gone through in one
direction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from maniple.regions.logical_region import LogicalRegion
    from maniple.regions.rectangle import Rect
    from maniple.runtime.storage.memory import Memory

__all__: list[str] = []

ALIGNMENT = 64
"""Bytes: where blocks begin, for copies of whole cache lines."""


@final
class KeptCopies:
    """Copies of some blocks, made again whenever they are asked for.

    Args:
        blocks: by memory, regions and rectangles of them; each once.
    """

    def __init__(self, blocks: Mapping[Memory, Iterable[tuple[LogicalRegion, Rect]]]) -> None:
        placed, size = [], 0
        for memory, held in blocks.items():
            for region, rect in held:
                placed.append((memory, region, rect, size))
                size += -(-rect.volume * region.itemsize // ALIGNMENT) * ALIGNMENT
        with torch.inference_mode(mode=False):
            # Not on huge pages: a first copy waits until all are cleared, and some a system has to find first.
            block = torch.empty(size, dtype=torch.int8, device="cpu")
            self._copies: dict[Memory, list[tuple[LogicalRegion, Rect, torch.Tensor]]] = {}
            for memory, region, rect, offset in placed:
                copy = memory.place(block, offset, region, rect)
                self._copies.setdefault(memory, []).append((region, rect, copy))
        self._found = {(region.name, rect): copy for held in self._copies.values() for region, rect, copy in held}
        self.size = block.numel()
        """Bytes of the host's memory."""

    def renew(self) -> None:
        """Copy all blocks, while no task uses them; the copies are there when this returns."""
        for memory, held in self._copies.items():
            memory.copy_out(held)

    def of(self, region: str, rect: Rect) -> torch.Tensor:
        """Give the copy of a block, which the next copies overwrite.

        Args:
            region: its region's name.
            rect: which elements.
        """
        return self._found[region, rect]
