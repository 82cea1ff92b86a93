"""Operator placements: the tasks of an operator split once they have processors: rows, durations and uses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.strategies.cost_model.cost_model import LaunchTasks
from maniple.strategies.lowering.region_cache import Use

if TYPE_CHECKING:
    from collections.abc import Hashable

    from maniple.operators.rules.configuration import OperatorPlan
    from maniple.strategies.cost_model.cost_model import CostModel
    from maniple.strategies.lowering.network import Column
    from maniple.strategies.lowering.region_cache import Shapes, UseShape
    from maniple.strategies.lowering.tables import Table
    from maniple.strategies.simulation.operator_split import LaunchSplit, OperatorSplit

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True, eq=False)
class LaunchRows:
    """The rows of one launch.

    Args:
        columns: as `RowBlock` has them.
        held: as `RowBlock` has them.
        tasks: what they are the rows of.
    """

    columns: Table
    held: Table
    tasks: LaunchTasks


def launch_rows(tasks: LaunchTasks, costs: CostModel) -> LaunchRows:
    """Give the rows of a launch: a task holds its processor until it ends."""
    durations = costs.tasks_ns(tasks)
    columns = np.ones((len(durations), 3), dtype=np.int64)
    columns[:, 0], columns[:, 1] = np.arange(len(durations)), durations
    return LaunchRows(columns, np.stack([tasks.processors, durations], axis=1), tasks)


def place_use(shape: UseShape, processors: Column) -> Use:
    """Give a use whose points run on some processors."""
    where = processors[shape.points]
    return Use(shape, where, (shape.number, where.tobytes()))


@final
@dataclass(frozen=True, slots=True, eq=False)
class LaunchPlacement:
    """One launch of an operator.

    Args:
        rows: its rows.
        uses: the region of each requirement (as the form calls it), and its use.
    """

    rows: LaunchRows
    uses: tuple[tuple[Hashable, Use], ...]


@final
@dataclass(frozen=True, slots=True, eq=False)
class OperatorPlacement:
    """An operator split on processors.

    Args:
        split: the split.
        forward: the launches of the forward pass.
        backward: the launches of the backward pass.
    """

    split: OperatorSplit
    forward: tuple[LaunchPlacement, ...]
    backward: tuple[LaunchPlacement, ...]


def operator_placement(
    split: OperatorSplit, config: OperatorPlan, memory_of: Column, costs: CostModel, shapes: Shapes
) -> OperatorPlacement:
    """Place an operator.

    Args:
        split: the operator under the degrees of the configuration.
        config: the configuration.
        memory_of: the memory of each processor.
        costs: what the tasks take.
        shapes: where equal uses are found again.
    """
    chosen = np.asarray(config.processors, dtype=np.int64).reshape(-1, config.replicas)
    kept = np.ones(chosen.shape, dtype=bool)
    for replica in range(1, config.replicas):
        for other in range(replica):
            # One replica in each memory, for a memory holds one valid copy.
            kept[:, replica] &= memory_of[chosen[:, replica]] != memory_of[chosen[:, other]]
    make = _LaunchPlacing(split, config, chosen, kept, costs, shapes)
    return OperatorPlacement(split, tuple(map(make.place, split.forward)), tuple(map(make.place, split.backward)))


@dataclass(frozen=True, slots=True, eq=False)
class _LaunchPlacing:
    """Gives launches the processors of one configuration; `kept` says which of the chosen ones have a replica."""

    split: OperatorSplit
    config: OperatorPlan
    chosen: Table
    kept: Table
    costs: CostModel
    shapes: Shapes

    def place(self, launch: LaunchSplit) -> LaunchPlacement:
        """Place one launch."""
        if not launch.replicated or self.config.replicas == 1:
            rows = np.arange(len(launch.points))
            processors = self.chosen[launch.points, 0]
            uses = tuple((region, place_use(shape, processors)) for region, shape in launch.uses)
        else:
            rows, columns = np.nonzero(self.kept[launch.points])
            processors = self.chosen[launch.points[rows], columns]
            uses = tuple((region, place_use(self._repeat(shape, rows), processors)) for region, shape in launch.uses)
        again = partial(self.split.launch, launch, self.chosen)
        tasks = LaunchTasks(launch.flops[rows], launch.touched[rows], processors, launch.efficiency, again)
        return LaunchPlacement(launch_rows(tasks, self.costs), uses)

    def _repeat(self, shape: UseShape, rows: Column) -> UseShape:
        """A shape whose points run once for each replica; a part of a sum never does."""
        place = np.full(int(rows.max(initial=-1)) + 1, -1, dtype=np.int64)
        place[shape.points] = np.arange(len(shape.points))
        points = np.flatnonzero(place[rows] >= 0)
        which = place[rows[points]]
        return self.shapes.shape(shape.access, points, shape.colors[which], shape.boxes[which])
