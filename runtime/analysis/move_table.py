"""Move tables: the movements of a fragment as `regions/columns` has them, which is how they are priced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from maniple.regions.columns.boxes import AXES
from maniple.regions.columns.history import BY, ELEMENTS, FROM, GROUP, GROUP_SIZE, KIND, NONE, TO, TOUCHED, USE
from maniple.regions.columns.row_major import touched_by_part
from maniple.regions.index_space import RectSet
from maniple.runtime.analysis import fragment as columns
from maniple.runtime.schedule.schedule import RowKind
from maniple.runtime.schedule.space import BoxSpaces

if TYPE_CHECKING:
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
    volumes, memories, kinds = fragment.volumes, fragment.instances[:, 0], fragment.kinds
    moves = np.full((len(kinds), TOUCHED + 1), NONE, dtype=np.int64)
    moves[:, USE], moves[:, KIND], moves[:, BY] = fragment.serves, kinds, fragment.processors
    read = np.zeros(len(kinds), dtype=np.int64)
    np.add.at(read, fragment.accesses[:, columns.NODE], volumes[fragment.accesses[:, columns.SPACE]])
    moves[:, ELEMENTS] = np.where(kinds == RowKind.FOLD, read, fragment.elements)
    pushes, pieces = fragment.transfers, fragment.pieces
    node, source = pushes[:, columns.NODE], memories[pushes[:, columns.SOURCE]]
    target = memories[pushes[:, columns.TARGET]]
    copies = kinds[node] == RowKind.COPY
    moves[node[copies], FROM], moves[node[copies], TO] = source[copies], target[copies]
    # Who owns what of a collective: who folds it, or, where nothing is folded, who sends it, to whomever it does first.
    width = int(memories.max(initial=0)) + 1
    sender, receiver = node * width + source, node * width + target
    sends = ~copies & (_first(sender, target) == target) & ~np.isin(node, pieces[:, columns.NODE])
    folder = pieces[:, columns.NODE] * width + pieces[:, columns.MEMORY]
    owners = np.concatenate((sender[sends], folder))
    spaces = np.concatenate((pushes[copies, columns.SPACE], pushes[sends, columns.SPACE], pieces[:, columns.SPACE]))
    touched = _touched(fragment, spaces, bounds, itemsize, line)
    alone = int(np.count_nonzero(copies))
    moves[node[copies], TOUCHED] = touched[:alone]
    group = np.unique(np.concatenate((sender[~copies], receiver[~copies])))
    members = np.zeros((len(group), 4), dtype=np.int64)
    members[:, 0] = group % width
    np.add.at(members[:, 1], np.searchsorted(group, owners), volumes[spaces[alone:]])
    np.add.at(members[:, 2], np.searchsorted(group, owners), touched[alone:])
    found, begins, counts = np.unique(group // width, return_index=True, return_counts=True)
    moves[found, GROUP], moves[found, GROUP_SIZE] = begins, counts
    # All other members send what an owner folds to tiles of one size.
    fed = pushes[:, columns.FEEDS] != NONE
    tiles = fragment.instances[pushes[fed, columns.TARGET], 3]
    np.add.at(members[:, 3], np.searchsorted(group, receiver[fed]), tiles)
    members[:, 3] //= np.repeat(np.maximum(counts - 1, 1), counts)
    return moves, members


def _first(keys: Column, values: Column) -> Column:
    """For each key the value that stands beside its first place."""
    _, first, number = np.unique(keys, return_index=True, return_inverse=True)
    found: Column = values[first][number]
    return found


def _touched(fragment: Fragment, spaces: Column, bounds: Rect, itemsize: int, line: int) -> Column:
    """The bytes that a processor touches to read each of some spaces."""
    if not line or not len(spaces):
        return np.zeros(len(spaces), dtype=np.int64)
    found = fragment.spaces
    if isinstance(found, BoxSpaces):
        begins, counts = found.first[spaces], found.last[spaces] - found.first[spaces]
        starts = np.concatenate(([0], np.cumsum(counts)))
        table = found.boxes[np.repeat(begins - starts[:-1], counts) + np.arange(starts[-1])]
        shape = [bounds.hi[axis] for axis in found.axes]
        return touched_by_part(table, starts, np.asarray((*shape, *(1,) * (AXES - len(shape)), itemsize, line)))
    corners = [_corners(found[space]) for space in spaces.tolist()]
    table = np.zeros((sum(len(low) for low, _ in corners), 1 + 2 * bounds.ndim), dtype=np.int64)
    table[:, 1 : 1 + bounds.ndim] = np.concatenate([low for low, _ in corners]) - bounds.lo
    table[:, 1 + bounds.ndim :] = np.concatenate([high for _, high in corners]) - bounds.lo
    starts = np.cumsum([0, *(len(low) for low, _ in corners)], dtype=np.int64)
    return touched_by_part(table, starts, np.asarray((*bounds.shape, itemsize, line), dtype=np.int64))


def _corners(space: IndexSpace) -> tuple[Corners, Corners]:
    """The first indices and one past the last ones of the boxes of an index space."""
    if isinstance(space, RectSet):
        return space.columns
    return np.asarray([space.lo], dtype=np.int64), np.asarray([space.hi], dtype=np.int64)
