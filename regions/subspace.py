"""Partitions: the sub-spaces of an index space, one for every colour, and the algebra of partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, final

from maniple.process.error import RequestError
from maniple.regions.index_space import IndexSpace, RectSet, as_one, intersect, simplest, union, without
from maniple.regions.rectangle import Rect, nothing, overlapping


class Recipe(Protocol):
    """What makes a partition of any index space, as the partitionings do."""

    def bind(self, parent: IndexSpace) -> Partition:
        """The partition of an index space."""
        ...


@final
@dataclass(frozen=True)
class Partition:
    """The sub-spaces of one index space: one for every colour, which may overlap, leave gaps or be empty.

    Two partitions with the same colours are combined colour by colour: ``p | q`` is the union, ``p & q`` the
    intersection and ``p - q`` the difference. A recipe on the right is bound to the parent first.

    Args:
        parent: the index space that is cut.
        colors: the colour space.
        subspaces: one index space per colour, the last axis of the colour space fastest, each inside ``parent``.

    Raises:
        RequestError: the number of sub-spaces is not that of the colours, or one is not inside the parent.
    """

    parent: IndexSpace
    colors: Rect
    subspaces: tuple[IndexSpace, ...]

    def __post_init__(self) -> None:
        if len(self.subspaces) != self.colors.volume:
            msg = f"expected {self.colors.volume} tiles for the colours {self.colors}, got {len(self.subspaces)}"
            raise RequestError(msg)
        for color, tile in zip(self.colors.points(), self.subspaces, strict=True):
            inside = self.parent.contains(tile.bounds) if isinstance(self.parent, Rect) else self.parent.covers(tile)
            if not inside:
                msg = f"tile {color} is {tile}, outside of its parent {self.parent}: clip it to the parent"
                raise RequestError(msg)

    @property
    def tiles(self) -> tuple[Rect, ...]:
        """The bounding box of every sub-space: the sub-space itself where it is dense."""
        return tuple([space.bounds for space in self.subspaces])

    def tile(self, color: Sequence[int]) -> IndexSpace:
        """The sub-space of one colour.

        Raises:
            RequestError: the colour is not in the colour space.
        """
        if len(color) != self.colors.ndim:
            msg = f"expected a colour of {self.colors.ndim} numbers from {self.colors}, got {tuple(color)}"
            raise RequestError(msg)
        index = 0
        for number, low, high in zip(color, self.colors.lo, self.colors.hi, strict=True):
            if not low <= number < high:
                msg = f"expected a colour from {self.colors}, got {tuple(color)}"
                raise RequestError(msg)
            index = index * (high - low) + number - low
        return self.subspaces[index]

    @cached_property
    def disjoint(self) -> bool:
        """Whether no point is in two sub-spaces: computed from them, never promised."""
        if self.parent.ndim == 1 and any(isinstance(space, RectSet) for space in self.subspaces):
            return self._volume == union(self.subspaces).volume
        return next(overlapping([rect for space in self.subspaces for rect in space.rects]), None) is None

    @cached_property
    def complete(self) -> bool:
        """Whether every point of the parent is in a sub-space: computed from them, never promised."""
        if self.disjoint:
            return self._volume == self.parent.volume
        return self.parent in self.subspaces or union(self.subspaces).volume == self.parent.volume

    @property
    def _volume(self) -> int:
        return sum([space.volume for space in self.subspaces])

    def __or__(self, other: Partition | Recipe) -> Partition:
        """Colour by colour the points of either."""
        return self._combine(other, lambda one, two: union([one, two]))

    def __and__(self, other: Partition | Recipe) -> Partition:
        """Colour by colour the points of both."""
        return self._combine(other, intersect)

    def __sub__(self, other: Partition | Recipe) -> Partition:
        """Colour by colour the points that the other lacks."""
        return self._combine(other, _difference)

    def cross(self, other: Partition | Recipe) -> Partition:
        """The cross product: the colour (i, j) has the points that colour i of this has and colour j of the other."""
        other = self._bind(other)
        colors = Rect((*self.colors.lo, *other.colors.lo), (*self.colors.hi, *other.colors.hi))
        return Partition(self.parent, colors, tuple([intersect(a, b) for a in self.subspaces for b in other.subspaces]))

    def _combine(self, other: Partition | Recipe, combine: Callable[[IndexSpace, IndexSpace], IndexSpace]) -> Partition:
        other = self._bind(other)
        if self.colors != other.colors:
            msg = f"expected partitions with the same colours, got {self.colors} and {other.colors}"
            raise RequestError(msg)
        pairs = zip(self.subspaces, other.subspaces, strict=True)
        found = [simplest(combine(one, two), self.parent.ndim) for one, two in pairs]
        return Partition(self.parent, self.colors, tuple(found))

    def _bind(self, other: Partition | Recipe) -> Partition:
        if not isinstance(other, Partition):
            return other.bind(self.parent)
        if self.parent != other.parent:
            msg = f"expected partitions of one index space, got one of {self.parent} and one of {other.parent}"
            raise RequestError(msg)
        return other


def _difference(one: IndexSpace, other: IndexSpace) -> IndexSpace:
    rest = without(one, other)
    return as_one(rest) if rest else nothing(one.ndim)
