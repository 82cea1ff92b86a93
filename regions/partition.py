"""Partitionings: the recipes that cut any index space alike, whatever values it holds."""

from __future__ import annotations

import itertools
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from maniple.process.error import RequestError
from maniple.regions.index_space import IndexSpace, RectSet, intersect, simplest
from maniple.regions.rectangle import Rect
from maniple.regions.subspace import Partition as Partition

Bounds = tuple[tuple[int, ...], tuple[int, ...]]


class Partitioning(ABC):
    """A recipe for partitions: it has its colours, and is bound to an index space to get its sub-spaces.

    A recipe cuts a box; of a sparse index space it cuts the bounds, and each sub-space has the points that there are.
    Each subclass is a frozen value, so equal recipes compare and hash alike.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def colors(self) -> Rect:
        """The colour space: the same for every box that the recipe is bound to."""

    @abstractmethod
    def cut(self, parent: Rect) -> tuple[IndexSpace, ...]:
        """The sub-spaces of a box, one per colour.

        Raises:
            RequestError: the recipe does not fit the box.
        """

    def bind(self, parent: IndexSpace) -> Partition:
        """The partition of ``parent``.

        Raises:
            RequestError: the recipe does not fit it.
        """
        spaces = self.cut(parent.bounds)
        if isinstance(parent, RectSet):
            spaces = tuple([intersect(parent, space) for space in spaces])
        return Partition(parent, self.colors, spaces)


@final
@dataclass(frozen=True, slots=True)
class Blocks(Partitioning):
    """Each axis cut into a number of blocks; see :func:`blocks`."""

    counts: tuple[int, ...]

    @property
    def colors(self) -> Rect:
        """One colour per block: the counts as a shape."""
        return Rect.of_shape(self.counts)

    def cut(self, parent: Rect) -> tuple[IndexSpace, ...]:
        """The blocks of ``parent``: along each axis sizes differ by at most one, larger first, empty ones last."""
        if parent.ndim != len(self.counts):
            msg = f"blocks{self.counts} has {len(self.counts)} counts, but {parent} has {parent.ndim} axes"
            raise RequestError(msg)
        ranges: list[list[tuple[int, int]]] = []
        for axis, count in enumerate(self.counts):
            ranges.append([(piece.lo[axis], piece.hi[axis]) for piece in parent.split(axis, count)])
        return _boxes(ranges)


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

    def cut(self, parent: Rect) -> tuple[IndexSpace, ...]:
        """The grown tiles, clipped to ``parent``; an empty tile stays empty."""
        if parent.ndim != len(self.widths):
            msg = f"a halo with {len(self.widths)} widths does not fit {parent} with {parent.ndim} axes: give one each"
            raise RequestError(msg)
        below = [width for width, _ in self.widths]
        above = [width for _, width in self.widths]
        tiles: list[IndexSpace] = []
        for tile in self.base.cut(parent):
            grown = [_grow(rect, below, above).intersect(parent) for rect in tile.rects]
            tiles.append(tile if tile.is_empty else simplest(RectSet.of(grown), parent.ndim))
        return tuple(tiles)


@final
@dataclass(frozen=True, slots=True)
class Replicate(Partitioning):
    """The whole box for every colour; see :func:`replicate`."""

    counts: tuple[int, ...]

    @property
    def colors(self) -> Rect:
        """The counts as a shape."""
        return Rect.of_shape(self.counts)

    def cut(self, parent: Rect) -> tuple[IndexSpace, ...]:
        """``parent`` itself, once per colour."""
        return (parent,) * math.prod(self.counts)


@final
@dataclass(frozen=True, slots=True)
class Rectangles(Partitioning):
    """Tiles that are listed; see :func:`rectangles`."""

    space: Rect
    tiles: tuple[IndexSpace, ...]

    @property
    def colors(self) -> Rect:
        """The colour space that was given."""
        return self.space

    def cut(self, parent: Rect) -> tuple[IndexSpace, ...]:
        """The listed tiles, each of which must be inside ``parent``."""
        for color, tile in zip(self.colors.points(), self.tiles, strict=True):
            if tile.ndim != parent.ndim:
                msg = f"tile {color} is {tile} with {tile.ndim} axes, but {parent} has {parent.ndim}"
                raise RequestError(msg)
            if not parent.contains(tile.bounds):
                msg = f"tile {color} is {tile}, outside of its parent {parent}: clip it to the parent"
                raise RequestError(msg)
        return self.tiles


@final
@dataclass(frozen=True, slots=True)
class Weights(Partitioning):
    """Each axis cut in proportion to weights; see :func:`weights`."""

    shares: tuple[tuple[int, ...], ...]

    @property
    def colors(self) -> Rect:
        """One colour per weight: their numbers as a shape."""
        return Rect.of_shape([len(axis) for axis in self.shares])

    def cut(self, parent: Rect) -> tuple[IndexSpace, ...]:
        """The blocks of ``parent``; along each axis block i ends at the share of the weights up to i, rounded down."""
        if parent.ndim != len(self.shares):
            msg = f"weights for {len(self.shares)} axes do not fit {parent} with {parent.ndim} axes: give each its own"
            raise RequestError(msg)
        ranges: list[list[tuple[int, int]]] = []
        for low, extent, axis in zip(parent.lo, parent.shape, self.shares, strict=True):
            total = sum(axis)
            ends = [low + extent * part // total for part in itertools.accumulate(axis, initial=0)]
            ranges.append(list(itertools.pairwise(ends)))
        return _boxes(ranges)


@final
@dataclass(frozen=True, slots=True)
class Restriction(Partitioning):
    """A box of fixed extent, moved by a linear map of the colour; see :func:`restriction`."""

    space: Rect
    transform: tuple[tuple[int, ...], ...]
    extent: Rect

    @property
    def colors(self) -> Rect:
        """The colour space that was given."""
        return self.space

    def cut(self, parent: Rect) -> tuple[IndexSpace, ...]:
        """The moved boxes, clipped to ``parent``."""
        if parent.ndim != self.extent.ndim:
            msg = f"a restriction to {self.extent} does not fit {parent} with {parent.ndim} axes: give as many"
            raise RequestError(msg)
        moves = [[sum(map(operator.mul, row, color)) for row in self.transform] for color in self.space.points()]
        return tuple([self.extent.shift(move).intersect(parent) for move in moves])


def blocks(counts: Sequence[int] | int) -> Partitioning:
    """The recipe that cuts axis a into ``counts[a]`` blocks.

    ===========  =====  ==================================
    extent       count  blocks
    ===========  =====  ==================================
    8            4      [0:2] [2:4] [4:6] [6:8]
    10           4      [0:3] [3:6] [6:8] [8:10]
    2            4      [0:1] [1:2] [2:2] [2:2]
    ===========  =====  ==================================

    Args:
        counts: one positive number per axis of the boxes to be cut; a number alone for boxes of one axis.

    Raises:
        RequestError: a count is not positive.
    """
    return Blocks(_positive("blocks", counts))


def halo(base: Partitioning, widths: Sequence[int | tuple[int, int]] | int) -> Partitioning:
    """The recipe that grows every tile of ``base`` by a margin and clips it to the parent.

    Args:
        base: the recipe that is grown.
        widths: per axis of the boxes to be cut, in points: the margin on both sides, or (below, above); a number alone
            for boxes of one axis.

    Raises:
        RequestError: a width is negative.
    """
    each = (widths,) if isinstance(widths, int) else widths
    pairs = tuple([(width, width) if isinstance(width, int) else (width[0], width[1]) for width in each])
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
    return Replicate(_positive("replicate", n))


def rectangles(tiles: Iterable[IndexSpace | Bounds], colors: Rect | None = None) -> Partitioning:
    """The recipe with exactly the given tiles.

    Args:
        tiles: boxes, (lo, hi) pairs or sparse index spaces, the last axis of the colour space fastest.
        colors: the colour space; by default one axis with a colour per tile.

    Raises:
        RequestError: the number of tiles is not that of the colours.
    """
    boxes = tuple([tile if isinstance(tile, IndexSpace) else Rect(tuple(tile[0]), tuple(tile[1])) for tile in tiles])
    space = Rect.of_shape((len(boxes),)) if colors is None else colors
    if space.volume != len(boxes):
        msg = f"expected {space.volume} tiles for the colours {space}, got {len(boxes)}"
        raise RequestError(msg)
    return Rectangles(space, boxes)


def weights(*axes: Sequence[int]) -> Partitioning:
    """The recipe that cuts each axis into blocks whose extents are in proportion to weights.

    ===========  ============  =======================
    extent       weights       blocks
    ===========  ============  =======================
    8            1, 2, 1       [0:2] [2:6] [6:8]
    10           1, 0, 2       [0:3] [3:3] [3:10]
    ===========  ============  =======================

    Args:
        axes: for each axis of the boxes to be cut a whole number per block, of which one at least is not 0.

    Raises:
        RequestError: a weight is negative or no whole number, or all of an axis are 0.
    """
    for axis, shares in enumerate(axes):
        if any(type(share) is not int or share < 0 for share in shares) or not any(shares):
            msg = f"weights expected whole numbers of at least 0, not all 0, got {tuple(shares)} on axis {axis}"
            raise RequestError(msg)
    return Weights(tuple([tuple(shares) for shares in axes]))


def restriction(colors: Rect | Sequence[int], transform: Sequence[Sequence[int]], extent: Rect) -> Partitioning:
    """The recipe whose tile of colour c is the box ``extent`` moved by ``transform`` times c, clipped to the parent.

    ``restriction((4,), [[2]], Rect((-1,), (3,)))`` cuts ``[0:8]`` into ``[0:3] [1:5] [3:7] [5:8]``.

    Args:
        colors: the colour space, or its extents.
        transform: a row per axis of the boxes to be cut, with a number per axis of the colour space.
        extent: the tile of the colour at the origin.

    Raises:
        RequestError: the matrix does not fit the colour space and the box.
    """
    space = colors if isinstance(colors, Rect) else Rect.of_shape(tuple(colors))
    rows = tuple([tuple(row) for row in transform])
    if len(rows) != extent.ndim or any(len(row) != space.ndim for row in rows):
        msg = f"expected a matrix of {extent.ndim} rows and {space.ndim} columns for {extent} and {space}, got {rows}"
        raise RequestError(msg)
    return Restriction(space, rows, extent)


def _boxes(ranges: Sequence[Sequence[tuple[int, int]]]) -> tuple[Rect, ...]:
    """The boxes that intervals on every axis make, the last axis fastest."""
    return tuple(
        [
            Rect(tuple([low for low, _ in sides]), tuple([high for _, high in sides]))
            for sides in itertools.product(*ranges)
        ]
    )


def _grow(rect: Rect, below: Sequence[int], above: Sequence[int]) -> Rect:
    lo = tuple([low - width for low, width in zip(rect.lo, below, strict=True)])
    return Rect(lo, tuple([high + width for high, width in zip(rect.hi, above, strict=True)]))


def _positive(name: str, counts: Sequence[int] | int) -> tuple[int, ...]:
    """Counts as whole numbers: of Python, or of an array.

    Raises:
        RequestError: one is none, or not positive.
    """
    given = tuple(counts) if isinstance(counts, Iterable) else (counts,)
    try:
        whole = tuple([operator.index(count) for count in given])
    except TypeError as error:
        msg = f"{name} expected a whole number for every axis, got {counts!r}"
        raise RequestError(msg) from error
    for axis, count in enumerate(whole):
        if count < 1:
            msg = f"{name} expected a count of at least 1 on every axis, got {count} on axis {axis} of {whole}"
            raise RequestError(msg)
    return whole
