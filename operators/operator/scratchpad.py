"""Scratchpads: memory that the bodies of one processor take turns with, since it runs one of them at a time.

Bodies bound to a scratchpad keep views of it, and what is in it is theirs from the start of a call to its end only. It
grows to what the largest of them needs: older, smaller pieces stay as long as a body has views of them, and since each
piece is at least twice as large as the one before, and at most twice the largest need, all together are below four
times that need.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor

__all__: list[str] = []

ALIGNMENT = 64
"""Bytes to whose multiples every view begins: a line of the cache."""


@final
class Scratchpad:
    """Memory for the bodies of one processor."""

    def __init__(self) -> None:
        self._piece: Tensor | None = None
        self.allocated = 0
        """Bytes of all pieces that were made."""

    def views(self, forms: Sequence[tuple[Sequence[int], torch.dtype]], near: Tensor) -> list[Tensor]:
        """Views for one body, none of which overlap.

        Args:
            forms: shape and dtype of each.
            near: what they lie beside, in the memory of one device.
        """
        import torch  # a search makes scratchpads and binds nothing

        offsets, end = [], 0
        for shape, dtype in forms:
            offsets.append(end)
            end += -(-prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        piece = self._piece
        if piece is None or piece.numel() < end:
            before = 0 if piece is None else piece.numel()
            piece = self._piece = near.new_empty(max(end, 2 * before), dtype=torch.uint8)
            self.allocated += piece.numel()
        found = []
        for (shape, dtype), offset in zip(forms, offsets, strict=True):
            found.append(piece[offset : offset + prod(shape) * dtype.itemsize].view(dtype).view(tuple(shape)))
        return found


@final
class Scratchpads:
    """The scratchpads of a program, by processor."""

    def __init__(self) -> None:
        self._pads: dict[int, Scratchpad] = {}

    def of(self, processor: int) -> Scratchpad:
        """That of a processor."""
        return self._pads.setdefault(processor, Scratchpad())
