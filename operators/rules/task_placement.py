"""Where the tasks of one operator run: a point of a launch for each tile, and for each of its replicas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.regions.rectangle import Rect
from maniple.runtime.schedule.launch import Point

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.operators.rules.bounds import Column, Table
    from maniple.operators.rules.configuration import OperatorPlan, WeightPlan
    from maniple.operators.rules.rule import BoundRule, Tile
    from maniple.operators.rules.tile import TensorRole
    from maniple.operators.rules.tile_table import TileTable
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True, eq=False)
class PlacedTasks:
    """The forward tasks of one operator, replicas next to each other.

    Args:
        table: the tiles of its split.
        points: where they run.
        tiles: what each computes.
        numbers: of the tile of each, in the table.
    """

    table: TileTable
    points: tuple[Point, ...]
    tiles: tuple[Tile, ...]
    numbers: Column

    def primary(self) -> PlacedTasks:
        """The tasks of backward: replica 0 of each point, since a gradient counts once."""
        chosen = [task for task, point in enumerate(self.points) if point.replica == 0]
        points, tiles = tuple(self.points[task] for task in chosen), tuple(self.tiles[task] for task in chosen)
        return PlacedTasks(self.table, points, tiles, self.numbers[chosen])

    def rects(self, role: TensorRole, place: int, axes: int) -> tuple[Rect, ...]:
        """What each task uses of a tensor, the empty box where it does not use it.

        Args:
            role: what the tensor is to the operator.
            place: which of them.
            axes: of the tensor.
        """
        found = [tile.rect(role, place) for tile in self.tiles]
        return tuple([Rect((0,) * axes, (0,) * axes) if rect is None else rect for rect in found])


def place_tasks(bound: BoundRule, config: OperatorPlan, memory_of: Column) -> PlacedTasks:
    """Give the tasks of an operator that have something to do.

    Args:
        bound: its rule.
        config: its degrees and processors.
        memory_of: the memory of each processor.
    """
    table = bound.table(bound.degrees(dict(config.degrees)))
    rows, processors = keep_replicas(processors_by_point(config)[table.busy], memory_of, once=any(table.folds))
    numbers = table.busy[rows]
    tiles = tuple(table.tiles(numbers.tolist()))
    return PlacedTasks(table, points_of([tile.index for tile in tiles], rows, processors), tiles, numbers)


def processors_by_point(config: OperatorPlan | WeightPlan) -> Table:
    """The processors of the replicas of each point, or of each block."""
    return np.asarray(config.processors, dtype=np.int64).reshape(-1, config.replicas)


def keep_replicas(processors: Table, memory_of: Column, *, once: bool = False) -> tuple[Column, Column]:
    """Give the tasks of points, replicas next to each other: one in each memory, for a memory holds one valid copy.

    Args:
        processors: of the replicas of each point.
        memory_of: the memory of each processor.
        once: whether replica 0 alone runs: a contribution counts once, so that of another would be thrown away.

    Returns:
        By task, the point (its row) and the processor.
    """
    if once or processors.shape[1] == 1:
        return np.arange(len(processors)), processors[:, 0].copy()
    memories = memory_of[processors]
    kept = np.ones(processors.shape, dtype=bool)
    for replica in range(1, processors.shape[1]):
        kept[:, replica] = (memories[:, :replica] != memories[:, replica, None]).all(axis=1)
    points, replicas = np.nonzero(kept)
    return points, processors[points, replicas]


def points_of(colors: Sequence[tuple[int, ...]], numbers: Column, processors: Column) -> tuple[Point, ...]:
    """Give the points of tasks, of which replicas are next to each other.

    Args:
        colors: by task.
        numbers: by task, ascending; the same for replicas.
        processors: by task.
    """
    replicas = np.arange(len(numbers)) - np.searchsorted(numbers, numbers)
    return tuple(map(Point, colors, processors.tolist(), replicas.tolist()))


def memory_by_processor(machine: Machine) -> Column:
    """The memory of each processor of a machine."""
    return np.asarray([processor.memory for processor in machine.processors], dtype=np.int64)
