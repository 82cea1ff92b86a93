"""Weights: the regions of a graph's parameters and buffers, which outlive steps, and where they live."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maniple.operators.rules.task_placement import replicas
from maniple.operators.training.optimizer import SGD
from maniple.regions.error import RequestError
from maniple.regions.partition import blocks
from maniple.regions.rectangle import Rect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from maniple.operators.graph.graph import Graph
    from maniple.operators.plan.plan import Plan
    from maniple.operators.rules.configuration import WeightPlan
    from maniple.regions.logical_region import LogicalRegion
    from maniple.runtime.analysis.fragment import Home
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.program.region_table import RegionTable
    from maniple.runtime.schedule.launch import Point
    from maniple.runtime.storage.memory import Memory

__all__: list[str] = []


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter's or buffer's regions that outlive steps.

    Args:
        name: its name.
        value: its value.
        states: the optimizer's state, in the optimizer's order; none for what is not trained.
        points: the tasks that update it, at home.
        rects: what each of them updates.
        home: (memory, rectangles) where it lives.
    """

    name: str
    value: LogicalRegion
    states: tuple[LogicalRegion, ...]
    points: tuple[Point, ...]
    rects: tuple[Rect, ...]
    home: Home

    @property
    def regions(self) -> tuple[LogicalRegion, ...]:
        """The value and the optimizer's state."""
        return (self.value, *self.states)


def weights(graph: Graph, plan: Plan, machine: Machine, optimizer: SGD, table: RegionTable) -> dict[str, Weight]:
    """Give every parameter and buffer (by name) the regions of its value and optimizer state, and its home.

    Replicas of a block whose processors share a memory would keep one copy between them: only the first is kept.

    Raises:
        RequestError: the optimizer is of another library.
    """
    if not isinstance(optimizer, SGD):
        theirs = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        raise RequestError(f"optimizer: expected mp.SGD(lr=...), which runs as tasks on each block; got {theirs}")
    found = {}
    for tensor in graph.lasting:
        points, rects, home = at_home(tensor.shape, plan.weight(tensor.name), machine)
        names = optimizer.state_names if tensor.requires_grad else ()
        found[tensor.name] = Weight(
            tensor.name,
            table.region(tensor.name, tensor.shape, tensor.dtype),
            tuple(table.region(f"{tensor.name}.{state}", tensor.shape, tensor.dtype) for state in names),
            points,
            rects,
            home,
        )
    return found


def at_home(
    shape: Sequence[int], plan: WeightPlan, machine: Machine
) -> tuple[tuple[Point, ...], tuple[Rect, ...], Home]:
    """Give the tasks that update a tensor, what each updates, and (memory, rectangles) where it lives."""
    partition = blocks(plan.degrees).bind(Rect.of_shape(shape))
    points, rects = [], []
    for number, (color, rect) in enumerate(zip(partition.colors.points(), partition.tiles, strict=True)):
        if rect.is_empty:
            continue
        for point in replicas(color, plan.of_block(number), machine):
            points.append(point)
            rects.append(rect)
    held: dict[int, list[Rect]] = {}
    for point, rect in zip(points, rects, strict=True):
        held.setdefault(machine.memory_of(point.processor), []).append(rect)
    return tuple(points), tuple(rects), tuple((memory, tuple(tiles)) for memory, tiles in sorted(held.items()))


def kept_values(graph: Graph, weights: Mapping[str, Weight], memories: Mapping[int, Memory]) -> dict[str, torch.Tensor]:
    """Every parameter and buffer, whole, from the memories of the only rank.

    Args:
        graph: The graph.
        weights: Where they are kept, by name.
        memories: By number.
    """
    import torch

    from maniple.runtime.storage.copy_kernels import torch_dtype

    found = {}
    for tensor in graph.lasting:
        whole = found[tensor.name] = torch.empty(tensor.shape, dtype=torch_dtype(tensor.dtype))
        weight = weights[tensor.name]
        for number, rects in weight.home:
            for rect in rects:
                whole[rect.slices((0,) * rect.ndim)] = memories[number].view(weight.value, rect)
    return found
