"""Analysis in columns: a region's uses of boxes as arrays, and what the compiled rules say of them as a fragment."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, cast

import numpy as np

from maniple.regions.columns import dependence, history, storage, validity
from maniple.regions.columns.boxes import AXES, HIGH, LOW, WIDTH
from maniple.regions.index_space import RectSet
from maniple.regions.rectangle import Rect
from maniple.regions.validity import Validity
from maniple.runtime.analysis import placed_use
from maniple.runtime.analysis.fragment import Blocks, Fragment
from maniple.runtime.analysis.fragment_kernels import tabulate_record
from maniple.runtime.analysis.placed_use import PlacedUses
from maniple.runtime.schedule.schedule import RowKind
from maniple.runtime.schedule.space import BoxSpaces

if TYPE_CHECKING:
    from maniple.regions.columns.boxes import Boxes
    from maniple.regions.privilege import Privilege
    from maniple.runtime.analysis.fragment import FragmentKey, Table
    from maniple.runtime.schedule.schedule import Column

__all__: list[str] = []

_TASK = (placed_use.MEMORY, placed_use.PROCESSOR, placed_use.COLOR)
"""What the compiled rules know of a task."""
_REDUCING = frozenset(map(int, (RowKind.FOLD, RowKind.ALL_REDUCE, RowKind.REDUCE_SCATTER)))
MOST_CELLS = 1 << 20
"""Boxes that cut a region into a grid of more cells than so many are analysed use by use."""
MOST_WORDS = 1 << 22
"""So are uses of which more words would say which contributions wait for the cells; every use looks at them all."""
MOST_TILES = 4096
"""So are uses of more tiles in each memory: whoever wrote a tile is found in a list, where a launch has a tree."""
ENTRIES = 256
"""Room for a record at first; doubled until it is enough."""
MOST_ENTRIES = 1 << 15
"""More room than that is given back after an analysis."""


class _Room(threading.local):
    """Room for the records of a thread's analyses, kept from one to the next."""

    def __init__(self) -> None:
        self.past, self.kept = history.room(ENTRIES), storage.room(ENTRIES)

    def grow(self) -> bool:
        """Double what was too small; whether anything was."""
        if self.past[-1][history.FULL]:
            self.past = history.room(2 * len(self.past[0]))
        elif self.kept[8][storage.FULL]:
            self.kept = storage.room(2 * len(self.kept[0]))
        else:
            return False
        return True

    def shrink(self) -> None:
        """Give back what was made for something large."""
        if len(self.past[0]) > MOST_ENTRIES:
            self.past = history.room(ENTRIES)
        if len(self.kept[0]) > MOST_ENTRIES:
            self.kept = storage.room(ENTRIES)


_ROOM = _Room()


def analyse(key: FragmentKey, hosts: tuple[int, ...], *, leaves: bool = True) -> Fragment | None:
    """Analyse a region's uses; None if columns do not hold them, or they are to be refused.

    Args:
        key: the uses.
        hosts: the host of each memory.
        leaves: whether it is found out at once what is valid after a step, or when somebody asks.
    """
    shape = _Shape.of(key, len(hosts))
    if shape is None or dependence.interferes(shape.uses, shape.tasks, shape.boxes):
        return None
    near = _near(hosts)
    while True:
        moves, _, edges, _, elements, carried, left, waits = dependence.analyse(
            shape.layout, shape.home, shape.uses, shape.tasks, shape.boxes, near, _ROOM.past, _ROOM.kept, True, leaves
        )
        if not _ROOM.grow():
            break
    refused = waits or dependence.UNWRITTEN in moves[:, history.KIND].tolist()
    found = None if refused else _fragment(key, shape, moves, edges, carried, left, elements)
    _ROOM.shrink()
    if found is None or leaves:
        return found
    return replace(found, leave=partial(_leave_later, key, hosts))


def _leave_later(key: FragmentKey, hosts: tuple[int, ...]) -> Validity:
    """What is valid after a step, by another analysis: of steps of training nobody asks."""
    return cast("Fragment", analyse(key, hosts)).leaves


@lru_cache(maxsize=16)
def _near(hosts: tuple[int, ...]) -> Column:
    """The host of each memory; nobody writes there."""
    return np.asarray(hosts, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """A region's uses as arrays, on the axes that are longer than one.

    Args:
        bounds: the region's elements.
        axes: those that are longer than one.
        memories: how many there are.
        op: the symbol of the operator that its uses fold by, if any does.
        home: what is valid before a step, labelled by memory.
        uses: (first task, one past the last, privilege) of each use.
        tasks: (memory, processor, colour) of each task.
        boxes: what each uses.
        points: the number of each in its launch.
    """

    bounds: Rect
    axes: tuple[int, ...]
    memories: int
    op: str
    home: Boxes
    uses: Table
    tasks: Table
    boxes: Boxes
    points: Column

    @classmethod
    def of(cls, key: FragmentKey, memories: int) -> _Shape | None:
        """The uses of a key; None if columns do not hold them."""
        ops = {privilege.op.symbol for privilege, _ in key.uses if privilege.op is not None}
        placed: dict[int, PlacedUses | None] = {}
        for _, tasks in key.uses:
            if id(tasks) not in placed:
                placed[id(tasks)] = PlacedUses.of(tasks)
        tables = [found.table for found in (placed[id(tasks)] for _, tasks in key.uses) if found is not None]
        most = max(map(len, tables), default=0)
        if len(ops) > 1 or any(key.bounds.lo) or None in placed.values() or not 0 < most <= MOST_TILES * memories:
            return None
        table = np.concatenate([found for found in tables if len(found)])
        axes = tuple([axis for axis, extent in enumerate(key.bounds.hi) if extent != 1])
        if len(axes) > AXES:
            return None
        home = _home(key, axes)
        boxes, uses = _boxes(table[:, placed_use.BOX :], axes, len(key.bounds.hi)), list[tuple[int, int, int]]()
        count = waiting = 0
        for (privilege, _), own in zip(key.uses, tables, strict=True):
            uses.append((count, count + len(own), _privilege(privilege)))
            count += len(own)
            waiting = count if privilege.reduces else waiting
        if not _fits(key, axes, home, boxes, waiting // 32):
            return None
        placing, op = np.ascontiguousarray(table[:, _TASK]), next(iter(ops), "")
        return cls(key.bounds, axes, memories, op, home, np.asarray(uses), placing, boxes, table[:, 0].copy())

    @property
    def layout(self) -> Column:
        """The extents of the axes; nobody counts bytes here."""
        extents = [self.bounds.hi[axis] for axis in self.axes]
        return np.asarray((*extents, *(1,) * (AXES - len(extents)), 1, 0))


def _fits(key: FragmentKey, axes: tuple[int, ...], home: Boxes, boxes: Boxes, words: int) -> bool:
    """Whether the boxes that cut a region make few enough cells; words say of each which contributions wait for it."""
    most = min(MOST_CELLS, MOST_WORDS // max(1, words))
    cuts, at_most = 2 * (len(home) + len(boxes)) + 1, 1
    for axis in axes:
        at_most *= min(cuts, key.bounds.hi[axis])
    if at_most <= most:
        return True
    cells = 1
    for place, axis in enumerate(axes):
        ends = [table[:, column + place] for table in (home, boxes) for column in (LOW, HIGH)]
        cells *= len(np.unique(np.concatenate((*ends, (0, key.bounds.hi[axis]))))) - 1
    return cells <= most


def _home(key: FragmentKey, axes: tuple[int, ...]) -> Boxes:
    """What is valid before a step, labelled by memory."""
    held = [(memory, *rect.lo, *rect.hi) for memory, rects in key.home for rect in rects if not rect.is_empty]
    table = np.asarray(held, dtype=np.int64).reshape(len(held), 1 + 2 * key.bounds.ndim)
    found = _boxes(table[:, 1:], axes, key.bounds.ndim)
    found[:, 0] = table[:, 0]
    return found


def _boxes(ends: Table, axes: tuple[int, ...], ndim: int) -> Boxes:
    """The low and high ends of boxes on all axes as boxes on some, without a label."""
    table, count = np.zeros((len(ends), WIDTH), dtype=np.int64), len(axes)
    table[:, HIGH + count :] = 1
    both = ends.reshape(len(ends), 2, ndim)
    kept = both if count == ndim else both[:, :, axes]
    table[:, LOW : LOW + count], table[:, HIGH : HIGH + count] = kept[:, 0], kept[:, 1]
    return table


def _privilege(privilege: Privilege) -> int:
    if privilege.reduces:
        return validity.ACCUMULATE if privilege.accumulates else validity.REDUCE
    if privilege.writes:
        return validity.READ_WRITE if privilege.reads else validity.WRITE_DISCARD
    return validity.READ


def _fragment(
    key: FragmentKey,
    shape: _Shape,
    moves: Table,
    edges: Table,
    carried: Table,
    left: Boxes,
    elements: Column,
) -> Fragment:
    """What the rules found of a region, as the runtime knows it."""
    tasks, accesses, transfers, pieces, instances, parts, boxes, first, last, ends = tabulate_record(
        shape.uses, shape.tasks, shape.points, shape.boxes, shape.memories, _ROOM.kept
    )
    spaces = BoxSpaces(shape.bounds, shape.axes, boxes, first, last)
    kinds = moves[:, history.KIND].copy()
    folds = kinds == RowKind.FOLD
    return Fragment(
        tasks=tasks,
        uses=len(key.uses),
        serves=moves[:, history.USE].copy(),
        kinds=kinds,
        processors=np.where(folds, moves[:, history.BY], -1),
        elements=np.where(folds, 0, moves[:, history.ELEMENTS]),
        ops=tuple([shape.op if kind in _REDUCING else "" for kind in kinds.tolist()]),
        accesses=accesses,
        transfers=transfers,
        pieces=pieces,
        parts=parts,
        instances=instances,
        spaces=spaces,
        edges=edges,
        carried=carried,
        leave=partial(_leaves, left, spaces),
        blocks=Blocks(ends, elements),
    )


def _leaves(table: Boxes, spaces: BoxSpaces) -> Validity:
    """What is valid where, from boxes labelled by memory."""
    held: dict[int, list[Rect]] = {}
    for memory, rect in zip(table[:, 0].tolist(), spaces.rects(table[:, LOW:]), strict=True):
        held.setdefault(memory, []).append(rect)
    return Validity.of_holdings({memory: RectSet.of(rects) for memory, rects in held.items()})
