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

    def region(self, name: str, shape: tuple[int, ...], dtype: str) -> LogicalRegion:
        """Make a region.

        Args:
            name: what errors and schedules call it.
            shape: extents; () is a scalar.
            dtype: such as `float32`.
        """
        return LogicalRegion(next(self._ids), name, Rect.of_shape(shape), dtype)
