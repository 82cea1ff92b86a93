"""Move tables: the movements of a fragment as `regions/columns` has them, which is how they are priced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from maniple.regions.columns.boxes import AXES
from maniple.regions.index_space import RectSet
from maniple.runtime.analysis.move_kernels import tabulate_moves
from maniple.runtime.schedule.space import BoxSpaces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.regions.columns.history import Table
    from maniple.regions.columns.row_major import Column
    from maniple.regions.index_space import IndexSpace
    from maniple.regions.rectangle import Rect
    from maniple.runtime.analysis.fragment import Fragment

    Corners = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

__all__: list[str] = []


def tabulate(fragment: Fragment, bounds: Rect, itemsize: int, line: int) -> tuple[Table, Table]:
    """Give the movements of a fragment, and the members of their groups.

    Args:
        fragment: of a region.
        bounds: the region's elements.
        itemsize: bytes of an element.
        line: bytes of a cache line; 0 where nobody counts lines.
    """
    table, first, last, shape = _boxed(fragment.spaces, bounds)
    return tabulate_moves(
        (fragment.serves, fragment.kinds, fragment.processors, fragment.elements),
        (fragment.accesses, fragment.transfers, fragment.pieces, fragment.instances, _ends(fragment)),
        (table, first, last),
        np.asarray((*shape, itemsize, line), dtype=np.int64),
    )


def _ends(fragment: Fragment) -> Table:
    """The members of collectives of which the blocks are listed."""
    return np.zeros((0, 3), dtype=np.int64) if fragment.blocks is None else fragment.blocks.ends


def _boxed(spaces: Sequence[IndexSpace], bounds: Rect) -> tuple[Table, Column, Column, tuple[int, ...]]:
    """Spaces as boxes, the first of each and one past the last, and the extents of the axes that they have."""
    if isinstance(spaces, BoxSpaces):
        extents = tuple([bounds.hi[axis] for axis in spaces.axes])
        return spaces.boxes, spaces.first, spaces.last, (*extents, *(1,) * (AXES - len(extents)))
    corners = [_corners(space) for space in spaces]
    ends = np.cumsum([0, *(len(low) for low, _ in corners)], dtype=np.int64)
    table = np.zeros((int(ends[-1]), 1 + 2 * bounds.ndim), dtype=np.int64)
    if corners:
        table[:, 1 : 1 + bounds.ndim] = np.concatenate([low for low, _ in corners]) - bounds.lo
        table[:, 1 + bounds.ndim :] = np.concatenate([high for _, high in corners]) - bounds.lo
    return table, ends[:-1].copy(), ends[1:].copy(), bounds.shape


def _corners(space: IndexSpace) -> tuple[Corners, Corners]:
    """The first indices and one past the last ones of the boxes of an index space."""
    if isinstance(space, RectSet):
        return space.columns
    return np.asarray([space.lo], dtype=np.int64), np.asarray([space.hi], dtype=np.int64)
