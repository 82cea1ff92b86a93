"""Operator placements: the tasks of an operator split once they have processors: rows, durations and uses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.operators.rules.task_placement import keep_replicas, processors_by_point
from maniple.strategies.cost_model.cost_model import LaunchTasks
from maniple.strategies.simulation.region_cache import Use

if TYPE_CHECKING:
    from collections.abc import Hashable

    from maniple.operators.rules.configuration import OperatorPlan
    from maniple.runtime.schedule.network import Column
    from maniple.strategies.cost_model.cost_model import CostModel
    from maniple.strategies.simulation.operator_split import LaunchSplit, OperatorSplit
    from maniple.strategies.simulation.region_cache import Shapes, UseShape
    from maniple.strategies.timing.tables import Table

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
    columns, held = np.ones((len(durations), 3), dtype=np.int64), np.empty((len(durations), 2), dtype=np.int64)
    columns[:, 0], columns[:, 1] = np.arange(len(durations)), durations
    held[:, 0], held[:, 1] = tasks.processors, durations
    return LaunchRows(columns, held, tasks)


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
    make = _LaunchPlacing(split, processors_by_point(config), memory_of, costs, shapes)
    return OperatorPlacement(split, tuple(map(make.place, split.forward)), tuple(map(make.place, split.backward)))


@dataclass(frozen=True, slots=True, eq=False)
class _LaunchPlacing:
    """Gives launches the processors that are chosen for the replicas of each point of an operator."""

    split: OperatorSplit
    chosen: Table
    memory_of: Column
    costs: CostModel
    shapes: Shapes

    def place(self, launch: LaunchSplit) -> LaunchPlacement:
        """Place one launch."""
        once = not launch.replicated
        rows, processors = keep_replicas(self.chosen[launch.points], self.memory_of, once=once)
        alone = once or self.chosen.shape[1] == 1
        shapes = [(region, shape if alone else self._repeat(shape, rows)) for region, shape in launch.uses]
        uses = tuple((region, place_use(shape, processors)) for region, shape in shapes)
        again = partial(self.split.launch, launch, self.chosen)
        tasks = LaunchTasks(launch.flops[rows], launch.touched[rows], processors, launch.kernel, again)
        return LaunchPlacement(launch_rows(tasks, self.costs), uses)

    def _repeat(self, shape: UseShape, rows: Column) -> UseShape:
        """A shape whose points run once for each replica; a part of a sum never does."""
        place = np.full(int(rows.max(initial=-1)) + 1, -1, dtype=np.int64)
        place[shape.points] = np.arange(len(shape.points))
        points = np.flatnonzero(place[rows] >= 0)
        which = place[rows[points]]
        return self.shapes.shape(shape.access, points, shape.colors[which], shape.boxes[which])
