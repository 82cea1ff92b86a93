"""Analysis in columns: a region's uses of boxes as arrays, and what the compiled rules say of them as a fragment."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from maniple.regions.columns import dependence, history, storage, validity
from maniple.regions.columns.boxes import AXES, HIGH, LOW, WIDTH
from maniple.regions.index_space import RectSet
from maniple.regions.rectangle import Rect
from maniple.regions.validity import Validity
from maniple.runtime.analysis.fragment import Fragment
from maniple.runtime.schedule.schedule import RowKind
from maniple.runtime.schedule.space import BoxSpaces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.regions.columns.boxes import Boxes
    from maniple.regions.privilege import Privilege
    from maniple.runtime.analysis.fragment import FragmentKey, Table, Uses
    from maniple.runtime.schedule.schedule import Column

__all__: list[str] = []

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
        elif self.kept[-1][storage.FULL]:
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


def analyse(key: FragmentKey, hosts: tuple[int, ...]) -> Fragment | None:
    """Analyse a region's uses; None if columns do not hold them, or they are to be refused.

    Args:
        key: the uses.
        hosts: the host of each memory.
    """
    shape = _Shape.of(key, len(hosts))
    if shape is None or dependence.interferes(shape.uses, shape.tasks, shape.boxes):
        return None
    near = np.asarray(hosts, dtype=np.int64)
    while True:
        moves, _, edges, _, _, carried, left, waits = dependence.analyse(
            shape.layout, shape.home, shape.uses, shape.tasks, shape.boxes, near, _ROOM.past, _ROOM.kept, True
        )
        if not _ROOM.grow():
            break
    refused = waits or bool((moves[:, history.KIND] == dependence.UNWRITTEN).any())
    found = None if refused else _fragment(key, shape, moves, edges, carried, left)
    _ROOM.shrink()
    return found


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
    """

    bounds: Rect
    axes: tuple[int, ...]
    memories: int
    op: str
    home: Boxes
    uses: Table
    tasks: Table
    boxes: Boxes

    @classmethod
    def of(cls, key: FragmentKey, memories: int) -> _Shape | None:
        """The uses of a key; None if columns do not hold them."""
        ops = {privilege.op.symbol for privilege, _ in key.uses if privilege.op is not None}
        axes = _axes(key)
        most = max((len(tasks) for _, tasks in key.uses), default=0)
        if len(ops) > 1 or axes is None or not 0 < most <= MOST_TILES * memories:
            return None
        home = _boxes([(memory, rect) for memory, rects in key.home for rect in rects if not rect.is_empty], axes)
        return cls(key.bounds, axes, memories, next(iter(ops), ""), home, *_columns(key.uses, axes))

    @property
    def layout(self) -> Column:
        """The extents of the axes; nobody counts bytes here."""
        extents = [self.bounds.hi[axis] for axis in self.axes]
        return np.asarray((*extents, *(1,) * (AXES - len(extents)), 1, 0))


def _axes(key: FragmentKey) -> tuple[int, ...] | None:
    """The axes of a region that are longer than one; None where columns do not hold its uses."""
    bounds, cuts = key.bounds, [set[int]() for _ in key.bounds.lo]
    if any(bounds.lo):
        return None
    rects = {rect for _, rects in key.home for rect in rects}
    for _, tasks in key.uses:
        for task in tasks:
            if task.shared or not isinstance(task.rect, Rect):
                return None
            rects.add(task.rect)
    for rect in rects:
        for axis, found in enumerate(cuts):
            found |= {rect.lo[axis], rect.hi[axis]}
    axes = tuple([axis for axis, extent in enumerate(bounds.hi) if extent != 1])
    cells = 1
    for axis in axes:
        cells *= len(cuts[axis] | {0, bounds.hi[axis]}) - 1
    fits = len(axes) <= AXES and cells <= MOST_CELLS and cells * _words(key.uses) <= MOST_WORDS
    return axes if fits else None


def _words(uses: Uses) -> int:
    """How many words a cell needs for the contributions that wait for it."""
    tasks = last = 0
    for privilege, placed in uses:
        tasks += len(placed)
        last = tasks if privilege.reduces else last
    return last // 32


def _boxes(labelled: Sequence[tuple[int, Rect]], axes: tuple[int, ...]) -> Boxes:
    """Rectangles as boxes on some axes."""
    table = np.empty((len(labelled), WIDTH), dtype=np.int64)
    table[:, LOW:HIGH], table[:, HIGH:] = 0, 1
    table[:, 0] = [label for label, _ in labelled]
    for place, axis in enumerate(axes):
        table[:, LOW + place] = [rect.lo[axis] for _, rect in labelled]
        table[:, HIGH + place] = [rect.hi[axis] for _, rect in labelled]
    return table


def _columns(uses: Uses, axes: tuple[int, ...]) -> tuple[Table, Table, Boxes]:
    """Uses as (first task, one past the last, privilege), their tasks as (memory, processor, colour), their boxes."""
    table = np.empty((len(uses), 3), dtype=np.int64)
    rows: list[tuple[int, int, int]] = []
    labelled: list[tuple[int, Rect]] = []
    for number, (privilege, tasks) in enumerate(uses):
        colors: dict[tuple[int, ...], int] = {}
        first = len(rows)
        for task in tasks:
            rows.append((task.memory, task.processor, colors.setdefault(task.color, len(colors))))
            labelled.append((0, task.rect))  # type: ignore[arg-type]  # `_axes` has looked
        table[number] = first, len(rows), _privilege(privilege)
    return table, np.asarray(rows, dtype=np.int64).reshape(-1, 3), _boxes(labelled, axes)


def _privilege(privilege: Privilege) -> int:
    if privilege.reduces:
        return validity.REDUCE
    if privilege.writes:
        return validity.READ_WRITE if privilege.reads else validity.WRITE_DISCARD
    return validity.READ


def _fragment(key: FragmentKey, shape: _Shape, moves: Table, edges: Table, carried: Table, left: Boxes) -> Fragment:
    """What the rules found of a region, as the runtime knows it."""
    instances, boxes, accesses, transfers, pieces = _record()
    parts = _ROOM.kept[5][: _ROOM.kept[8][storage.PARTS]].copy()
    count = len(shape.tasks)
    # Every row of every table has a space of its own, in this order; that of a task is its box.
    ends = [(np.arange(count), np.arange(1, count + 1))]
    ends += [
        (table[:, storage.FIRST] + count, table[:, storage.LAST] + count) for table in (accesses, transfers, pieces)
    ]
    behind = count + len(boxes)
    ends.append((np.arange(behind, behind + len(instances)), np.arange(behind + 1, behind + len(instances) + 1)))
    first, last = (np.concatenate(columns) for columns in zip(*ends, strict=True))
    table = np.concatenate((shape.boxes, boxes, instances))
    spaces = BoxSpaces(shape.bounds, shape.axes, table, first, last)
    numbers = np.split(np.arange(len(first)), np.cumsum([len(columns) for columns, _ in ends[:-1]]))
    kinds = moves[:, history.KIND]
    folds = kinds == RowKind.FOLD
    reduces = folds | (kinds == RowKind.ALL_REDUCE) | (kinds == RowKind.REDUCE_SCATTER)
    elements = (instances[:, HIGH:] - instances[:, LOW:HIGH]).prod(axis=1)
    return Fragment(
        tasks=_tasks(key, shape),
        uses=len(key.uses),
        serves=moves[:, history.USE].copy(),
        kinds=kinds.copy(),
        processors=np.where(folds, moves[:, history.BY], -1),
        elements=np.where(folds, 0, moves[:, history.ELEMENTS]),
        ops=tuple([shape.op if fold else "" for fold in reduces.tolist()]),
        accesses=_select(accesses, count, numbers[1], storage.INSTANCE, storage.WRITES, storage.SLOT),
        transfers=_select(transfers, count, numbers[2], storage.SOURCE, storage.TARGET, storage.FEEDS, storage.AFTER),
        pieces=_select(
            pieces, count, numbers[3], storage.MEMORY, storage.TARGET, storage.FIRST_PART, storage.LAST_PART
        ),
        parts=parts,
        instances=np.column_stack(
            (instances[:, 0] // storage.KINDS, instances[:, 0] % storage.KINDS, numbers[4], elements)
        ),
        spaces=spaces,
        edges=edges,
        carried=carried,
        leave=partial(_leaves, left, spaces),
    )


def _record() -> tuple[Table, ...]:
    """What was kept of the last analysis: instances, boxes, accesses, transfers, pieces."""
    record = _ROOM.kept
    numbers = (storage.INSTANCES, storage.SPACES, storage.ACCESSES, storage.TRANSFERS, storage.PIECES)
    return tuple([table[: record[8][number]].copy() for table, number in zip(record[:5], numbers, strict=True)])


def _select(table: Table, tasks: int, spaces: Column, *columns: int) -> Table:
    """Columns of a table, behind the number of the movement and that of the space."""
    return np.column_stack((table[:, 0] - tasks, spaces, *[table[:, column] for column in columns]))


def _tasks(key: FragmentKey, shape: _Shape) -> Table:
    """What every task of every use uses."""
    uses, placed, at = shape.uses, shape.tasks, _ROOM.kept[6]
    found = np.empty((len(placed), 5), dtype=np.int64)
    use_of = np.repeat(np.arange(len(uses)), uses[:, 1] - uses[:, 0])
    # The place of a contribution is behind those of all memories.
    place = np.where(uses[use_of, 2] == validity.REDUCE, shape.memories + np.arange(len(placed)), placed[:, 0])
    found[:, 0], found[:, 1] = use_of, [task.point for _, tasks in key.uses for task in tasks]
    found[:, 2], found[:, 3], found[:, 4] = np.arange(len(placed)), at[place], uses[use_of, 2] != validity.READ
    return found


def _leaves(table: Boxes, spaces: BoxSpaces) -> Validity:
    """What is valid where, from boxes labelled by memory."""
    held: dict[int, list[Rect]] = {}
    for memory, rect in zip(table[:, 0].tolist(), spaces.rects(table[:, LOW:]), strict=True):
        held.setdefault(memory, []).append(rect)
    return Validity.of_holdings({memory: RectSet.of(rects) for memory, rects in held.items()})
