"""Reach: in which memory the tiles of a pair of ranks travel; one rule for the runtime and for machines that are found.

Two processes that use one GPU take turns on it, and a copy within its memory is work of the GPU's: a tile waits for two
turns. Its copy engines, which move tiles to the host and back, work beside that. So a pair that shares a GPU uses
memory of the host for tiles below `TURNS_WORTH`, where it can, and memory of the device above; a pair with a GPU each
uses memory of the device for all. (Two processes on one H100, nothing else on it: 64 KiB took 308 us within the GPU's
memory and 55 us over the host's, 1 MiB 324 and 73, 64 MiB 395 and 1727.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

__all__: list[str] = []

TURNS_WORTH = 8 << 20
"""Prior: bytes of a tile from which two turns on a GPU take less than the way over the host's memory."""


@final
@dataclass(frozen=True, slots=True)
class Reach:
    """What a rank can have another of its host open.

    Args:
        device: memory of its devices.
        host: memory of the host.
        shares: whether they use the same GPU.
        refused: why not, by what messages call that memory.
    """

    device: bool = False
    host: bool = False
    shares: bool = False
    refused: dict[str, str] = field(default_factory=dict, hash=False)

    def of_device(self, size: int) -> bool | None:
        """Say whether a tile goes through memory of a device, or of the host; None where it goes through neither.

        Args:
            size: bytes of the tile.
        """
        if self.device and not (self.host and self.shares and size < TURNS_WORTH):
            return True
        return False if self.host else None
