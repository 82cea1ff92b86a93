"""Index spaces: sets of points, dense (one box) or sparse (a list of disjoint boxes kept in columns)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import final

import numpy as np

from maniple.process.error import RequestError
from maniple.regions.rectangle import Rect, merge, nothing, overlapping

Column = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@final
class RectSet:
    """An immutable set of points, stored as disjoint boxes in ascending order; two are equal if their points are.

    Build one with :meth:`of`, :meth:`of_columns` or the operators ``|``, ``&`` and ``-``, whose other side may be a
    box; boxes given directly must be disjoint, ascending and not empty. Millions of boxes are two arrays; a ``Rect`` is
    made of each only when somebody asks for :attr:`rects`. Sets on one axis are combined by array operations.

    Args:
        rects: the boxes.
    """

    __slots__ = ("_bounds", "_columns", "_hash", "_rects", "_volume")

    def __init__(self, rects: Sequence[Rect] = ()) -> None:
        self._rects: tuple[Rect, ...] | None = tuple(rects)
        self._columns: tuple[Column, Column] | None = None
        self._bounds: Rect | None = None
        self._volume: int | None = None
        self._hash: int | None = None

    @staticmethod
    def empty() -> RectSet:
        """The set without points."""
        return _EMPTY

    @staticmethod
    def of(rects: Iterable[Rect]) -> RectSet:
        """The points of all the given boxes, which may overlap."""
        boxes = [rect for rect in dict.fromkeys(rects) if not rect.is_empty]
        if len(boxes) < 2:
            return RectSet(boxes)
        earlier: dict[int, list[int]] = {}
        for first, second in overlapping(boxes):
            earlier.setdefault(second, []).append(first)
        pieces: list[Rect] = []
        for index, rect in enumerate(boxes):
            rest = [rect]
            for other in earlier.get(index, ()):
                rest = [piece for part in rest for piece in part.subtract(boxes[other])]
            pieces += rest
        return RectSet(merge(pieces))

    @staticmethod
    def of_columns(lo: Column, hi: Column) -> RectSet:
        """The set of boxes that are disjoint, ascending, not empty and joined as far as they can be.

        Args:
            lo: a row per box, a column per axis: the first indices.
            hi: likewise, one past the last indices.
        """
        made = RectSet()
        if len(lo):
            made._rects, made._columns = None, (lo, hi)
        return made

    @property
    def rects(self) -> tuple[Rect, ...]:
        """The disjoint boxes, in ascending order."""
        if self._rects is None:
            lo, hi = self.columns
            pairs = zip(lo.tolist(), hi.tolist(), strict=True)
            self._rects = tuple([Rect(tuple(low), tuple(high)) for low, high in pairs])
        return self._rects

    @property
    def columns(self) -> tuple[Column, Column]:
        """The first indices and one past the last ones, a row per box and a column per axis."""
        if self._columns is None:
            rects = self._rects or ()
            shape = (len(rects), rects[0].ndim if rects else 0)
            self._columns = (
                np.array([rect.lo for rect in rects], dtype=np.int64).reshape(shape),
                np.array([rect.hi for rect in rects], dtype=np.int64).reshape(shape),
            )
        return self._columns

    def __len__(self) -> int:
        """The number of boxes."""
        return len(self._rects) if self._rects is not None else len(self.columns[0])

    @property
    def is_empty(self) -> bool:
        """Whether there are no points."""
        return len(self) == 0

    @property
    def ndim(self) -> int:
        """The number of axes; of a set without points 0."""
        return self._rects[0].ndim if self._rects else self.columns[0].shape[1]

    @property
    def volume(self) -> int:
        """The number of points."""
        if self._volume is None:
            if self._rects is not None:
                self._volume = sum([rect.volume for rect in self._rects])
            else:
                lo, hi = self.columns
                self._volume = int((hi - lo).prod(axis=1).sum())
        return self._volume

    @property
    def bounds(self) -> Rect:
        """The smallest box that contains the set; of a set without points the box without axes, which has none of them.

        Raises:
            RequestError: the set is empty, so that nothing says how many axes it has.
        """
        if self._bounds is None:
            if self.is_empty:
                raise RequestError("an empty set of points has no bounds; name a box without points instead")
            lo, hi = self.columns
            self._bounds = Rect(tuple(lo.min(axis=0).tolist()), tuple(hi.max(axis=0).tolist()))
        return self._bounds

    @property
    def lo(self) -> tuple[int, ...]:
        """The first index of the bounds on each axis."""
        return self.bounds.lo

    def slices(self, origin: Sequence[int]) -> tuple[slice, ...]:
        """The index of the bounds in an array whose element 0 is the point ``origin``."""
        return self.bounds.slices(origin)

    def positions(self) -> tuple[Column, ...]:
        """Every point as one index array per axis, relative to the first index of the bounds, the last axis fastest.

        They index the array that a task sees for the set: ``view[points.positions()]`` are its values.
        """
        lo, hi = self.columns
        extents = hi - lo
        counts = extents.prod(axis=1)
        box = np.repeat(np.arange(len(lo)), counts)
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        found: list[Column] = []
        for axis in reversed(range(lo.shape[1])):
            size = extents[box, axis]
            found.append(within % size + lo[box, axis] - self.bounds.lo[axis])
            within //= size
        return tuple(reversed(found))

    def points(self) -> Iterator[tuple[int, ...]]:
        """Every point, box by box."""
        return itertools.chain.from_iterable(rect.points() for rect in self.rects)

    def covers(self, other: IndexSpace) -> bool:
        """Whether every point of ``other`` is in the set."""
        return intersect(self, other).volume == other.volume

    def overlaps(self, other: IndexSpace) -> bool:
        """Whether a point of ``other`` is in the set."""
        return meets(self, other)

    def __or__(self, other: IndexSpace) -> RectSet:
        """The points of either."""
        if not self.is_empty and self.ndim == 1 and not other.is_empty:
            return _runs([self, other])
        return RectSet.of([*self.rects, *other.rects])

    def __and__(self, other: IndexSpace) -> RectSet:
        """The points of both."""
        return _as_set(intersect(self, other))

    def __sub__(self, other: IndexSpace) -> RectSet:
        """The points that ``other`` lacks."""
        return RectSet([rect for part in without(self, other) for rect in part.rects])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RectSet):
            return NotImplemented
        if self is other or self.is_empty or other.is_empty:
            return self.is_empty == other.is_empty
        if self.ndim == 1 == other.ndim:
            return all(map(np.array_equal, self.columns, other.columns))
        return self.rects == other.rects or (self.volume == other.volume and self.covers(other))

    def __hash__(self) -> int:
        # Equal sets may be stored as different boxes, so only what all forms share may enter.
        if self._hash is None:
            self._hash = hash((self.volume, None if self.is_empty else self.bounds))
        return self._hash

    def __repr__(self) -> str:
        return f"RectSet({self})"

    def __str__(self) -> str:
        shown = [str(rect) for rect in self.rects[:_SHOWN]]
        more = [f"... {len(self) - _SHOWN} more"] if len(self) > _SHOWN else []
        return "{" + ", ".join([*shown, *more]) + "}"


IndexSpace = Rect | RectSet
"""A set of points: dense, or sparse."""

_EMPTY = RectSet()
_SHOWN = 8


def simplest(space: IndexSpace, ndim: int) -> IndexSpace:
    """The same points as one box where they form one, so that what is dense is known to be.

    Args:
        space: the points.
        ndim: the number of axes, which an empty set does not know.
    """
    if isinstance(space, Rect) or len(space) > 1:
        return space
    return space.rects[0] if space.rects else _none(ndim)


def _none(ndim: int) -> IndexSpace:
    """No points: a box without any, unless on no axes, where every box has one."""
    return nothing(ndim) if ndim else _EMPTY


def meets(first: IndexSpace, second: IndexSpace) -> bool:
    """Whether the two share a point."""
    if isinstance(first, Rect) and isinstance(second, Rect):
        return first.overlaps(second)
    if first is second:
        return not first.is_empty
    if first.is_empty or second.is_empty or not first.bounds.overlaps(second.bounds):
        return False
    if first.ndim == 1:
        start, stop = _meetings(_columns(first), _columns(second))
        return bool((stop > start).any())
    boxes = first.rects
    return any(i < len(boxes) <= j for i, j in overlapping([*boxes, *second.rects]))


def intersect(first: IndexSpace, second: IndexSpace) -> IndexSpace:
    """The points of both."""
    if isinstance(first, Rect) and isinstance(second, Rect):
        return first.intersect(second)
    if first is second:
        return simplest(first, first.ndim)
    if first.is_empty or second.is_empty or not first.bounds.overlaps(second.bounds):
        return _none(max(first.ndim, second.ndim))
    for one, other in ((first, second), (second, first)):
        if isinstance(one, Rect) and one.contains(other.bounds):
            return simplest(other, other.ndim)
    if first.ndim == 1:
        return simplest(RectSet.of_columns(*_intersect_runs(_columns(first), _columns(second))), 1)
    count = len(first.rects)
    boxes = [*first.rects, *second.rects]
    pairs = [boxes[i].intersect(boxes[j]) for i, j in overlapping(boxes) if i < count <= j]
    return simplest(RectSet(merge(pairs)), first.ndim)


def without(first: IndexSpace, second: IndexSpace) -> tuple[IndexSpace, ...]:
    """The points that ``second`` lacks, as disjoint index spaces that are not empty: boxes, or one sparse one."""
    if isinstance(first, Rect) and isinstance(second, Rect):
        return () if first == second else first.subtract(second)
    if first is second:
        return ()
    if first.is_empty or second.is_empty or not first.bounds.overlaps(second.bounds):
        return () if first.is_empty else (first,)
    if first.ndim == 1:
        lo, hi = _columns(second)
        ends = first.bounds
        gaps = np.concatenate(([[ends.lo[0]]], hi)), np.concatenate((lo, [[ends.hi[0]]]))
        kept = (gaps[0] < gaps[1])[:, 0]
        rest = RectSet.of_columns(*_intersect_runs(_columns(first), (gaps[0][kept], gaps[1][kept])))
    else:
        count = len(first.rects)
        boxes = [*first.rects, *second.rects]
        left: list[tuple[Rect, ...]] = [(rect,) for rect in first.rects]
        for i, j in overlapping(boxes):
            if i < count <= j:
                left[i] = tuple([piece for part in left[i] for piece in part.subtract(boxes[j])])
        rest = RectSet(merge([rect for rects in left for rect in rects]))
    return () if rest.is_empty else (simplest(rest, first.ndim),)


def crossing(spaces: Sequence[IndexSpace]) -> Iterator[tuple[int, int]]:
    """Every pair of positions (i < j) whose index spaces share a point."""
    for i, j in overlapping([space.bounds for space in spaces]):
        if (isinstance(spaces[i], Rect) and isinstance(spaces[j], Rect)) or meets(spaces[i], spaces[j]):
            yield i, j


def part(space: IndexSpace, parts: int) -> tuple[IndexSpace, ...]:
    """The points in at most so many disjoint parts of nearly equal size, none of them empty.

    A box is cut along its longest axis, the first of several; a sparse space between its boxes.
    """
    if isinstance(space, Rect):
        shape = space.shape
        if parts < 2 or not shape:
            return (space,)
        axis = shape.index(max(shape))
        return space.split(axis, min(parts, shape[axis]))
    lo, hi = space.columns
    sums = np.cumsum((hi - lo).prod(axis=1))
    ends = np.unique(np.searchsorted(sums, space.volume * np.arange(1, parts + 1) // parts) + 1)
    starts = np.concatenate(([0], ends[:-1]))
    return tuple(simplest(RectSet.of_columns(lo[i:j], hi[i:j]), space.ndim) for i, j in zip(starts, ends, strict=True))


def union(spaces: Sequence[IndexSpace]) -> RectSet:
    """The points of any of them."""
    filled = [space for space in spaces if not space.is_empty]
    if filled and filled[0].ndim == 1:
        return _runs(filled)
    return RectSet.of([rect for space in filled for rect in space.rects])


def unite(spaces: Sequence[IndexSpace]) -> tuple[IndexSpace, ...]:
    """Disjoint index spaces, as few as joining makes them: boxes while all are boxes, else one sparse space."""
    boxes = [space for space in spaces if isinstance(space, Rect)]
    if len(boxes) == len(spaces):
        return merge(boxes)
    if len(spaces) == 1:
        return tuple(spaces)
    joined = union(spaces)
    return (simplest(joined, joined.ndim),)


def as_one(spaces: Sequence[IndexSpace]) -> IndexSpace:
    """One index space of the points of disjoint ones, of which there is at least one."""
    found = unite(spaces)
    if len(found) == 1:
        return found[0]
    return RectSet([rect for space in found for rect in space.rects])


def by_place(space: IndexSpace) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What index spaces are ordered by."""
    bounds = space.bounds
    return bounds.lo, bounds.hi


def _as_set(space: IndexSpace) -> RectSet:
    return space if isinstance(space, RectSet) else RectSet(space.rects)


def _columns(space: IndexSpace) -> tuple[Column, Column]:
    if isinstance(space, RectSet):
        return space.columns
    return np.array([space.lo], dtype=np.int64), np.array([space.hi], dtype=np.int64)


def _meetings(first: tuple[Column, Column], second: tuple[Column, Column]) -> tuple[Column, Column]:
    """For each run of the first the range of runs of the second that it shares a point with."""
    start = np.searchsorted(second[1][:, 0], first[0][:, 0], side="right")
    stop = np.searchsorted(second[0][:, 0], first[1][:, 0], side="left")
    return start, stop


def _intersect_runs(first: tuple[Column, Column], second: tuple[Column, Column]) -> tuple[Column, Column]:
    if len(first[0]) > len(second[0]):
        first, second = second, first
    start, stop = _meetings(first, second)
    counts = np.maximum(stop - start, 0)
    one = np.repeat(np.arange(len(counts)), counts)
    other = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts) + start[one]
    return np.maximum(first[0][one], second[0][other]), np.minimum(first[1][one], second[1][other])


def join_runs(lo: Column, hi: Column) -> tuple[Column, Column]:
    """Runs that may overlap or touch, none of them empty, as ascending ones that do not.

    Args:
        lo: first index of each run.
        hi: one past its last index.
    """
    if not lo.size:
        return lo, hi
    order = np.argsort(lo, kind="stable")
    lo, hi = lo[order], np.maximum.accumulate(hi[order])
    first = np.concatenate(([True], lo[1:] > hi[:-1]))
    last = np.concatenate((first[1:], [True]))
    return lo[first], hi[last]


def _runs(spaces: Sequence[IndexSpace]) -> RectSet:
    """The points of any of some index spaces on one axis."""
    columns = [_columns(space) for space in spaces]
    ends = [np.concatenate([column[end][:, 0] for column in columns]) for end in (0, 1)]
    lo, hi = join_runs(ends[0], ends[1])
    return RectSet.of_columns(lo[:, None], hi[:, None])
