"""Weights: the regions of a graph's parameters and buffers, which outlive steps, and where they live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from maniple.operators.lowering.precision import PRECISION, SCALED, is_scaled
from maniple.operators.plan.weight_home import planned_home
from maniple.operators.rules.configuration import WeightPlan
from maniple.operators.rules.task_placement import memory_by_processor
from maniple.operators.training import loss_scale
from maniple.operators.training.loss_scale import LossScale
from maniple.operators.training.optimizer import AbstractOptimizer, State
from maniple.process.error import RequestError
from maniple.runtime.schedule.launch_columns import Rects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import torch

    from maniple.operators.graph.graph import Graph
    from maniple.operators.graph.node import TensorInfo
    from maniple.operators.plan.plan import Plan
    from maniple.operators.plan.weight_home import WeightHome
    from maniple.regions.logical_region import LogicalRegion
    from maniple.regions.rectangle import Rect
    from maniple.runtime.analysis.fragment import Home
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.program.region_table import RegionTable
    from maniple.runtime.schedule.launch import Point
    from maniple.runtime.storage.memory import Memory

__all__: list[str] = []

STEP = "step"
"""What the optimizer's state calls the number of steps."""
MOST_STEPS = 2**53
"""Below this many steps, each is a number of its own in double precision, in which it enters."""


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
    points: Sequence[Point]
    rects: Sequence[Rect]
    home: Home

    @classmethod
    def at(cls, name: str, regions: tuple[LogicalRegion, ...], home: WeightHome) -> Weight:
        """A weight of some regions, its value first, that lives at a home."""
        rects = Rects(home.blocks)
        held: dict[int, list[Rect]] = {}
        for memory, rect in zip(home.memories.tolist(), rects, strict=True):
            held.setdefault(memory, []).append(rect)
        lives = tuple((memory, tuple(tiles)) for memory, tiles in sorted(held.items()))
        return cls(name, regions[0], regions[1:], home.points(), rects, lives)

    @property
    def regions(self) -> tuple[LogicalRegion, ...]:
        """The value and the optimizer's state."""
        return (self.value, *self.states)

    @property
    def optimizer_regions(self) -> tuple[LogicalRegion, ...]:
        """What is the optimizer's alone: its state of a parameter, and all of the scale of the loss."""
        return self.regions if self.name == loss_scale.NAME else self.states


def weights(
    graph: Graph, plan: Plan, machine: Machine, optimizer: AbstractOptimizer, table: RegionTable
) -> dict[str, Weight]:
    """Give every parameter and buffer (by name) the regions of its value and optimizer state, and its home.

    Replicas of a block whose processors share a memory would keep one copy between them: only the first is kept.

    Raises:
        RequestError: the optimizer is of another library, or has a group that no parameter is of.
    """
    if not isinstance(optimizer, AbstractOptimizer):
        theirs = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        raise RequestError(
            f"optimizer: expected one of mp.optim, such as mp.optim.AdamW(lr=...), or a class of torch by "
            f"mp.optim.by_torch(torch.optim.RMSprop, lr=...), which run as tasks on each block; got {theirs}"
        )
    optimizer.check_parameters(graph.parameters)
    memory_of, found = memory_by_processor(machine), dict[str, Weight]()
    lives: dict[tuple[tuple[int, ...], WeightPlan], Weight] = {}  # those of one shape at one home share what that says
    for tensor in graph.lasting:
        planned, own = plan.weight(tensor.name), optimizer.of(tensor.name)
        if tensor.requires_grad and own.whole and planned.is_cut:
            raise RequestError(
                f"plan: weights.{tensor.name}: expected one block, for {own.title} updates it whole; got "
                f"degrees {planned.degrees}; search with optimizer=, or take plan.for_optimizer(optimizer, graph, "
                "machine)"
            )
        kept = own.state_names if tensor.requires_grad else ()
        states = [f"{tensor.name}.{state}" for state in kept]
        regions = tuple([table.region(name, tensor.shape, tensor.dtype) for name in (tensor.name, *states)])
        key = tensor.shape, planned
        if key not in lives:
            lives[key] = Weight.at(tensor.name, regions, planned_home(tensor.shape, planned, memory_of))
        found[tensor.name] = replace(lives[key], name=tensor.name, value=regions[0], states=regions[1:])
    if dict(plan.semantics).get(PRECISION) == SCALED or is_scaled(graph):
        found[loss_scale.NAME] = Weight.at(loss_scale.NAME, scale_regions(table), scale_home(machine))
    return found


def scale_regions(table: RegionTable) -> tuple[LogicalRegion, ...]:
    """The scale of the loss and its counts; see ``loss_scale``."""
    name = loss_scale.NAME
    counts = (table.region(f"{name}.{count}", (), "float64") for count in loss_scale.COUNTS)
    return table.region(name, (), "float32"), *counts


def scale_home(machine: Machine) -> WeightHome:
    """Where the scale of the loss lives: in every memory, so that no step waits for it."""
    processors = tuple(machine.processors_of(memory.id)[0] for memory in machine.memories)
    return planned_home((), WeightPlan((), processors, len(processors)), memory_by_processor(machine))


def write_weights(
    weights: Mapping[str, Weight],
    memories: Mapping[int, Memory],
    tensors: Iterable[TensorInfo],
    values: Callable[[TensorInfo, Rect], torch.Tensor],
) -> None:
    """Write parameters and buffers at a rank's part of their home.

    Args:
        weights: Where they live, by name.
        memories: The rank's, by number.
        tensors: Those that are written.
        values: What a part of one of them gets.
    """
    for tensor in tensors:
        weight = weights[tensor.name]
        for number, rects in weight.home:
            for rect in rects if number in memories else ():
                memories[number].assign(weight.value, rect, values(tensor, rect))


def fill_states(weights: Mapping[str, Weight], memories: Mapping[int, Memory], optimizer: AbstractOptimizer) -> None:
    """Fill what an optimizer keeps that does not begin at zero; see ``write_weights``."""
    import torch

    from maniple.runtime.storage.copy_kernels import torch_dtype

    for name, weight in weights.items():
        if name == loss_scale.NAME:
            own = State(name, (optimizer.loss_scale or LossScale()).init_scale), *map(State, loss_scale.COUNTS)
        else:
            own = optimizer.of(name).states if weight.states else ()
        for region, state in zip(weight.optimizer_regions, own, strict=True):
            for number, rects in weight.home if state.fill else ():
                for rect in rects if number in memories else ():
                    filled = torch.full(rect.shape, state.fill, dtype=torch_dtype(region.dtype))
                    memories[number].assign(region, rect, filled)


def check_states(weights: Mapping[str, Weight], state: object) -> tuple[int, dict[str, torch.Tensor]]:
    """The number of steps and what an optimizer kept, whole tensors by the name of the region, where they fit.

    Args:
        weights: Where it goes, by name of the parameter.
        state: What was given.

    Raises:
        RequestError: An entry is missing, unknown, of another shape or dtype, or no tensor of values.
    """
    import torch

    from maniple.runtime.storage.copy_kernels import torch_dtype

    if not isinstance(state, Mapping) or STEP not in state:
        raise RequestError(f"optimizer state: expected an entry {STEP!r}, the number of steps; pass it whole")
    found = {name: value for name, value in state.items() if name != STEP}
    states = {region.name: region for weight in weights.values() for region in weight.optimizer_regions}
    if states.keys() != found.keys():
        wrong = sorted(map(str, states.keys() ^ found.keys()))
        raise RequestError(f"optimizer state: expected one entry for each of {len(states)}; wrong: {', '.join(wrong)}")
    for name, region in states.items():
        value, dtype = found[name], torch_dtype(region.dtype)
        if not isinstance(value, torch.Tensor) or value.is_meta:
            came = "a tensor without values" if isinstance(value, torch.Tensor) else type(value).__name__
            raise RequestError(f"optimizer state {name}: expected a tensor, got {came}; pass what optimizer_state gave")
        if tuple(value.shape) != region.bounds.shape:
            raise RequestError(f"optimizer state {name}: expected {region.bounds.shape}, got {tuple(value.shape)}")
        if value.dtype != dtype:
            raise RequestError(f"optimizer state {name}: expected {dtype}, got {value.dtype}; convert it with .to()")
    return _steps(state[STEP]), {name: value.detach() for name, value in found.items()}


def _steps(given: object) -> int:
    import torch

    single = isinstance(given, torch.Tensor) and given.numel() == 1 and not given.is_meta
    value = given.item() if isinstance(given, torch.Tensor) and single else given
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MOST_STEPS or value % 1:
        raise RequestError(f"optimizer state {STEP}: expected a whole number >= 0, the number of steps; got {given!r}")
    return int(value)


def write_states(
    weights: Mapping[str, Weight], memories: Mapping[int, Memory], found: Mapping[str, torch.Tensor]
) -> None:
    """Write what an optimizer keeps, as ``check_states`` gave it; see ``write_weights``."""
    for weight in weights.values():
        for state in weight.optimizer_regions:
            for number, rects in weight.home:
                for rect in rects if number in memories else ():
                    memories[number].assign(state, rect, found[state.name][rect.slices((0,) * rect.ndim)])


def drop_weights(weights: Mapping[str, Weight], memories: Mapping[int, Memory]) -> None:
    """Let go of what a rank keeps of parameters and buffers; see ``write_weights``."""
    for weight in weights.values():
        for region in weight.regions:
            for memory in memories.values():
                memory.drop(region)


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
