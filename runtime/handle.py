"""Handles: the regions of a running program, as its author names them in launches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from maniple.regions.partition import Partition, Partitioning
from maniple.regions.rectangle import Rect
from maniple.runtime.projection import Point, Projection, Shift, UserProjection

if TYPE_CHECKING:
    import torch

    from maniple.regions.logical_region import LogicalRegion

__all__: list[str] = []

# Partitions of one region that are remembered, so that naming them again in a loop costs nothing.
KEPT_PARTITIONS = 64


class Holder(Protocol):
    """The program that a region belongs to."""

    def fill(self, target: Region | PartitionedRegion, value: float) -> None:
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
    _bound: dict[int, tuple[Partitioning, Partition]] = field(default_factory=dict, init=False, repr=False)

    def __getitem__(self, partitioning: Partitioning | Partition) -> PartitionedRegion:
        """Partition the region for a launch."""
        if isinstance(partitioning, Partition):
            return PartitionedRegion(self, partitioning)
        known = self._bound.get(id(partitioning))
        if known is None:
            if len(self._bound) >= KEPT_PARTITIONS:
                self._bound.clear()
            # The recipe is kept with its tiles, so that its id stays its own.
            known = self._bound[id(partitioning)] = (partitioning, partitioning.bind(self.logical.bounds))
        return PartitionedRegion(self, known[1])

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
        projection: which tile a point uses; None for its own.
    """

    region: Region
    partition: Partition
    projection: Projection | None = None

    def __getitem__(self, color: int | tuple[int, ...]) -> PartitionedRegion:
        """Choose one tile, for a single launch."""
        chosen = (color,) if isinstance(color, int) else color
        tile = self.partition.tile(chosen)
        return PartitionedRegion(self.region, Partition(self.partition.parent, Rect.of_shape(()), (tile,)))

    def shift(self, *offset: int, periodic: bool = False) -> PartitionedRegion:
        """Have every point use the tile at an offset from its own.

        Args:
            offset: one number per axis of the colours.
            periodic: whether colours wrap around; otherwise a point whose tile would lie outside sees an empty tensor.
        """
        return replace(self, projection=Shift(offset, periodic))

    def project(self, function: Callable[[Point], Point | int | None]) -> PartitionedRegion:
        """Have every point use the tile whose colour a function gives, or none where that gives None.

        Args:
            function: of the point alone; every rank asks it and must hear the same.
        """
        return replace(self, projection=UserProjection(function))
