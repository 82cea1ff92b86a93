"""Handles: the regions of a running program, as its author names them in launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from maniple.regions.partition import Partition, Partitioning
from maniple.regions.rectangle import Rect

if TYPE_CHECKING:
    import torch

    from maniple.regions.logical_region import LogicalRegion

__all__: list[str] = []


class Holder(Protocol):
    """The program that a region belongs to."""

    def fill(self, region: Region, value: float) -> None:
        """Write one value to every element."""
        ...

    def write(self, region: Region, values: torch.Tensor) -> None:
        """Write a whole tensor."""
        ...

    def read(self, region: Region) -> torch.Tensor:
        """Bring the whole region here."""
        ...


@dataclass(frozen=True, eq=False)
class Region:
    """A logical region of a session's program. `region[partition]` names a rectangle per point of a launch.

    Args:
        session: the program.
        logical: the region.
    """

    session: Holder
    logical: LogicalRegion

    def __getitem__(self, partitioning: Partitioning | Partition) -> PartitionedRegion:
        """Partition the region for a launch."""
        bound = partitioning if isinstance(partitioning, Partition) else partitioning.bind(self.logical.bounds)
        return PartitionedRegion(self, bound)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return self.logical.bounds.shape

    def fill(self, value: float) -> None:
        """Write one value to every element, on the processor that reads it first or holds its block."""
        self.session.fill(self, value)

    def write(self, values: torch.Tensor) -> None:
        """Write a whole tensor, the same on every rank."""
        self.session.write(self, values)

    def read(self) -> torch.Tensor:
        """Bring the whole region to every rank and wait for it.

        Raises:
            RequestError: something was never written.
        """
        return self.session.read(self)

    def __str__(self) -> str:
        """Print name, bounds and dtype."""
        return str(self.logical)


@dataclass(frozen=True, eq=False)
class PartitionedRegion:
    """A region and a partition of it: point i of a launch uses tile i.

    Args:
        region: the region.
        partition: its tiles by colour.
    """

    region: Region
    partition: Partition

    def __getitem__(self, color: int | tuple[int, ...]) -> PartitionedRegion:
        """Choose one tile, for a single launch."""
        chosen = (color,) if isinstance(color, int) else color
        tile = self.partition.tile(chosen)
        return PartitionedRegion(self.region, Partition(self.partition.parent, Rect.of_shape(()), (tile,)))
