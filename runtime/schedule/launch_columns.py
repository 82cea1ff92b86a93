"""Columns of launches: where tasks run and what they use, as arrays; a point or a box is made when asked for.

A launch of two points, the first of which has two replicas, over a region of 4 x 6:

    ====  =====  ========  =========  =======  =====  =====
    task  color  number    processor  replica  low    high
    ====  =====  ========  =========  =======  =====  =====
    0     0, 0   0         0          0        0, 0   4, 3
    1     0, 0   0         2          1        0, 0   4, 3
    2     0, 1   1         1          0        0, 3   4, 6
    ====  =====  ========  =========  =======  =====  =====
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import numpy as np

from maniple.regions.rectangle import Rect
from maniple.runtime.schedule.launch import Point
from maniple.runtime.schedule.on_demand import OnDemand

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maniple.regions.index_space import IndexSpace

    Column = np.ndarray[tuple[int], np.dtype[np.int64]]
    Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]
    Bounds = np.ndarray[tuple[int, int, int], np.dtype[np.int64]]

__all__: list[str] = []


@final
class Points(OnDemand[Point]):
    """The points of a launch as columns, replicas next to each other; equal to any sequence of equal points.

    Args:
        colors: by task, the point of the launch domain.
        numbers: by task, a number of that point, ascending; the same for replicas.
        processors: by task.
    """

    def __init__(self, colors: Table, numbers: Column, processors: Column) -> None:
        self.colors, self.numbers, self.processors = colors, numbers, processors
        self.replicas = np.arange(len(numbers)) - np.searchsorted(numbers, numbers)
        self._made: dict[int, Point] = {}

    def __len__(self) -> int:
        """Count them."""
        return len(self.processors)

    def item(self, number: int) -> Point:
        """Give one of them."""
        if number not in self._made:
            color = tuple(self.colors[number].tolist())
            self._made[number] = Point(color, int(self.processors[number]), int(self.replicas[number]))
        return self._made[number]

    def select(self, chosen: Column) -> Points:
        """Some of them, by ascending places, a replica never without those before it."""
        return Points(self.colors[chosen], self.numbers[chosen], self.processors[chosen])

    def __eq__(self, other: object) -> bool:
        """Whether another sequence has equal points."""
        return other is self or _alike(self, other)

    def __hash__(self) -> int:
        """As a tuple of them."""
        return hash(tuple(self))


@final
class Rects(OnDemand[Rect]):
    """The boxes that the tasks of a launch use, as bounds; equal to any sequence of equal boxes.

    Args:
        bounds: by task, axis and end.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._made: dict[int, Rect] = {}

    def moved(self, axis: int, by: int) -> Rects:
        """The same boxes elsewhere along an axis; empty ones stay where they are.

        Args:
            axis: the axis.
            by: how far.
        """
        if not by:
            return self
        bounds = self.bounds.copy()
        bounds[(self.volumes > 0), axis] += by
        return Rects(bounds)

    @cached_property
    def volumes(self) -> Column:
        """How many elements each has."""
        volumes: Column = (self.bounds[:, :, 1] - self.bounds[:, :, 0]).prod(axis=1)
        return volumes

    def __len__(self) -> int:
        """Count them."""
        return len(self.bounds)

    def item(self, number: int) -> Rect:
        """Give one of them."""
        if number not in self._made:
            low, high = self.bounds[number].T.tolist()
            self._made[number] = Rect(tuple(low), tuple(high))
        return self._made[number]

    def __iter__(self) -> Iterator[Rect]:
        """Give all of them."""
        lows, highs = self.bounds[:, :, 0].tolist(), self.bounds[:, :, 1].tolist()
        for low, high in zip(lows, highs, strict=True):
            yield Rect(tuple(low), tuple(high))

    def __eq__(self, other: object) -> bool:
        """Whether another sequence has equal boxes."""
        if isinstance(other, Rects):
            return other is self or np.array_equal(self.bounds, other.bounds)
        return _alike(self, other)

    def __hash__(self) -> int:
        """As a tuple of them."""
        return hash(tuple(self))


def _alike(mine: Sequence[object], other: object) -> bool:
    theirs: Any = other
    return isinstance(other, tuple | OnDemand) and tuple(mine) == tuple(theirs)


def processors_of(points: Sequence[Point]) -> Column:
    """The processor of each point."""
    if isinstance(points, Points):
        return points.processors
    return np.asarray([point.processor for point in points], dtype=np.int64)


def volumes_of(rects: Sequence[IndexSpace]) -> Column:
    """How many elements each of some index spaces has."""
    if isinstance(rects, Rects):
        return rects.volumes
    return np.asarray([rect.volume for rect in rects], dtype=np.int64)
