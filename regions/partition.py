"""Partitions: a box cut into tiles, one per colour, and the recipes that cut any box alike."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

from maniple.regions.error import RequestError
from maniple.regions.rectangle import Rect, RectSet, overlapping

Bounds = tuple[tuple[int, ...], tuple[int, ...]]


@final
@dataclass(frozen=True)
class Partition:
    """The tiles of one box: one for every colour, which may overlap, leave gaps or be empty.

    Args:
        parent: the box that is cut.
        colors: the colour space.
        tiles: one box per colour, the last axis of the colour space fastest, each inside ``parent``.

    Raises:
        RequestError: the number of tiles is not that of the colours, or a tile is not inside the parent.
    """

    parent: Rect
    colors: Rect
    tiles: tuple[Rect, ...]

    def __post_init__(self) -> None:
        if len(self.tiles) != self.colors.volume:
            msg = f"expected {self.colors.volume} tiles for the colours {self.colors}, got {len(self.tiles)}"
            raise RequestError(msg)
        for color, tile in zip(self.colors.points(), self.tiles, strict=True):
            if not self.parent.contains(tile):
                msg = f"tile {color} is {tile}, outside of its parent {self.parent}: clip it to the parent"
                raise RequestError(msg)

    def tile(self, color: Sequence[int]) -> Rect:
        """The tile of one colour.

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
        return self.tiles[index]

    @cached_property
    def disjoint(self) -> bool:
        """Whether no point is in two tiles: computed from the tiles, never promised."""
        return next(overlapping(self.tiles), None) is None

    @cached_property
    def complete(self) -> bool:
        """Whether every point of the parent is in a tile: computed from the tiles, never promised."""
        if self.disjoint:
            return sum([tile.volume for tile in self.tiles]) == self.parent.volume
        return self.parent in self.tiles or RectSet.of(self.tiles).covers(self.parent)


class Partitioning(ABC):
    """A recipe for partitions: it has its colours, and is bound to a box to get tiles.

    Each subclass is a frozen value, so equal recipes compare and hash alike.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def colors(self) -> Rect:
        """The colour space: the same for every box that the recipe is bound to."""

    @abstractmethod
    def bind(self, parent: Rect) -> Partition:
        """The partition of ``parent``.

        Raises:
            RequestError: the recipe does not fit the box.
        """


@final
@dataclass(frozen=True, slots=True)
class Blocks(Partitioning):
    """Each axis cut into a number of blocks; see :func:`blocks`."""

    counts: tuple[int, ...]

    @property
    def colors(self) -> Rect:
        """One colour per block: the counts as a shape."""
        return Rect.of_shape(self.counts)

    def bind(self, parent: Rect) -> Partition:
        """The blocks of ``parent``: along each axis sizes differ by at most one, larger first, empty ones last."""
        if parent.ndim != len(self.counts):
            msg = f"blocks{self.counts} has {len(self.counts)} counts, but {parent} has {parent.ndim} axes"
            raise RequestError(msg)
        ranges: list[list[tuple[int, int]]] = []
        for axis, count in enumerate(self.counts):
            ranges.append([(piece.lo[axis], piece.hi[axis]) for piece in parent.split(axis, count)])
        tiles = [
            Rect(tuple([low for low, _ in sides]), tuple([high for _, high in sides]))
            for sides in itertools.product(*ranges)
        ]
        return Partition(parent, self.colors, tuple(tiles))


@final
@dataclass(frozen=True, slots=True)
class Halo(Partitioning):
    """Every tile of another recipe grown by a margin; see :func:`halo`."""

    base: Partitioning
    widths: tuple[tuple[int, int], ...]

    @property
    def colors(self) -> Rect:
        """The colours of the recipe that is grown."""
        return self.base.colors

    def bind(self, parent: Rect) -> Partition:
        """The grown tiles, clipped to ``parent``; an empty tile stays empty."""
        if parent.ndim != len(self.widths):
            msg = f"a halo with {len(self.widths)} widths does not fit {parent} with {parent.ndim} axes: give one each"
            raise RequestError(msg)
        below = [width for width, _ in self.widths]
        above = [width for _, width in self.widths]
        tiles: list[Rect] = []
        for tile in self.base.bind(parent).tiles:
            if tile.is_empty:
                tiles.append(tile)
                continue
            lo = tuple([low - width for low, width in zip(tile.lo, below, strict=True)])
            hi = tuple([high + width for high, width in zip(tile.hi, above, strict=True)])
            tiles.append(Rect(lo, hi).intersect(parent))
        return Partition(parent, self.colors, tuple(tiles))


@final
@dataclass(frozen=True, slots=True)
class Replicate(Partitioning):
    """The whole box for every colour; see :func:`replicate`."""

    counts: tuple[int, ...]

    @property
    def colors(self) -> Rect:
        """The counts as a shape."""
        return Rect.of_shape(self.counts)

    def bind(self, parent: Rect) -> Partition:
        """``parent`` itself, once per colour."""
        return Partition(parent, self.colors, (parent,) * math.prod(self.counts))


@final
@dataclass(frozen=True, slots=True)
class Rectangles(Partitioning):
    """Tiles that are listed; see :func:`rectangles`."""

    space: Rect
    tiles: tuple[Rect, ...]

    @property
    def colors(self) -> Rect:
        """The colour space that was given."""
        return self.space

    def bind(self, parent: Rect) -> Partition:
        """The listed tiles, each of which must be inside ``parent``."""
        for color, tile in zip(self.colors.points(), self.tiles, strict=True):
            if tile.ndim != parent.ndim:
                msg = f"tile {color} is {tile} with {tile.ndim} axes, but {parent} has {parent.ndim}"
                raise RequestError(msg)
        return Partition(parent, self.colors, self.tiles)


def blocks(counts: Sequence[int]) -> Partitioning:
    """The recipe that cuts axis a into ``counts[a]`` blocks.

    ===========  =====  ==================================
    extent       count  blocks
    ===========  =====  ==================================
    8            4      [0:2] [2:4] [4:6] [6:8]
    10           4      [0:3] [3:6] [6:8] [8:10]
    2            4      [0:1] [1:2] [2:2] [2:2]
    ===========  =====  ==================================

    Args:
        counts: one positive number per axis of the boxes to be cut.

    Raises:
        RequestError: a count is not positive.
    """
    return Blocks(_positive("blocks", counts))


def halo(base: Partitioning, widths: Sequence[int | tuple[int, int]]) -> Partitioning:
    """The recipe that grows every tile of ``base`` by a margin and clips it to the parent.

    Args:
        base: the recipe that is grown.
        widths: per axis of the boxes to be cut, in points: the margin on both sides, or (below, above).

    Raises:
        RequestError: a width is negative.
    """
    pairs = tuple([(width, width) if isinstance(width, int) else (width[0], width[1]) for width in widths])
    for axis, pair in enumerate(pairs):
        if min(pair) < 0:
            msg = f"expected halo widths of at least 0, got {pair} on axis {axis}: a halo only grows tiles"
            raise RequestError(msg)
    return Halo(base, pairs)


def replicate(n: int | Sequence[int]) -> Partitioning:
    """The recipe whose every tile is the whole box.

    Args:
        n: the number of colours, or the shape of the colour space.

    Raises:
        RequestError: a count is not positive.
    """
    return Replicate(_positive("replicate", (n,) if isinstance(n, int) else n))


def rectangles(tiles: Iterable[Rect | Bounds], colors: Rect | None = None) -> Partitioning:
    """The recipe with exactly the given tiles.

    Args:
        tiles: boxes, or (lo, hi) pairs, the last axis of the colour space fastest.
        colors: the colour space; by default one axis with a colour per tile.

    Raises:
        RequestError: the number of tiles is not that of the colours.
    """
    boxes = tuple([tile if isinstance(tile, Rect) else Rect(tuple(tile[0]), tuple(tile[1])) for tile in tiles])
    space = Rect.of_shape((len(boxes),)) if colors is None else colors
    if space.volume != len(boxes):
        msg = f"expected {space.volume} tiles for the colours {space}, got {len(boxes)}"
        raise RequestError(msg)
    return Rectangles(space, boxes)


def _positive(name: str, counts: Sequence[int]) -> tuple[int, ...]:
    for axis, count in enumerate(counts):
        if count < 1:
            msg = f"{name} expected a count of at least 1 on every axis, got {count} on axis {axis} of {tuple(counts)}"
            raise RequestError(msg)
    return tuple(counts)
