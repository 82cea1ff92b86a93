"""Launches at homes: what updates, casts or assigns weights and buffers, and brings values from outside, placed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.operators.lowering.fusion.fused_launch import fuse, fused_name
from maniple.operators.lowering.launch_form import NORM_FLOPS
from maniple.operators.training import loss_scale
from maniple.regions.columns.boxes import HIGH, LOW
from maniple.regions.columns.validity import READ, READ_WRITE, REDUCE, WRITE_DISCARD
from maniple.regions.rectangle import Rect
from maniple.runtime.schedule.roofline import DEFAULT_EFFICIENCY, Kernel, computing_type
from maniple.strategies.cost_model.cost_model import LaunchTasks
from maniple.strategies.simulation.bare_launch import bare_launch
from maniple.strategies.simulation.launch_table import PlacedLaunch
from maniple.strategies.simulation.operator_placement import launch_rows, place_use
from maniple.strategies.simulation.plan_free_step import GROWTH, SCALE, SKIPPED, SQUARES
from maniple.strategies.simulation.region_cache import boxes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from maniple.regions.columns.boxes import Boxes
    from maniple.runtime.schedule.launch import Launch
    from maniple.runtime.schedule.network import Column
    from maniple.runtime.schedule.roofline import Rates
    from maniple.strategies.cost_model.cost_model import CostModel
    from maniple.strategies.simulation.home_boxes import HomeBoxes
    from maniple.strategies.simulation.operator_form import OperatorForm
    from maniple.strategies.simulation.plan_free_step import PlanFreeStep, RegionKey
    from maniple.strategies.simulation.region_cache import Shapes, Use

    Uses = list[tuple[RegionKey, Use]]

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True, eq=False)
class Passing:
    """A launch whose tasks use the same boxes of all its regions but those that each uses whole.

    Args:
        name: its name.
        processors: of its tasks.
        colors: the number of each point, the same for replicas.
        used: what each task uses.
        regions: what it uses, and how.
        again: makes the launch that the runtime would run.
        flops: operations of each task, or of all alike.
        whole: what each task uses whole, after the rest, and how.
        port: see `Launch`.
    """

    name: str
    processors: Column
    colors: Column
    used: Boxes
    regions: Sequence[tuple[RegionKey, int]]
    again: Callable[[], Launch]
    flops: Column | float = 0.0
    whole: Sequence[tuple[RegionKey, int]] = ()
    port: str = ""


def kernel_at_home(
    plan_free: PlanFreeStep, keys: Iterable[RegionKey], forms: dict[int, OperatorForm], port: str = ""
) -> Kernel:
    """What tasks at homes have in common that use some regions: as of the launch that the runtime would run."""
    types = [plan_free.dtype(key, forms) for key in keys]
    return Kernel(DEFAULT_EFFICIENCY, computing_type(types), port)


@final
class HomeLaunches:
    """Makes the launches at homes.

    Args:
        plan_free: what the plan does not change of the step.
        forms: the form of each operator, as it is now.
        shapes: where equal uses are found again.
        costs: what a task takes.
    """

    def __init__(
        self, plan_free: PlanFreeStep, forms: dict[int, OperatorForm], shapes: Shapes, costs: CostModel
    ) -> None:
        self.plan_free, self.forms, self.shapes, self.costs = plan_free, forms, shapes, costs

    def norm(self, tensor: int, boxes: HomeBoxes, form: OperatorForm) -> PlacedLaunch:
        """The launch that adds up the squares of a gradient; of replicas of a block the first counts."""
        home, name = boxes.home, f"{self.plan_free.tensors[tensor].name}.norm"
        first = np.diff(home.colors, prepend=-1) != 0
        again = partial(form.lowering.norm, self._inside(tensor, form), home)
        regions: list[tuple[RegionKey, int]] = [(("gradient", -1, tensor), READ)]
        placed = home.processors[first], home.colors[first], boxes.blocks[first]
        flops = NORM_FLOPS * _volumes(placed[-1])
        return self.passing(Passing(name, *placed, regions, again, flops, ((SQUARES, REDUCE),)))

    def _inside(self, tensor: int, form: OperatorForm) -> str:
        """What a parameter is called in the form of the operator after which it is updated."""
        place = self.plan_free.nodes[self.plan_free.finisher[tensor]].operands.index(tensor)
        inside = next(own for own, end in form.bound.items() if end == ("operand", place))
        return form.lowering.graph.tensors[inside].name

    def fused(self, tensors: tuple[int, ...], homes: tuple[HomeBoxes, ...], form: OperatorForm | None) -> PlacedLaunch:
        """The launch that updates weights, or gives buffers their next values, which live alike."""
        parts = [self._part(tensor, boxes, form) for tensor, boxes in zip(tensors, homes, strict=True)]
        if len(parts) == 1:
            return self.passing(parts[0])
        first, *others = parts
        uses, touched = self._uses(first)
        flops = _operations(first)
        for part in others:
            more, bytes_of = self._uses(replace(part, whole=()))
            uses, touched, flops = uses + more, touched + bytes_of, flops + _operations(part)
        again = partial(fused_again, tuple([part.again for part in parts]))
        kernel = kernel_at_home(self.plan_free, [key for key, _ in uses], self.forms)
        tasks = LaunchTasks(flops, touched, first.processors, kernel, again)
        return PlacedLaunch(fused_name([part.name for part in parts]), launch_rows(tasks, self.costs), tuple(uses))

    def cast(self, tensor: int, boxes: HomeBoxes) -> PlacedLaunch:
        """The launch that casts a weight at its home."""
        half: RegionKey = (self.plan_free.halves[tensor], -1, tensor)
        regions: list[tuple[RegionKey, int]] = [(("value", -1, tensor), READ), (half, WRITE_DISCARD)]
        name, home = f"{self.plan_free.tensors[tensor].name}.cast", boxes.home
        again = partial(bare_launch, self.plan_free, self.forms, name, home.points, boxes.blocks, tuple(regions))
        return self.passing(Passing(name, home.processors, home.colors, boxes.blocks, regions, again))

    def rescale(self, boxes: HomeBoxes) -> PlacedLaunch:
        """The launch that changes the scale of the loss."""
        home, name = boxes.home, f"{loss_scale.NAME}.rescale"
        whole = [*((key, READ_WRITE) for key in (SCALE, GROWTH, SKIPPED)), (SQUARES, READ)]
        again = partial(bare_launch, self.plan_free, self.forms, name, home.points, boxes.blocks, ())
        return self.passing(Passing(name, home.processors, home.colors, boxes.blocks, (), again, 0.0, whole))

    def _part(self, tensor: int, boxes: HomeBoxes, form: OperatorForm | None) -> Passing:
        """What updates a weight, or gives a buffer its next value."""
        plan_free, home = self.plan_free, boxes.home
        name, placed = plan_free.tensors[tensor].name, (home.processors, home.colors, boxes.blocks)
        regions: list[tuple[RegionKey, int]]
        if form is None:
            regions = [(("value", -1, tensor), WRITE_DISCARD), (("value", -1, plan_free.assignments[tensor]), READ)]
            name = f"{name}.assign"
            bare = partial(bare_launch, plan_free, self.forms, name, home.points, boxes.blocks, tuple(regions))
            return Passing(name, *placed, regions, bare)
        regions = [(("value", -1, tensor), READ_WRITE), (("gradient", -1, tensor), READ)]
        own = plan_free.own(tensor)
        regions += [(("state", n, tensor), READ_WRITE) for n in range(len(own.states))]
        again = partial(form.lowering.update, self._inside(tensor, form), home)
        whole = [(key, READ) for key in plan_free.whole]
        return Passing(f"{name}.update", *placed, regions, again, own.work(home.extents), whole)

    def passing(self, given: Passing) -> PlacedLaunch:
        """A launch whose tasks use the same boxes of all its regions but those that each uses whole."""
        uses, touched = self._uses(given)
        kernel = kernel_at_home(self.plan_free, [key for key, _ in uses], self.forms, given.port)
        tasks = LaunchTasks(_operations(given), touched, given.processors, kernel, given.again)
        return PlacedLaunch(given.name, launch_rows(tasks, self.costs), tuple(uses))

    def _uses(self, given: Passing) -> tuple[Uses, Column]:
        """What the tasks of a launch use, and the bytes that each touches."""
        processors, everyone = given.processors, np.arange(len(given.processors))
        shapes = {a: self.shapes.shape(a, everyone, given.colors, given.used) for _, a in given.regions}
        placed = {access: place_use(shape, processors) for access, shape in shapes.items()}
        touched = _volumes(given.used) * sum(self.plan_free.layout(key, self.forms)[1] for key, _ in given.regions)
        uses = [(key, placed[access]) for key, access in given.regions]
        for key, access in given.whole:
            shape, itemsize = self.plan_free.layout(key, self.forms)
            entire = np.repeat(boxes_of([(0, Rect.of_shape(shape))]), len(processors), axis=0)
            uses.append((key, place_use(self.shapes.shape(access, everyone, given.colors, entire), processors)))
            touched = touched + itemsize * prod(shape)
        return uses, touched


def _volumes(used: Boxes) -> Column:
    """How many elements each task uses of a region."""
    volumes: Column = np.prod(used[:, HIGH:] - used[:, LOW:HIGH], axis=1)
    return volumes


def _operations(given: Passing) -> Rates:
    """What each task of a launch computes."""
    operations: Rates = np.zeros(len(given.processors)) + given.flops
    return operations


def fused_again(parts: tuple[Callable[[], Launch], ...]) -> Launch:
    """The launch that the runtime would run for several."""
    return fuse([part() for part in parts])
