"""Expansion: a graph and a plan become the launches of a training step, of an evaluation, or of a fetch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from maniple.operators.lowering.backward import Backward
from maniple.operators.lowering.composite import lower_composites
from maniple.operators.lowering.operator_body import AssignBinder, FetchBinder, ForwardBinder, InputBinder, UpdateBinder
from maniple.operators.lowering.step_program import Port, Program
from maniple.operators.lowering.step_regions import StepRegions, used_part
from maniple.operators.lowering.weight import Weight
from maniple.operators.rules.task_placement import PlacedTasks, place_tasks
from maniple.regions.error import RequestError
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, reduce
from maniple.runtime.schedule.launch import Launch, Point, Requirement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maniple.operators.graph.graph import Graph, Node
    from maniple.operators.graph.node import TensorInfo
    from maniple.operators.plan.plan import Plan
    from maniple.operators.training.optimizer import SGD
    from maniple.regions.logical_region import LogicalRegion
    from maniple.regions.rectangle import Rect
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.program.region_table import RegionTable
    from maniple.runtime.schedule.launch import Binder

__all__: list[str] = []


@dataclass
class Expansion:
    """Expands a graph under a plan into launches.

    Args:
        graph: the graph.
        plan: a configuration for every operator and weight of it.
        machine: the machine; every rank of it gets the results.
        held: the regions of the parameters and buffers, by name.
        table: makes the other regions.
        inputs: the ports through which inputs enter.
        results: the ports through which results leave.
        clock: the port through which the seed and the number of the step enter, where an operator draws numbers.
        checked: whether an operator that gives a NaN stops the step.
    """

    graph: Graph
    plan: Plan
    machine: Machine
    held: Mapping[str, Weight]
    table: RegionTable
    inputs: dict[str, Port] = field(default_factory=dict)
    results: dict[str, Port] = field(default_factory=dict)
    clock: Port | None = None
    checked: bool = False

    def __post_init__(self) -> None:
        self._tensors = self.graph.tensors
        self._regions = StepRegions(self.graph, self.held, self.table)
        self._placed: dict[int, PlacedTasks] = {}
        self._launches: list[Launch] = []

    def _lower(self, *, training: bool) -> None:
        """Replace the operators whose split needs an exchange inside them."""
        self.graph, self.plan = lower_composites(self.graph, self.plan, training=training)
        self._tensors = self.graph.tensors
        self._regions = StepRegions(self.graph, self.held, self.table)

    def training_step(self, optimizer: SGD) -> Program:
        """Expand one step: inputs, forward, loss to every rank, backward, updates as gradients become complete.

        Buffers get their next values last: whatever reads one in the step sees the old value.
        """
        if self.graph.loss_tensor is None:
            raise RequestError(f"graph {self.graph.name!r} has no loss to train for; name one with loss(tensor)")
        self._lower(training=True)
        loss = self.graph.loss_tensor
        assignments = self.graph.assignments
        nodes = self._find_needed([loss, *assignments.values()])
        self._forward(nodes, training=True)
        self._fetch("loss", loss)
        self._backward(nodes, optimizer)
        for buffer, value in assignments.items():
            self._assign(self.held[self._tensors[buffer].name], self._regions.value(value))
        return self._program()

    def evaluation(self) -> Program:
        """Expand the forward pass of what the outputs need, and bring the outputs whole to every rank."""
        self._lower(training=False)
        self._forward(self._find_needed(list(self.graph.outputs.values())), training=False)
        for name, tensor in self.graph.outputs.items():
            self._fetch(name, tensor)
        return self._program()

    def fetch_weights(self) -> Program:
        """Expand the fetch of every parameter and buffer, whole, to every rank."""
        for tensor in self.graph.lasting:
            self._fetch(tensor.name, tensor.id)
        return self._program()

    def _program(self) -> Program:
        homes = {region.id: weight.home for weight in self.held.values() for region in weight.regions}
        return Program(tuple(self._launches), homes)

    def _find_needed(self, targets: Sequence[int]) -> list[Node]:
        """Give the nodes that the targets depend on, in graph order."""
        wanted = set(targets)
        nodes = []
        for node in reversed(self.graph.nodes):
            if wanted.intersection(node.results):
                nodes.append(node)
                wanted.update(operand for operand in node.operands if operand is not None)
        return nodes[::-1]

    def _place(self, node: Node) -> PlacedTasks:
        if node.id not in self._placed:
            config = self.plan.operator(node.name)
            self._placed[node.id] = place_tasks(self.graph.bound(node), config, self.machine)
        return self._placed[node.id]

    def _forward(self, nodes: Sequence[Node], *, training: bool) -> None:
        self._inputs(nodes)
        self._tick([node for node in nodes if node.operator.random])
        for node in nodes:
            self._forward_launch(node, training=training)

    def _inputs(self, nodes: Sequence[Node]) -> None:
        """Launch the arrival of each input: every rank holds the whole batch and writes what its tasks will read."""
        for tensor in self.graph.inputs:
            self._input(tensor, nodes)

    def _input(self, tensor: TensorInfo, nodes: Sequence[Node]) -> None:
        """Launch the arrival of one input."""
        parts: dict[int, Rect] = {}
        for node in nodes:
            for slot, operand in enumerate(node.operands):
                if operand != tensor.id:
                    continue
                placed = self._place(node)
                for point, tile in zip(placed.points, placed.tiles, strict=True):
                    rect = tile.operand_rects[slot]
                    memory = self.machine.memory_of(point.processor)
                    if rect is not None:
                        parts[memory] = parts[memory].hull(rect) if memory in parts else rect
        if parts:
            self.inputs[tensor.name] = self._arrival(tensor.name, self._regions.value(tensor.id), parts)

    def _tick(self, nodes: Sequence[Node]) -> None:
        """Launch the arrival of the clock wherever a task draws random numbers."""
        region = self._regions.clock
        memories = {self.machine.memory_of(point.processor) for node in nodes for point in self._place(node).points}
        if memories:
            self.clock = self._arrival("clock", region, dict.fromkeys(memories, region.bounds))

    def _arrival(self, name: str, region: LogicalRegion, parts: Mapping[int, Rect]) -> Port:
        """Launch a task in each memory that writes its part of a value that the program brings."""
        memories = sorted(parts)
        port = Port(tuple(memories))
        points = tuple(
            Point((), self.machine.processors_of(memory)[0], replica) for replica, memory in enumerate(memories)
        )
        rects = tuple(parts[memory] for memory in memories)
        self._launch(f"{name}.input", points, (Requirement(region, WRITE_DISCARD, rects),), InputBinder(port, rects))
        return port

    def _forward_launch(self, node: Node, *, training: bool) -> None:
        placed, regions = self._place(node), self._regions
        requirements = []
        for slot, operand in enumerate(node.operands):
            if operand is not None:
                region = regions.value(operand)
                rects = tuple(used_part(tile.operand_rects[slot], region) for tile in placed.tiles)
                requirements.append(Requirement(region, READ, rects))
        for place, (result, fold) in enumerate(zip(node.results, placed.folds, strict=True)):
            privilege = reduce(fold) if fold is not None and len(placed.points) > 1 else WRITE_DISCARD
            rects = tuple(tile.result_rects[place] for tile in placed.tiles)
            requirements.append(Requirement(regions.value(result), privilege, rects))
        for number, region in enumerate(regions.saved_regions(node)):
            rects = tuple(tile.saved_rects[number] for tile in placed.tiles)
            requirements.append(Requirement(region, WRITE_DISCARD, rects))
        if node.operator.random:
            requirements.append(Requirement(regions.clock, READ, (regions.clock.bounds,) * len(placed.points)))
        flops = tuple(float(node.operator.flops(tile).forward) for tile in placed.tiles)
        binder = ForwardBinder(self.graph, node, placed.tiles, training, self.checked)
        kind = f"{node.operator.name}.forward"
        self._launch(f"{node.name}.forward", placed.points, tuple(requirements), binder, flops, kind)

    def _backward(self, nodes: Sequence[Node], optimizer: SGD) -> None:
        backward = Backward(self.graph, nodes, self._regions)
        for node in reversed(nodes):
            self._launches += backward.launches(node, self._place(node))
            for tensor in backward.complete(node):
                if self._tensors[tensor].kind == "parameter":
                    self._update(self.held[self._tensors[tensor].name], self._regions.gradient(tensor), optimizer)

    def _update(self, weight: Weight, gradient: LogicalRegion, optimizer: SGD) -> None:
        requirements = [
            Requirement(weight.value, READ_WRITE, weight.rects),
            Requirement(gradient, READ, weight.rects),
            *(Requirement(state, READ_WRITE, weight.rects) for state in weight.states),
        ]
        flops = tuple(float(4 * rect.volume) for rect in weight.rects)
        self._launch(
            f"{weight.name}.update", weight.points, tuple(requirements), UpdateBinder(optimizer), flops, "update"
        )

    def _assign(self, buffer: Weight, value: LogicalRegion) -> None:
        requirements = (
            Requirement(buffer.value, WRITE_DISCARD, buffer.rects),
            Requirement(value, READ, buffer.rects),
        )
        self._launch(f"{buffer.name}.assign", buffer.points, requirements, AssignBinder())

    def _fetch(self, name: str, tensor: int) -> None:
        """Bring a tensor whole to every rank and hand it to the port of that name."""
        region = self._regions.value(tensor)
        ranks = {memory.rank: memory.id for memory in reversed(self.machine.memories)}
        port = self.results[name] = Port(tuple(ranks[rank] for rank in sorted(ranks)))
        points = tuple(
            Point((number,), self.machine.processors_of(memory)[0]) for number, memory in enumerate(port.memories)
        )
        requirement = Requirement(region, READ, (region.bounds,) * len(points))
        self._launch(f"{name}.fetch", points, (requirement,), FetchBinder(port))

    def _launch(
        self,
        name: str,
        points: tuple[Point, ...],
        requirements: tuple[Requirement, ...],
        binder: Binder,
        flops: tuple[float, ...] = (),
        kind: str = "",
    ) -> None:
        self._launches.append(Launch(name, points, requirements, binder, flops, kind))
