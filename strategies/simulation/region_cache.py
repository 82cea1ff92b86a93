"""Uses: the launches of a step as arrays, and all that one region adds to the step, kept by what determines it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from maniple.process.error import RequestError
from maniple.regions.columns import storage
from maniple.regions.columns.boxes import AXES, WIDTH, Boxes, are_disjoint
from maniple.regions.columns.dependence import UNWRITTEN, analyse
from maniple.regions.columns.history import FULL, KIND, USE, Table, room
from maniple.regions.columns.validity import ACCUMULATE, GRADIENT, REDUCE, WRITE_DISCARD
from maniple.runtime.schedule.network import Column, Network
from maniple.runtime.schedule.traffic import price
from maniple.strategies.timing.tables import NUMBER_BITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maniple.regions.rectangle import Rect
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []

K = TypeVar("K")
V = TypeVar("V")

KEPT = 50_000
"""So many regions and shapes are kept to be found again; beyond, those go that were found longest ago."""
NOWHERE: Boxes = np.empty((0, WIDTH), dtype=np.int64)
"""The home of what does not outlive a step."""


@dataclass(frozen=True, slots=True, eq=False)
class UseShape:
    """One requirement of a launch, wherever its points run.

    Args:
        access: READ, READ_WRITE, WRITE_DISCARD, REDUCE, ACCUMULATE or GRADIENT.
        points: the points that use something.
        colors: a number for each of them, the same for replicas of one point, which are next to each other.
        boxes: what each of them uses.
        number: tells it from others.
        disjoint: whether no two boxes share an element.
    """

    access: int
    points: Column
    colors: Column
    boxes: Boxes
    number: int
    disjoint: bool


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """One requirement of a launch whose points have processors.

    Args:
        shape: the requirement.
        processors: of the points of the shape.
        key: what tells it from other uses.
    """

    shape: UseShape
    processors: Column
    key: tuple[int, bytes]


@dataclass(frozen=True, slots=True, eq=False)
class RegionRows:
    """All that one region adds to a step.

    Args:
        moves: the movements, as `history` has them.
        members: of their groups.
        columns: (use and number, nanoseconds, number of holds) of each movement.
        held: (lane, nanoseconds, bytes) of each hold.
        bytes: what each movement moves.
        edges: (node, node that waits), by ascending node: node t < tasks is task t, any other is movement t - tasks.
        sources: how many nodes others wait for.
        tasks: (use, point) of each task.
        memory_bytes: bytes of the instances in each memory.
    """

    moves: Table
    members: Table
    columns: Table
    held: Table
    bytes: Column
    edges: Table
    sources: int
    tasks: Table
    memory_bytes: Column


class Shapes:
    """The use shapes of a simulation; equal ones are one, as long as they are kept.

    Args:
        kept: how many are.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._found: dict[tuple[int, bytes, bytes, bytes], UseShape] = {}
        self._kept, self._made = kept, 0

    def shape(self, access: int, points: Column, colors: Column, boxes: Boxes) -> UseShape:
        """Give a use shape; the arguments are those of `UseShape`."""
        key = (access, points.tobytes(), colors.tobytes(), boxes.tobytes())
        found = self._found.pop(key, None)
        if found is None:
            disjoint = access == GRADIENT and are_disjoint(boxes)
            found = UseShape(access, points, colors, boxes, self._made, disjoint)
            self._made += 1
        _keep(self._found, key, found, self._kept)
        return found


def boxes_of(labelled: Iterable[tuple[int, Rect]]) -> Boxes:
    """Give labelled rectangles as boxes.

    Raises:
        RequestError: a rectangle has more axes than the simulator knows.
    """
    table = []
    for label, rect in labelled:
        more = AXES - len(rect.lo)
        if more < 0:
            raise RequestError(f"simulation: expected a region of at most {AXES} dimensions, got {rect}")
        table.append((label, *rect.lo, *(0,) * more, *rect.hi, *(1,) * more))
    return np.asarray(table, dtype=np.int64).reshape(-1, WIDTH)


class RegionCache:
    """What regions add to a step, by what determines it; layers that are alike share.

    Args:
        machine: the machine.
        kept: how many regions are kept.
    """

    def __init__(self, machine: Machine, kept: int = KEPT) -> None:
        self._kept = kept
        self.network = Network.of(machine)
        self.hits = self.misses = 0
        self._line = self.network.line
        self._memory_of = np.asarray([processor.memory for processor in machine.processors], dtype=np.int64)
        self._hosts = np.asarray([memory.host for memory in machine.memories], dtype=np.int64)
        self._found: dict[object, RegionRows] = {}
        self.shapes = Shapes()
        """The shapes of the uses that it is asked about: all simulations that share it tell them by their numbers."""
        self._past, self._storage = room(256), storage.room(1)

    def rows(self, layout: tuple[tuple[int, ...], int], home: Boxes, uses: Sequence[Use]) -> RegionRows:
        """Give what a region adds to a step.

        Args:
            layout: the region's shape, and the bytes of an element.
            home: what is valid before the step.
            uses: every use, in program order.

        Raises:
            RequestError: something is read that nothing wrote.
        """
        alone = sum(use.shape.access == GRADIENT for use in uses) == 1
        key = (alone, layout, home.tobytes(), *[use.key for use in uses])
        found = self._found.pop(key, None)
        if found is None:
            self.misses += 1
            found = self._analyse(layout, home, uses, [privilege(use, alone=alone) for use in uses])
        else:
            self.hits += 1
        _keep(self._found, key, found, self._kept)
        return found

    def _analyse(
        self, layout: tuple[tuple[int, ...], int], home: Boxes, uses: Sequence[Use], privileges: list[int]
    ) -> RegionRows:
        shape, itemsize = layout
        arranged = np.asarray((*shape, *(1,) * (AXES - len(shape)), itemsize, self._line))
        counts = [len(use.processors) for use in uses]
        ends = np.cumsum(counts)
        table = np.empty((len(uses), 3), dtype=np.int64)
        table[:, 0], table[:, 1], table[:, 2] = ends - counts, ends, privileges
        processors = np.concatenate([use.processors for use in uses])
        tasks = np.empty((len(processors), 3), dtype=np.int64)
        tasks[:, 0], tasks[:, 1] = self._memory_of[processors], processors
        tasks[:, 2] = np.concatenate([use.shape.colors for use in uses])
        boxes = np.concatenate([use.shape.boxes for use in uses])
        while True:
            moves, members, edges, sources, elements, *_ = analyse(
                arranged, home, table, tasks, boxes, self._hosts, self._past, self._storage, False, False
            )
            if not self._past[-1][FULL]:
                break
            self._past = room(2 * len(self._past[0]))
        if (moves[:, KIND] == UNWRITTEN).any():
            raise RequestError(f"a region of shape {shape}: a task reads what nothing wrote: write or fill it first")
        prices = price(self.network, itemsize, moves, members)
        columns = np.empty((len(moves), 3), dtype=np.int64)
        columns[:, 0] = (moves[:, USE] << NUMBER_BITS) + np.arange(len(moves))
        columns[:, 1], columns[:, 2] = prices.durations, prices.starts[1:] - prices.starts[:-1]
        nodes = np.empty((len(tasks), 2), dtype=np.int64)
        nodes[:, 0] = np.repeat(np.arange(len(uses)), counts)
        nodes[:, 1] = np.concatenate([use.shape.points for use in uses])
        return RegionRows(
            moves,
            members,
            columns,
            prices.held,
            prices.bytes,
            edges,
            sources,
            nodes,
            (elements + prices.staged) * itemsize,
        )


def _keep(table: dict[K, V], key: K, value: V, kept: int) -> None:
    """Put an entry last in a table; where it has too many, the first goes."""
    table[key] = value
    if len(table) > kept:
        del table[next(iter(table))]


def privilege(use: Use, *, alone: bool) -> int:
    """What a use of a region does, in a step where it is or is not the only contributor."""
    if use.shape.access != GRADIENT:
        return use.shape.access
    return WRITE_DISCARD if alone and use.shape.disjoint else REDUCE


def contributions(uses: Sequence[Use], *, alone: bool) -> tuple[Column, Boxes]:
    """The processors and boxes of what tasks contribute to a region, each that accumulates once."""
    found = [np.zeros((0, 1 + WIDTH), dtype=np.int64)]
    open_ = [found[0]]
    for use in uses:
        access = privilege(use, alone=alone)
        table = np.concatenate([use.processors[:, None], use.shape.boxes], axis=1)
        if access == ACCUMULATE:
            open_.append(table)
        elif access == REDUCE:
            found.append(table)
    every = np.concatenate([*found, np.unique(np.concatenate(open_), axis=0)])
    return every[:, 0], every[:, 1:]
