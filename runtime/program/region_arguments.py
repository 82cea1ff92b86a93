"""Region arguments: what the arguments of a launch name of regions, as each point of the launch uses it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maniple.process.error import RequestError
from maniple.regions.rectangle import Rect

if TYPE_CHECKING:
    from maniple.regions.index_space import IndexSpace
    from maniple.regions.logical_region import LogicalRegion
    from maniple.regions.privilege import Coherence
    from maniple.regions.subspace import Partition
    from maniple.runtime.program.projection import Projection

__all__: list[str] = []


@dataclass(frozen=True, slots=True)
class RegionArguments:
    """A region argument: the whole region at every point, or a tile of a partition for each.

    It refers to the fields, not to the program's handle, so that it keeps no region alive.

    Args:
        columns: the fields, each a logical region.
        space: the elements of the region.
        several: whether a body sees a tuple of fields, be it of one.
        coherence: how tasks that use the same elements are ordered.
        partition: the tiles; None for the whole region.
        projection: which tile a point uses; None for its own.
    """

    columns: tuple[LogicalRegion, ...]
    space: IndexSpace
    several: bool
    coherence: Coherence
    partition: Partition | None = None
    projection: Projection | None = None

    def rects(self, colors: tuple[tuple[int, ...], ...], domain: Rect | None) -> tuple[IndexSpace, ...]:
        """The elements of each point; none where the projection says that a point uses nothing.

        Raises:
            RequestError: a point has no tile.
        """
        tiles = self.partition
        if tiles is None:
            return (self.space,) * len(colors)
        if self.projection is None and domain == tiles.colors:
            return tiles.subspaces
        return tuple(self._rect(tiles, point) for point in colors)

    def _rect(self, tiles: Partition, point: tuple[int, ...]) -> IndexSpace:
        color = point if self.projection is None else self.projection.color(point, tiles.colors)
        if color is None:
            corner = self.columns[0].bounds.lo
            return Rect(corner, corner)
        if len(color) != tiles.colors.ndim or not tiles.colors.contains(Rect(color, tuple(i + 1 for i in color))):
            via = "" if self.projection is None else f", which is projected to {color}"
            msg = f"no tile for point {point}{via}; the partition has {tiles.colors}"
            msg += "" if via else ", which is the domain to launch over: index_launch(task, partition.colors, ...)"
            raise RequestError(msg)
        return tiles.tile(color)

    def key(self) -> tuple[object, ...]:
        """What tells it from others; partitions count by identity."""
        ids = tuple(column.id for column in self.columns)
        return (ids, self.space, self.several, self.coherence, id(self.partition), self.projection)

    def __str__(self) -> str:
        whole = ", ".join(f"{column.name}#{column.id}" for column in self.columns)
        if self.partition is not None:
            return f"{whole}[{self.partition.colors.volume} tiles]"
        return whole if self.space == self.columns[0].bounds else f"{whole}{self.space}"
