"""Reach: what one rank can have another of its host open; `peer_link` says in which of it a tile travels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from maniple.runtime.machine.peer_link import uses_device

__all__: list[str] = []


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
        return uses_device(size, device=self.device, host=self.host, shares=self.shares)
