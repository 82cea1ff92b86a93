"""Launches of one operator: a launch form under a split, placed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.operators.lowering.home_body import CastBinder, SumBinder
from maniple.operators.lowering.launch_form import NORM_FLOPS, tile_flops
from maniple.operators.lowering.micro_batch import ALL
from maniple.operators.lowering.operator_body import (
    AssignBinder,
    BackwardBinder,
    ForwardBinder,
    NormBinder,
    RescaleBinder,
    UpdateBinder,
)
from maniple.operators.lowering.step_regions import has_own
from maniple.operators.lowering.working_copy import PART
from maniple.operators.rules.tile_table import Tiles
from maniple.operators.training import loss_scale
from maniple.operators.training.loss_scale import LossScale
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, Privilege, accumulate, reduce
from maniple.regions.rectangle import overlapping
from maniple.runtime.schedule.launch import Launch, Requirement
from maniple.runtime.schedule.launch_columns import Rects
from maniple.runtime.storage.scratchpad import LaunchScratch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from maniple.operators.graph.graph import Graph, Node
    from maniple.operators.lowering.launch_form import LaunchForm, RequirementForm
    from maniple.operators.lowering.step_regions import AbstractRegions, StepRegions
    from maniple.operators.lowering.weight import Weight
    from maniple.operators.rules.task_placement import PlacedTasks
    from maniple.operators.rules.tile_table import TileTable
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.regions.logical_region import LogicalRegion
    from maniple.regions.rectangle import Rect
    from maniple.runtime.program.region_table import RegionTable
    from maniple.runtime.storage.scratchpad import Scratchpads

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True, eq=False)
class LaunchPattern:
    """A launch of an operator, for a micro-batch and all others that are alike: what they share is made once.

    Seven samples in three micro-batches, 3 2 2; the second is the pattern of the third:

        relu.forward#1    reads linear#1 [0:2]    writes relu#1 [0:2]
        relu.forward#2    reads linear#2 [0:2]    writes relu#2 [0:2]    the same boxes, of regions of its own
        loss.forward#1    reads y [3:5]
        loss.forward#2    reads y [5:7]                                  of what all share, a part further on

    Args:
        form: the launch.
        part: the micro-batch for which it was made.
        launch: its launch, if no micro-batch was before it in the step.
        later: the privileges otherwise, by requirement.
        own: whether each micro-batch has a region of its own, by requirement.
        moving: the axis along which the boxes of another micro-batch lie further on, by requirement; None where they
            are the same.
    """

    form: LaunchForm
    part: int
    launch: Launch
    later: tuple[Privilege, ...]
    own: tuple[bool, ...]
    moving: tuple[int | None, ...]

    def of(self, part: int, regions: StepRegions, tiles: Callable[[], TileTable], *, first: bool) -> Launch:
        """The launch of a micro-batch that is as large.

        Args:
            part: the micro-batch.
            regions: the regions of the step.
            tiles: makes the table of the operator's tiles in that micro-batch.
            first: whether no micro-batch was before it in the step.
        """
        launch, binder, needs = self.launch, self.launch.binder, []
        for number, (need, like) in enumerate(zip(self.form.requirements, launch.requirements, strict=True)):
            region, rects, axis = like.region, like.rects, self.moving[number]
            if part != self.part and self.own[number]:
                region = regions.another(region, need.region, part)
            elif part != self.part and axis is not None and isinstance(rects, Rects):
                rects = rects.moved(axis, regions.further(need.region, axis, self.part, part))
            needs.append(Requirement(region, like.privilege if first else self.later[number], rects))
        if part != self.part and isinstance(binder, ForwardBinder | BackwardBinder):
            here = binder.tiles.elsewhere(tiles) if isinstance(binder.tiles, Tiles) else binder.tiles
            if isinstance(binder, ForwardBinder):
                how = binder.slots, binder.training, binder.checked, binder.scratch, binder.looks
                binder = ForwardBinder(binder.graph, binder.node, here, *how)
            else:
                binder = BackwardBinder(binder.graph, binder.node, here, binder.slots, binder.scratch, binder.looks)
        name = launch.name if part == ALL else f"{launch.name}#{part}"
        told = launch.flops, launch.kind, launch.provenance, launch.in_turn, launch.lag, launch.multiplies_in
        return Launch(name, launch.points, tuple(needs), binder, *told)


def launch_pattern(
    graph: Graph,
    form: LaunchForm,
    placed: PlacedTasks,
    regions: AbstractRegions,
    shared: frozenset[int] = frozenset(),
    *,
    part: int = ALL,
    training: bool = True,
    checked: bool = False,
    in_turn: bool = False,
) -> LaunchPattern:
    """Give the pattern of a launch of an operator.

    A gradient with one contributor and disjoint tiles is written, and added to by further micro-batches; any other is
    reduced, and what a processor contributes for several micro-batches accumulates.

    Args:
        graph: the operator's graph.
        form: the launch.
        placed: the operator's tasks.
        regions: the regions of the step.
        shared: the tensors to whose gradients several launches contribute.
        part: the micro-batch of which the tasks are.
        training: whether a training step runs, and no evaluation.
        checked: whether a NaN among the results is an error.
        in_turn: whether processors take its tasks in program order.
    """
    node = form.node
    tasks = placed if form.is_forward else placed.primary()
    requirements, later, own, moving = list[Requirement](), list[Privilege](), list[bool](), list["int | None"]()
    for need in form.requirements:
        region = regions.region(need.region, part)
        rects = used_rects(need, node, tasks, regions, part)
        # Every micro-batch adds to the same elements where its samples do not cut the tensor; but in a part of its own.
        cut = part != ALL and need.tiles is not None and need.region[0] != PART
        axis = None if part == ALL or need.tiles is None else regions.parts.axis(node, *need.tiles)
        # To a tensor that it has twice a task adds twice: whoever joined both of another would wait, and be waited for.
        twice = [other.region for other in form.requirements].count(need.region) > 1
        how = {"meets": cut and axis is None, "twice": twice}
        requirements.append(
            Requirement(region, _privilege(need, placed.table, rects, shared, **how, first=True), rects)
        )
        later.append(_privilege(need, placed.table, rects, shared, **how, first=False))
        own.append(part != ALL and has_own(regions, need.region))
        moving.append(None if own[-1] else axis)
    flops = tile_flops(node.operator, placed.table)[0 if form.is_forward else 1][tasks.numbers] * form.share
    scratch = LaunchScratch(tasks.points, regions.scratchpads)
    binder = (
        ForwardBinder(graph, node, tasks.tiles, form.slots, training, checked, scratch)
        if form.is_forward
        else BackwardBinder(graph, node, tasks.tiles, form.slots, scratch)
    )
    needs, operations, multiplies = tuple(requirements), tuple(flops.tolist()), node.operator.multiplies_in
    launch = Launch(
        form.name, tasks.points, needs, binder, operations, form.kind, in_turn=in_turn, multiplies_in=multiplies
    )
    return LaunchPattern(form, part, launch, tuple(later), tuple(own), tuple(moving))


def used_rects(
    need: RequirementForm, node: Node, tasks: PlacedTasks, regions: AbstractRegions, part: int
) -> Sequence[Rect]:
    """What each task uses of a region; of one that a micro-batch has for itself from where its samples begin.

    Args:
        need: how a launch uses the region.
        node: the launch's operator.
        tasks: the launch's.
        regions: the regions of the step.
        part: the micro-batch of which the tasks are.
    """
    region = regions.region(need.region, part)
    if need.tiles is None:
        whole = np.asarray((region.bounds.lo, region.bounds.hi), dtype=np.int64).T
        return Rects(np.tile(whole, (len(tasks.points), 1, 1)))
    rects = tasks.rects(*need.tiles, region.bounds.ndim)
    axis = regions.parts.axis(node, *need.tiles)
    if part == ALL or axis is None or not regions.is_apart(need.region):
        return rects
    return rects.moved(axis, -regions.start(need.region, axis, part))


def update_launch(
    weight: Weight,
    gradient: LogicalRegion,
    optimizer: AbstractOptimizer,
    name: str,
    whole: tuple[LogicalRegion, ...],
    scratchpads: Scratchpads,
    *,
    in_turn: bool = False,
) -> Launch:
    """Give the launch that updates a parameter at its home.

    Args:
        weight: the parameter.
        gradient: its gradient.
        optimizer: of all parameters.
        name: by which the optimizer finds the parameter's group.
        whole: what each task reads whole: the numbers that enter each step, the sum of squares, and the scale of the
            loss with its counts, as far as they are there.
        scratchpads: memory that bodies of one processor take turns with.
        in_turn: whether processors take its tasks in program order.
    """
    row, own, everyone = optimizer.row_of(name), optimizer.of(name), len(weight.points)
    numbers = tuple(Requirement(region, READ, (region.bounds,) * everyone) for region in whole)
    requirements = (
        Requirement(weight.value, READ_WRITE, weight.rects),
        Requirement(gradient, READ, weight.rects),
        *(Requirement(state, READ_WRITE, weight.rects) for state in weight.states),
        *numbers,
    )
    flops = tuple(float(own.work(rect.shape)) for rect in weight.rects)
    scaled = LaunchScratch(weight.points, scratchpads) if any(r.name == loss_scale.NAME for r in whole) else None
    binder = UpdateBinder(own, row if optimizer.enters else None, scaled)
    name = f"{weight.name}.update"
    return Launch(name, weight.points, requirements, binder, flops, "update", in_turn=in_turn)


def rescale_launch(scale: Weight, squares: LogicalRegion, optimizer: AbstractOptimizer) -> Launch:
    """Give the launch that changes the scale of the loss, in every memory that has it.

    Args:
        scale: the scale and its counts.
        squares: the sum of squares of all gradients.
        optimizer: knows how it changes.
    """
    requirements = (
        *(Requirement(r, READ_WRITE, (r.bounds,) * len(scale.points)) for r in scale.regions),
        Requirement(squares, READ, (squares.bounds,) * len(scale.points)),
    )
    binder = RescaleBinder(optimizer.loss_scale or LossScale())
    return Launch(f"{scale.name}.rescale", scale.points, requirements, binder)


def copy_launch(weight: Weight, copy: LogicalRegion, name: str, *, in_turn: bool = False) -> Launch:
    """Give the launch that gives a working copy of a weight its values, at the weight's home.

    Args:
        weight: the weight.
        copy: the copy, of the same dtype or of halves.
        name: of the launch.
        in_turn: whether processors take its tasks in program order.
    """
    return home_copy(weight, weight.value, copy, name, in_turn=in_turn)


def home_copy(weight: Weight, held: LogicalRegion, copy: LogicalRegion, name: str, *, in_turn: bool = False) -> Launch:
    """Give the launch that copies what lives at a weight's home, its value or a state; see ``copy_launch``."""
    requirements = Requirement(held, READ, weight.rects), Requirement(copy, WRITE_DISCARD, weight.rects)
    return Launch(name, weight.points, requirements, CastBinder(), in_turn=in_turn)


def state_copies(weights: Iterable[Weight], table: RegionTable) -> Iterator[tuple[LogicalRegion, tuple[Launch, ...]]]:
    """Give what an optimizer keeps as regions to be read whole, each with what copies it there.

    Where a state lives in blocks that is a copy for the time: what lasts in a memory stays as large as it is.
    """
    for weight in weights:
        for state in weight.optimizer_regions:
            if len(weight.home) == 1 or weight.name == loss_scale.NAME:
                yield state, ()
            else:
                whole = table.region(f"{state.name}.copy", state.bounds, state.dtype)
                yield whole, (home_copy(weight, state, whole, whole.name, in_turn=True),)


def assign_launch(buffer: Weight, value: LogicalRegion) -> Launch:
    """Give the launch that gives a buffer its next value, at its home."""
    requirements = Requirement(buffer.value, WRITE_DISCARD, buffer.rects), Requirement(value, READ, buffer.rects)
    return Launch(f"{buffer.name}.assign", buffer.points, requirements, AssignBinder())


def sum_launch(
    weight: Weight, part: LogicalRegion, total: LogicalRegion, *, first: bool, in_turn: bool = False
) -> Launch:
    """Give the launch that adds the gradient of a micro-batch to that of all, at the parameter's home.

    Args:
        weight: the parameter.
        part: the gradient of the micro-batch.
        total: that of all.
        first: whether nothing was added yet.
        in_turn: whether processors take its tasks in program order.
    """
    privilege = WRITE_DISCARD if first else READ_WRITE
    requirements = Requirement(part, READ, weight.rects), Requirement(total, privilege, weight.rects)
    flops = tuple(0.0 if first else float(rect.volume) for rect in weight.rects)
    return Launch(f"{part.name}.sum", weight.points, requirements, SumBinder(first=first), flops, in_turn=in_turn)


def norm_launch(weight: Weight, gradient: LogicalRegion, squares: LogicalRegion, *, in_turn: bool = False) -> Launch:
    """Give the launch that adds the squares of a gradient to those of all, block by block at the parameter's home.

    Args:
        weight: the parameter; of replicas of a block the first counts.
        gradient: its gradient.
        squares: the sum.
        in_turn: whether processors take its tasks in program order.
    """
    counted = [(p, rect) for p, rect in zip(weight.points, weight.rects, strict=True) if p.replica == 0]
    points, rects = tuple(point for point, _ in counted), tuple(rect for _, rect in counted)
    requirements = (
        Requirement(gradient, READ, rects),
        Requirement(squares, reduce("+"), (squares.bounds,) * len(points)),
    )
    flops = tuple(float(NORM_FLOPS * rect.volume) for rect in rects)
    return Launch(f"{weight.name}.norm", points, requirements, NormBinder(), flops, "norm", in_turn=in_turn)


def _privilege(
    need: RequirementForm,
    table: TileTable,
    rects: Sequence[Rect],
    shared: frozenset[int],
    *,
    meets: bool,
    first: bool,
    twice: bool,
) -> Privilege:
    if need.access == "read":
        return READ
    if need.access == "gradient":
        if need.region[1] not in shared and next(overlapping(rects), None) is None:
            return WRITE_DISCARD if first or not meets else READ_WRITE
        return accumulate("+") if meets and not twice else reduce("+")
    fold = need.fold(table)
    if need.region[0] == "again":  # of each micro-batch by itself
        return WRITE_DISCARD if fold is None or next(overlapping(rects), None) is None else reduce(fold)
    if fold is None:
        return WRITE_DISCARD
    return accumulate(fold) if meets else reduce(fold)
