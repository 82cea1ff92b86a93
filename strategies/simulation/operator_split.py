"""Operator splits: the tasks of one operator form under some degrees, as arrays, before they have processors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.operators.operator.tile_table import TileTable
from maniple.operators.rules.configuration import OperatorPlan
from maniple.runtime.schedule.roofline import DEFAULT_EFFICIENCY, EFFICIENCY
from maniple.strategies.lowering.boxes import HIGH, LOW, WIDTH
from maniple.strategies.lowering.region_cache import UseShape
from maniple.strategies.lowering.validity import REDUCE, RESULT, WRITE_DISCARD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.operators.graph.graph import Graph
    from maniple.operators.graph.node import Node
    from maniple.operators.operator.tile_table import Bounds
    from maniple.operators.rules.bound_rule import BoundRule
    from maniple.runtime.schedule.launch import Launch
    from maniple.strategies.lowering.boxes import Boxes
    from maniple.strategies.lowering.network import Column
    from maniple.strategies.lowering.region_cache import Shapes
    from maniple.strategies.lowering.tables import Table
    from maniple.strategies.simulation.operator_form import LaunchForm, OperatorForm, RegionRef, RequirementForm

__all__: list[str] = []

Rates = np.ndarray[tuple[int], np.dtype[np.float64]]


@final
@dataclass(frozen=True, slots=True, eq=False)
class LaunchSplit:
    """The tasks of one launch.

    Args:
        form: the launch.
        points: by task the point of the operator (row-major over its degrees) that it runs with.
        colors: by task the number of its tile, row-major over the degrees of its primitive.
        replicated: whether further replicas of the points run too.
        flops: by task.
        touched: by task, bytes of everything that it uses.
        uses: the region of each requirement, and how the tasks use it.
    """

    form: LaunchForm
    points: Column
    colors: Column
    replicated: bool
    flops: Rates
    touched: Column
    uses: tuple[tuple[RegionRef, UseShape], ...]

    @property
    def efficiency(self) -> float:
        """The part of the peak rate that its kernels reach."""
        return EFFICIENCY.get(self.form.kind.partition(".")[0], DEFAULT_EFFICIENCY)


@final
@dataclass(frozen=True, slots=True, eq=False)
class OperatorSplit:
    """An operator form under some degrees.

    Args:
        form: the form.
        degrees: the parts of every factor of the operator, in its rule's order.
        forward: the launches of the forward pass.
        backward: the launches of the backward pass.
    """

    form: OperatorForm
    degrees: dict[str, int]
    forward: tuple[LaunchSplit, ...]
    backward: tuple[LaunchSplit, ...]

    def launch(self, launch: LaunchSplit, processors: Table) -> Launch:
        """The launch that the runtime would run.

        Args:
            launch: one of this split.
            processors: by point of the operator, the processors of its replicas.
        """
        lowering, node = self.form.lowering, self.form.nodes[launch.form.primitive]
        names = [factor.name for factor in lowering.graph.bound(node).factors]
        table = TileTable.of(lowering.graph.bound(node), tuple(self.degrees[name] for name in names))
        chosen = processors[_points(names, self.degrees, table)]
        degrees = tuple((name, self.degrees[name]) for name in names)
        config = OperatorPlan(degrees, tuple(chosen.ravel().tolist()), chosen.shape[1])
        name = f"{node.name}.{launch.form.suffix}"
        return next(found for found in lowering.of(node, config) if found.name == name)


def split_operator(form: OperatorForm, degrees: dict[str, int], shapes: Shapes) -> OperatorSplit:
    """Cut an operator form.

    Args:
        form: the form.
        degrees: the parts of every factor of the operator, in its rule's order.
        shapes: where equal uses are found again.
    """
    tasks = [_Tasks(form.lowering.graph, node, degrees, shapes) for node in form.nodes]
    forward = tuple(tasks[launch.primitive].launch(form, launch, backward=False) for launch in form.forward)
    backward = tuple(tasks[launch.primitive].launch(form, launch, backward=True) for launch, _ in form.backward)
    return OperatorSplit(form, degrees, forward, backward)


class _Tasks:
    """The tasks of one node under some degrees."""

    def __init__(self, graph: Graph, node: Node, degrees: dict[str, int], shapes: Shapes) -> None:
        self.graph, self.node, self.shapes = graph, node, shapes
        bound = graph.bound(node)
        names = [factor.name for factor in bound.factors]
        self.table = TileTable.of(bound, tuple(degrees.get(name, 1) for name in names))
        self.busy = self.table.busy
        self.points = _points(names, degrees, self.table)[self.busy]
        self.flops = self.table.flops(node.operator)
        self.used: dict[tuple[str, int], tuple[Boxes, Column]] = {}
        self.folds = [bound.folds(result, degrees) is not None for result in range(len(bound.rule.results))]

    def launch(self, form: OperatorForm, launch: LaunchForm, *, backward: bool) -> LaunchSplit:
        """One launch of the node."""
        uses, touched = [], np.zeros(len(self.busy), dtype=np.int64)
        for requirement in launch.requirements:
            found = requirement.role, requirement.place
            if found not in self.used:
                self.used[found] = self._find_used(*found)
            boxes, there = self.used[found]
            boxes = boxes[there]
            volumes = np.prod(boxes[:, HIGH:] - boxes[:, LOW:HIGH], axis=1)
            touched[there] += volumes * form.regions[requirement.region].itemsize
            uses.append((requirement.region, self._shape(requirement, boxes, there)))
        flops = self.flops[backward][self.busy] * launch.share
        replicated = not backward and not any(self.folds)
        return LaunchSplit(launch, self.points, self.busy, replicated, flops.astype(float), touched, tuple(uses))

    def _find_used(self, role: str, place: int) -> tuple[Boxes, Column]:
        """The boxes of a requirement by task, and the tasks whose box is not empty."""
        if role == "clock":
            bounds, there = np.zeros((len(self.table.index), 1, 2), dtype=np.int64), self.busy
            bounds[:, 0, 1] = 2
        elif role == "result":
            bounds, there = self.table.result(place)
        elif role == "saved":
            bounds, there = self.table.saved_bounds(place)
        else:
            bounds, there = self.table.operand(place, gradient=role == "operand_gradient")
        found = boxes_of_bounds(bounds[self.busy])
        uses = np.zeros(len(bounds), dtype=bool)
        uses[there] = True
        used = uses[self.busy] & (found[:, HIGH:] > found[:, LOW:HIGH]).all(axis=1)
        return found, np.flatnonzero(used)

    def _shape(self, requirement: RequirementForm, boxes: Boxes, there: Column) -> UseShape:
        access = requirement.access
        if access == RESULT:
            folds = requirement.role == "result" and self.folds[requirement.place] and len(self.busy) > 1
            access = REDUCE if folds else WRITE_DISCARD
        return self.shapes.shape(access, there, there, boxes)


def _points(names: Sequence[str], degrees: dict[str, int], table: TileTable) -> Column:
    """For each tile of a primitive the point of the operator with which it runs: parts of factors it lacks are 0."""
    found = np.zeros(len(table.index), dtype=np.int64)
    for factor, degree in degrees.items():
        found *= degree
        if factor in names:
            found += table.index[:, names.index(factor)]
    return found


def boxes_of_bounds(bounds: Bounds) -> Boxes:
    """Boxes with label 0 of bounds by box, axis and end."""
    result = np.zeros((len(bounds), WIDTH), dtype=np.int64)
    axes = bounds.shape[1]
    result[:, HIGH:] = 1
    result[:, LOW : LOW + axes] = bounds[:, :, 0]
    result[:, HIGH : HIGH + axes] = bounds[:, :, 1]
    return result


def used_tiles(bound: BoundRule, place: int, degrees: tuple[tuple[str, int], ...]) -> tuple[Boxes, Column]:
    """What the points of an operator use of an operand, and the points that use something."""
    table = TileTable.of(bound, tuple(degree for _, degree in degrees))
    bounds, there = table.operand(place)
    found = boxes_of_bounds(bounds)
    used = np.zeros(len(found), dtype=bool)
    used[np.intersect1d(there, table.busy)] = True
    points = np.flatnonzero(used & (found[:, HIGH:] > found[:, LOW:HIGH]).all(axis=1))
    return found[points], points
