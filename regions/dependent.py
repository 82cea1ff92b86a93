"""Dependent partitions: sub-spaces computed from the values of a field, by array operations.

After Treichler, Sharma, Harris, Aiken, "Dependent Partitioning" (OOPSLA 2016), sections 3 and 4. A pointer is the
row-major number of a point in the bounds of the region that it points into; a negative one points nowhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from maniple.process.error import RequestError
from maniple.regions.index_space import Column, IndexSpace, RectSet, intersect, join_runs, simplest
from maniple.regions.rectangle import Rect, nothing
from maniple.regions.subspace import Partition

Values = np.ndarray[Any, np.dtype[np.integer[Any]]]
Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]

# Below this many marks per point of a range, sorting the marked points costs less than looking at the whole range.
_THIN = 1 / 32


def by_field(space: IndexSpace, values: Values, colors: Rect) -> Partition:
    """The partition in which each point has the colour that its value names.

    Args:
        space: what is cut.
        values: for each point of the bounds of ``space`` the row-major number of a colour; other numbers name none.
        colors: the colour space.
    """
    frame = _frame(space, values)
    flat = np.asarray(values).reshape(-1)
    if isinstance(space, RectSet):
        inside = np.zeros(frame.shape, dtype=np.bool_)
        inside[space.positions()] = True
        flat = np.where(inside.reshape(-1), flat, -1)
    changed = np.ones(flat.size, dtype=np.bool_)
    np.not_equal(flat[1:], flat[:-1], out=changed[1:])
    changed[:: frame.shape[-1]] = True
    starts = np.flatnonzero(changed)
    stops = np.append(starts[1:], flat.size)
    named = flat[starts]
    known = (named >= 0) & (named < colors.volume)
    starts, stops, named = starts[known], stops[known], named[known]
    # A stable sort of small integers is a radix sort.
    order = np.argsort(named.astype(np.min_scalar_type(max(colors.volume - 1, 0))), kind="stable")
    ends = np.searchsorted(named[order], np.arange(colors.volume + 1))
    groups = [order[begin:end] for begin, end in itertools.pairwise(ends)]
    return Partition(space, colors, tuple([_of_runs(starts[group], stops[group], frame) for group in groups]))


def image(partition: Partition, pointers: Sequence[Values], target: IndexSpace, frame: Rect) -> Partition:
    """The partition of the target whose colour i has the points that colour i of a partition points to.

    Args:
        partition: of the region that holds the pointers.
        pointers: one array over the bounds of the partition's parent; or two, the first and one past the last pointer
            of a range.
        target: what is cut; what points outside of it is left out.
        frame: the bounds of the whole region that the target is part of, in which pointers are numbered.

    Raises:
        RequestError: a pointer that is not negative is the number of no point.
    """
    source = _frame(partition.parent, *pointers)
    _check_pointers(pointers, partition.parent, source, frame)
    found: list[IndexSpace] = []
    for space in partition.subspaces:
        chosen = [_at(values, space, source) for values in pointers]
        runs = _mark(chosen[0]) if len(chosen) == 1 else _cover(chosen[0], chosen[1])
        found.append(intersect(_of_runs(*_within_rows(*runs, frame), frame), target))
    return Partition(target, partition.colors, tuple(found))


def preimage(partition: Partition, pointers: Sequence[Values], source: IndexSpace, frame: Rect) -> Partition:
    """The partition of the source whose colour i has the points that point into colour i of a partition.

    Args:
        partition: of the region that is pointed into.
        pointers: one array over the bounds of the source; or two, the first and one past the last pointer of a range.
        source: what is cut: the index space of the pointers.
        frame: the bounds of the whole region that is pointed into, in which pointers are numbered.

    Raises:
        RequestError: a pointer that is not negative is the number of no point.
    """
    bounds = _frame(source, *pointers)
    _check_pointers(pointers, source, bounds, frame)
    first = np.asarray(pointers[0]).reshape(-1)
    if len(pointers) == 1 and partition.disjoint:
        owner = np.full(frame.volume + 1, -1, dtype=np.int64)
        for number, space in enumerate(partition.subspaces):
            owner[:-1].reshape(frame.shape)[_index(space, frame)] = number
        # Whatever is negative, or belongs to no point of the source, points to the last element: to no colour.
        pointed = np.where((first >= 0) & (first < frame.volume), first, frame.volume)
        return by_field(source, owner[pointed].reshape(bounds.shape), partition.colors)
    found: list[IndexSpace] = []
    for space in partition.subspaces:
        held = np.zeros(frame.shape, dtype=np.bool_)
        held[_index(space, frame)] = True
        before = np.concatenate(([0], np.cumsum(held.reshape(-1))))
        stop = first + 1 if len(pointers) == 1 else np.asarray(pointers[1]).reshape(-1)
        low, high = np.clip(first, 0, frame.volume), np.clip(stop, 0, frame.volume)
        points = np.flatnonzero((before[np.maximum(low, high)] > before[low]) & (first >= 0))
        found.append(intersect(_of_runs(*_within_rows(*_runs_of_points(points), bounds), bounds), source))
    return Partition(source, partition.colors, tuple(found))


def _frame(space: IndexSpace, *arrays: Values) -> Rect:
    """The bounds of an index space that has axes, over which the arrays are given."""
    bounds = space.bounds
    if not bounds.ndim:
        raise RequestError("a dependent partition needs an index space with at least one axis; a scalar has none")
    for values in arrays:
        if tuple(values.shape) != bounds.shape:
            msg = f"expected values of shape {bounds.shape} for {space}, got {tuple(values.shape)}"
            raise RequestError(msg)
        if values.dtype.kind not in "iu":
            msg = f"expected whole numbers for colours and pointers, got elements of type {values.dtype}"
            raise RequestError(msg)
    return bounds


def _check_pointers(pointers: Sequence[Values], source: IndexSpace, bounds: Rect, frame: Rect) -> None:
    # One past the last point may end a range.
    for values, end in zip(pointers, (frame.volume, frame.volume + 1), strict=False):
        chosen = _at(values, source, bounds)
        if chosen.size and int(chosen.max()) >= end:
            msg = f"expected pointers below {end} into {frame}, got {int(chosen.max())}; a negative one points nowhere"
            raise RequestError(msg)


def _index(space: IndexSpace, frame: Rect) -> tuple[slice, ...] | tuple[Column, ...]:
    """The index of a space in an array over a frame that contains it."""
    if isinstance(space, Rect):
        return space.slices(frame.lo)
    shift = [low - origin for low, origin in zip(space.lo, frame.lo, strict=True)]
    return tuple(axis + offset for axis, offset in zip(space.positions(), shift, strict=True))


def _at(values: Values, space: IndexSpace, frame: Rect) -> Column:
    """The values at the points of a space, in one row."""
    return np.asarray(values)[_index(space, frame)].reshape(-1).astype(np.int64, copy=False)


def _mark(points: Column) -> tuple[Column, Column]:
    """The runs of points that occur among some numbers, of which the negative ones count for nothing."""
    if points.size and int(points.min()) < 0:
        points = points[points >= 0]
    if not points.size:
        return points, points
    low, high = int(points.min()), int(points.max()) + 1
    if points.size < (high - low) * _THIN:
        return _runs_of_points(np.sort(points))
    mask = np.zeros(high - low + 2, dtype=np.bool_)
    mask[points - (low - 1)] = True
    edges = np.flatnonzero(mask[1:] != mask[:-1]) + low
    return edges[::2], edges[1::2]


def _runs_of_points(points: Column) -> tuple[Column, Column]:
    """The runs of ascending points, which may be repeated."""
    if not points.size:
        return points, points
    breaks = np.flatnonzero(np.diff(points) > 1) + 1
    return points[np.concatenate(([0], breaks))], points[np.concatenate((breaks - 1, [-1]))] + 1


def _cover(low: Column, high: Column) -> tuple[Column, Column]:
    """The runs that ranges cover together; a range that is empty or begins below 0 counts for nothing."""
    kept = (low < high) & (low >= 0)
    return join_runs(low[kept], high[kept])


def _within_rows(starts: Column, stops: Column, frame: Rect) -> tuple[Column, Column]:
    """Runs of row-major numbers cut where a row ends."""
    if frame.ndim == 1 or not starts.size:
        return starts, stops
    width = frame.shape[-1]
    counts = (stops - 1) // width - starts // width + 1
    run = np.repeat(np.arange(len(starts)), counts)
    row = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts) + (starts // width)[run]
    return np.maximum(starts[run], row * width), np.minimum(stops[run], (row + 1) * width)


def _of_runs(starts: Column, stops: Column, frame: Rect) -> IndexSpace:
    """The index space of ascending runs of row-major numbers, none of which crosses the end of a row."""
    if not len(starts):
        return nothing(frame.ndim)
    if frame.ndim == 1:
        lo, hi = starts[:, None] + frame.lo[0], stops[:, None] + frame.lo[0]
        touching = starts[1:] == stops[:-1]
        if touching.any():
            lo, hi = lo[np.append(True, ~touching)], hi[np.append(~touching, True)]
        return simplest(RectSet.of_columns(lo, hi), 1)
    lo = np.stack(np.unravel_index(starts, frame.shape), axis=1).astype(np.int64) + np.asarray(frame.lo)
    hi = lo + 1
    hi[:, -1] += stops - starts - 1
    for axis in reversed(range(frame.ndim - 1)):
        lo, hi = _stack(lo, hi, axis)
    order = np.lexsort(lo.T[::-1])
    return simplest(RectSet.of_columns(lo[order], hi[order]), frame.ndim)


def _stack(lo: Column, hi: Column, axis: int) -> tuple[Column, Column]:
    """Boxes after joining, along one axis, each to the one that it ends at with the same sides."""
    sides: Iterable[int] = [other for other in range(lo.shape[1]) if other != axis]
    order = np.lexsort((lo[:, axis], *(ends[:, side] for side in sides for ends in (hi, lo))))
    lo, hi = lo[order], hi[order]
    alike = (lo[1:, axis] == hi[:-1, axis]) & np.all(
        [(lo[1:, side] == lo[:-1, side]) & (hi[1:, side] == hi[:-1, side]) for side in sides], axis=0
    )
    first, last = np.append(True, ~alike), np.append(~alike, True)
    joined = hi[last]
    return lo[first], joined
