"""The region table of one rank: makes logical regions and numbers them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from maniple.process.error import RequestError
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


def extents(name: str | None, shape: Sequence[int]) -> Rect:
    """Give the index space of some extents.

    Raises:
        RequestError: they are no tuple of whole numbers of at least 1.
    """
    if isinstance(shape, int) or any(type(extent) is not int or extent < 1 for extent in shape):
        msg = f"region {name or ''}: expected extents >= 1 in a tuple, got {shape!r}"
        raise RequestError(msg)
    return Rect.of_shape(tuple(shape))
