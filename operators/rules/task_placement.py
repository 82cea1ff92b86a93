"""Where the tasks of one operator run: a point of a launch for each tile, and for each of its replicas."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.operators.rules.tile_table import Tiles
from maniple.runtime.schedule.launch_columns import Points, Rects

if TYPE_CHECKING:
    from maniple.operators.rules.bound_rule import Within
    from maniple.operators.rules.bounds import Column, Table
    from maniple.operators.rules.configuration import OperatorPlan, WeightPlan
    from maniple.operators.rules.rule import BoundRule
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
    points: Points
    tiles: Tiles
    numbers: Column
    _rects: dict[tuple[TensorRole, int], Rects] = field(init=False, repr=False, default_factory=dict)

    def primary(self) -> PlacedTasks:
        """The tasks of backward: replica 0 of each point, since a gradient counts once."""
        chosen = np.flatnonzero(self.points.replicas == 0)
        if len(chosen) == len(self.numbers):
            return self
        return PlacedTasks(self.table, self.points.select(chosen), self.tiles.select(chosen), self.numbers[chosen])

    def rects(self, role: TensorRole, place: int, axes: int) -> Rects:
        """What each task uses of a tensor, the empty box where it does not use it.

        Args:
            role: what the tensor is to the operator.
            place: which of them.
            axes: of the tensor.
        """
        if (role, place) not in self._rects:
            self._rects[role, place] = Rects(self.table.bounds(role, place, axes)[self.numbers])
        return self._rects[role, place]


def place_tasks(bound: BoundRule, config: OperatorPlan, memory_of: Column, within: Within | None = None) -> PlacedTasks:
    """Give the tasks of an operator that have something to do.

    Args:
        bound: its rule.
        config: its degrees and processors.
        memory_of: the memory of each processor.
        within: the part of one factor that they compute; None: all of it.
    """
    table = bound.table(bound.degrees(dict(config.degrees)), within)
    rows, processors = keep_replicas(processors_by_point(config)[table.busy], memory_of, once=any(table.folds))
    numbers = table.busy[rows]
    return PlacedTasks(table, Points(table.index[numbers], rows, processors), Tiles(table, numbers), numbers)


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


def memory_by_processor(machine: Machine) -> Column:
    """The memory of each processor of a machine."""
    return np.asarray([processor.memory for processor in machine.processors], dtype=np.int64)
