"""Fragments: all that one region adds to a schedule, as columns, and what determines it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from maniple.runtime.schedule.space import BoxSpaces

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maniple.regions.index_space import IndexSpace
    from maniple.regions.privilege import Privilege
    from maniple.regions.rectangle import Rect
    from maniple.regions.validity import Validity
    from maniple.runtime.analysis.placed_use import PlacedUse
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.schedule import Column

__all__: list[str] = []

Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Home = tuple[tuple[int, tuple["Rect", ...]], ...]
Uses = tuple[tuple["Privilege", "Sequence[PlacedUse]"], ...]

# Columns of the tables of a fragment. NODE is a task in `tasks`, a movement in all others.
USE, POINT, TASK_SPACE, TASK_INSTANCE, TASK_WRITES = range(5)
NODE, SPACE, INSTANCE, WRITES, SLOT = range(5)
SOURCE, TARGET, FEEDS, AFTER, FOLLOWS = range(2, 7)
MEMORY, FOLDED, FIRST, LAST = range(2, 6)
MEMORY_OF_END, MAIN_OF_END = range(1, 3)


@dataclass(frozen=True)
class FragmentKey:
    """What determines a fragment: nothing in it names the region, so equal layers share one.

    Args:
        bounds: the elements of the region.
        home: (memory, rectangles) valid before each step; empty for a region that does not outlive a step.
        uses: every use in program order: a privilege and the tasks.
    """

    bounds: Rect
    home: Home
    uses: Uses

    @cached_property
    def _hash(self) -> int:
        # Of a home the first block says enough: there are as many as there are ranks.
        return hash((self.bounds, len(self.home), self.home[:1], self.uses))

    def __hash__(self) -> int:
        """By what it has, which is looked at once."""
        return self._hash


@dataclass(frozen=True, slots=True)
class HostDistance:
    """How far two memories are apart: 0 for the same one, 1 within a host, 2 between hosts.

    Args:
        hosts: the host of each memory.
    """

    hosts: tuple[int, ...]

    @classmethod
    def of(cls, machine: Machine) -> HostDistance:
        """The distances of a machine."""
        return cls(tuple([memory.host for memory in machine.memories]))

    def __call__(self, first: int, second: int) -> int:
        """Give the distance of two memories."""
        return 0 if first == second else 1 if self.hosts[first] == self.hosts[second] else 2


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """What a fragment has that lists the blocks of collectives, and not yet who pushes what where.

    Its `pieces` are then the blocks, at their owners; the parts of one that is folded are the tiles that the members
    give, by ascending memory. `host_part` makes of that the pushes and folds of some memories.

    Args:
        ends: (movement, memory, its instance of valid values, or -1) of the members of each collective, by movement and
            ascending memory.
        elements: how many elements all instances in each memory have together, if every collective goes direct.
    """

    ends: Table
    elements: Column


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Fragment:
    """One region's part of a step. Nodes of dependences are its tasks first, then its movements.

    Args:
        tasks: (use, point, space, instance, whether it is written) of every task of every use.
        uses: how many uses there are.
        serves: the use that needs each movement, ascending.
        kinds: RowKind of each movement.
        processors: who folds; -1 for all other movements.
        elements: what each movement sends from memory to memory.
        ops: the symbol of the operator that each fold and each collective folds by; of others none.
        accesses: (movement, space, instance, whether it is written, slot), by movement.
        transfers: (movement, space, source, target, feeds, after), by movement; and behind them, where a collective has
            another plan than direct, follows.
        pieces: (movement, space, memory, target, first part, one past the last) of the folds inside collectives.
        parts: the instances that those fold.
        instances: (memory, kind, space, elements) of every instance.
        spaces: the index spaces that tasks, accesses, transfers, pieces and instances refer to; an equal one may be
            there several times.
        edges: (node, node that waits) within a step.
        carried: (node, node of the next step that waits).
        leave: gives what is valid where after a step.
        blocks: where the blocks of collectives are listed, and not their pushes, what there is of them.
    """

    tasks: Table
    uses: int
    serves: Column
    kinds: Column
    processors: Column
    elements: Column
    ops: tuple[str, ...]
    accesses: Table
    transfers: Table
    pieces: Table
    parts: Column
    instances: Table
    spaces: Sequence[IndexSpace]
    edges: Table
    carried: Table
    leave: Callable[[], Validity]
    blocks: Blocks | None = None

    @property
    def volumes(self) -> Column:
        """How many elements each space has."""
        if isinstance(self.spaces, BoxSpaces):
            return self.spaces.volumes()
        return np.asarray([space.volume for space in self.spaces], dtype=np.int64)

    @property
    def leaves(self) -> Validity:
        """What is valid where after a step."""
        return self.leave()


def table(rows: list[tuple[int, ...]], width: int) -> Table:
    """Give rows of integers as a table of so many columns."""
    return np.asarray(rows, dtype=np.int64).reshape(len(rows), width)
