"""The region table of one rank: makes logical regions and numbers them."""

from __future__ import annotations

from itertools import count

from maniple.regions.logical_region import LogicalRegion
from maniple.regions.rectangle import Rect

__all__: list[str] = []


class RegionTable:
    """Makes logical regions. Ids count up, so ranks that run the same program number its regions alike."""

    def __init__(self) -> None:
        self._ids = count()

    def region(self, name: str, shape: tuple[int, ...] | Rect, dtype: str) -> LogicalRegion:
        """Make a region.

        Args:
            name: what errors and schedules call it.
            shape: extents, () for a scalar; or the bounds.
            dtype: such as `float32`.
        """
        bounds = shape if isinstance(shape, Rect) else Rect.of_shape(shape)
        return LogicalRegion(next(self._ids), name, bounds, dtype)
