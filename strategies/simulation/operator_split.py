"""Operator splits: the tasks of one operator form under some degrees, as arrays, before they have processors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.operators.lowering.composite import points_within
from maniple.operators.lowering.launch_form import tile_flops
from maniple.operators.rules.configuration import OperatorPlan
from maniple.process.error import RequestError
from maniple.regions.columns.boxes import AXES, HIGH, LOW, WIDTH
from maniple.regions.columns.validity import GRADIENT, READ, REDUCE, WRITE_DISCARD
from maniple.runtime.schedule.roofline import Kernel, computing_type, efficiency
from maniple.strategies.simulation.region_cache import UseShape

if TYPE_CHECKING:
    from maniple.operators.graph.node import Node
    from maniple.operators.lowering.launch_form import LaunchForm, RegionRef, RequirementForm
    from maniple.operators.rules.bounds import Bounds
    from maniple.operators.rules.tile import TensorRole
    from maniple.regions.columns.boxes import Boxes
    from maniple.runtime.schedule.launch import Launch
    from maniple.runtime.schedule.network import Column
    from maniple.strategies.simulation.operator_form import OperatorForm
    from maniple.strategies.simulation.region_cache import Shapes
    from maniple.strategies.timing.tables import Table

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
        kernel: what the kernels of its tasks have in common.
    """

    form: LaunchForm
    points: Column
    colors: Column
    replicated: bool
    flops: Rates
    touched: Column
    uses: tuple[tuple[RegionRef, UseShape], ...]
    kernel: Kernel


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
        names = [factor.name for factor in self.form.lowering.graph.bound(launch.form.node).factors]
        chosen = processors[points_within(self.degrees, names)]
        degrees = tuple((name, self.degrees[name]) for name in names)
        config = OperatorPlan(degrees, tuple(chosen.ravel().tolist()), chosen.shape[1])
        return self.form.lowering.launch(launch.form, config)


def split_operator(form: OperatorForm, degrees: dict[str, int], shapes: Shapes) -> OperatorSplit:
    """Cut an operator form.

    Args:
        form: the form.
        degrees: the parts of every factor of the operator, in its rule's order.
        shapes: where equal uses are found again.
    """
    tasks = {node.id: _Tasks(form, node, degrees, shapes) for node in form.lowering.nodes}
    forward = tuple(tasks[launch.node.id].launch(launch) for launch in form.forward)
    backward = tuple(tasks[launch.node.id].launch(launch) for launch, _ in form.backward)
    return OperatorSplit(form, degrees, forward, backward)


class _Tasks:
    """The tasks of one node under some degrees."""

    def __init__(self, form: OperatorForm, node: Node, degrees: dict[str, int], shapes: Shapes) -> None:
        self.regions, self.shapes = form.lowering.regions, shapes
        bound = form.lowering.graph.bound(node)
        names = [factor.name for factor in bound.factors]
        self.table = bound.table(tuple(degrees[name] for name in names))
        self.points = points_within(degrees, names)[self.table.busy]
        self.flops = tile_flops(node.operator, self.table)
        self.used: dict[tuple[TensorRole, int] | None, tuple[Boxes, Column, Column]] = {}

    def launch(self, launch: LaunchForm) -> LaunchSplit:
        """One launch of the node."""
        busy, forward = self.table.busy, launch.part == "forward"
        uses, types, touched = [], list[str](), np.zeros(len(busy), dtype=np.int64)
        for requirement in launch.requirements:
            if requirement.tiles not in self.used:
                self.used[requirement.tiles] = self._find_used(requirement.tiles)
            boxes, there, volumes = self.used[requirement.tiles]
            region = self.regions.region(requirement.region)
            touched[there] += volumes * region.itemsize
            types.append(region.dtype)
            uses.append((requirement.region, self.shapes.shape(self._access(requirement), there, there, boxes)))
        flops = self.flops[0 if forward else 1][busy] * launch.share
        replicated = forward and not any(self.table.folds)
        kernel = Kernel(efficiency(launch.kind), launch.node.operator.multiplies_in or computing_type(types))
        return LaunchSplit(launch, self.points, busy, replicated, flops.astype(float), touched, tuple(uses), kernel)

    def _find_used(self, tiles: tuple[TensorRole, int] | None) -> tuple[Boxes, Column, Column]:
        """The boxes that tasks use of a tensor, which tasks do, and how many elements; None: all of the clock."""
        busy = self.table.busy
        if tiles is None:
            bounds, numbers = np.repeat([[[0, 2]]], len(busy), axis=0), busy
        else:
            bounds, numbers = self.table.used(*tiles)
        volumes: Column = (bounds[:, :, 1] - bounds[:, :, 0]).prod(axis=1)
        return boxes_of_bounds(bounds), np.searchsorted(busy, numbers), volumes

    def _access(self, requirement: RequirementForm) -> int:
        if requirement.access == "read":
            return READ
        if requirement.access == "gradient":
            return GRADIENT
        return WRITE_DISCARD if requirement.fold(self.table) is None else REDUCE


def boxes_of_bounds(bounds: Bounds) -> Boxes:
    """Boxes with label 0 of bounds by box, axis and end.

    Raises:
        RequestError: they have more axes than the simulator knows.
    """
    axes = bounds.shape[1]
    if axes > AXES:
        raise RequestError(f"simulation: expected regions of at most {AXES} dimensions, got one of {axes}")
    result = np.zeros((len(bounds), WIDTH), dtype=np.int64)
    result[:, HIGH:] = 1
    result[:, LOW : LOW + axes] = bounds[:, :, 0]
    result[:, HIGH : HIGH + axes] = bounds[:, :, 1]
    return result
