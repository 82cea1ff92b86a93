"""Expansion: a graph and a plan become the launches of a training step, of an evaluation, or of a fetch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from maniple.operators.body import BackwardBinder, FetchBinder, ForwardBinder, InputBinder, UpdateBinder
from maniple.operators.program import Port, Program
from maniple.regions.error import RequestError
from maniple.regions.partition import blocks
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, reduce
from maniple.regions.rectangle import Rect, overlapping
from maniple.runtime.launch import Launch, Point, Requirement

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maniple.operators.graph import Graph, Node
    from maniple.operators.optimizer import SGD
    from maniple.operators.plan import Plan
    from maniple.operators.rule import Tile
    from maniple.regions.logical_region import LogicalRegion
    from maniple.runtime.fragment import Home
    from maniple.runtime.launch import Binder
    from maniple.runtime.machine import Machine
    from maniple.runtime.region_table import RegionTable

__all__: list[str] = []


def nothing(ndim: int) -> Rect:
    """Give the empty rectangle: the point does not use the region."""
    return Rect((0,) * ndim, (0,) * ndim)


def empty(rect: Rect | None, region: LogicalRegion) -> Rect:
    """Give a rectangle, or the empty one where there is none."""
    return nothing(region.bounds.ndim) if rect is None else rect


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter's regions that outlive steps.

    Args:
        name: the parameter's name.
        value: its value.
        states: the optimizer's state, in the optimizer's order.
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


def weights(graph: Graph, plan: Plan, machine: Machine, optimizer: SGD, table: RegionTable) -> dict[int, Weight]:
    """Give every parameter (by tensor id) the regions of its value and optimizer state, and its home.

    Replicas of a block whose processors share a memory would keep one copy between them: only the first is kept.
    """
    found = {}
    for tensor in graph.parameters:
        home = plan.weight(tensor.name)
        partition = blocks(home.degrees).bind(Rect.of_shape(tensor.shape))
        points, rects = [], []
        for number, (color, rect) in enumerate(zip(partition.colors.points(), partition.tiles, strict=True)):
            if rect.is_empty:
                continue
            for point in _replicas(color, home.of_block(number), machine):
                points.append(point)
                rects.append(rect)
        held: dict[int, list[Rect]] = {}
        for point, rect in zip(points, rects, strict=True):
            held.setdefault(machine.memory_of(point.processor), []).append(rect)
        found[tensor.id] = Weight(
            tensor.name,
            table.region(tensor.name, tensor.shape, tensor.dtype),
            tuple(
                table.region(f"{tensor.name}.{state}", tensor.shape, tensor.dtype) for state in optimizer.state_names
            ),
            tuple(points),
            tuple(rects),
            tuple((memory, tuple(tiles)) for memory, tiles in sorted(held.items())),
        )
    return found


def _replicas(color: tuple[int, ...], processors: Iterable[int], machine: Machine) -> list[Point]:
    """Place the replicas of one point: one per memory, for a memory holds one valid copy."""
    chosen: dict[int, int] = {}
    for processor in processors:
        chosen.setdefault(machine.memory_of(processor), processor)
    return [Point(color, processor, replica) for replica, processor in enumerate(chosen.values())]


@dataclass(frozen=True, slots=True)
class _Placed:
    """The tasks of one operator: forward points with replicas, and the backward's points (replica 0 of each)."""

    points: tuple[Point, ...]
    tiles: tuple[Tile, ...]
    reduces: bool

    @property
    def primary(self) -> tuple[int, ...]:
        return tuple(i for i, point in enumerate(self.points) if point.replica == 0)


@dataclass
class Expansion:
    """Expands a graph under a plan into launches.

    Args:
        graph: the graph.
        plan: a configuration for every operator and weight of it.
        machine: the machine; every rank of it gets the results.
        held: the regions of the parameters.
        table: makes the other regions.
    """

    graph: Graph
    plan: Plan
    machine: Machine
    held: dict[int, Weight]
    table: RegionTable
    inputs: dict[str, Port] = field(default_factory=dict)
    results: dict[str, Port] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._values: dict[int, LogicalRegion] = {tensor: weight.value for tensor, weight in self.held.items()}
        self._gradients: dict[int, LogicalRegion] = {}
        self._saved: dict[int, tuple[LogicalRegion, ...]] = {}
        self._placed: dict[int, _Placed] = {}
        self._launches: list[Launch] = []

    def training_step(self, optimizer: SGD) -> Program:
        """Expand one step: inputs, forward, loss to every rank, backward, updates as gradients become complete."""
        loss = self.graph.loss_tensor
        if loss is None:
            raise RequestError(f"graph {self.graph.name!r} has no loss to train for; name one with loss(tensor)")
        nodes = self._needed([loss])
        self._forward(nodes)
        self._fetch("loss", loss)
        self._backward(nodes, optimizer)
        return self._program()

    def evaluation(self) -> Program:
        """Expand the forward pass of what the outputs need, and bring the outputs whole to every rank."""
        self._forward(self._needed(list(self.graph.outputs.values())))
        for name, tensor in self.graph.outputs.items():
            self._fetch(name, tensor)
        return self._program()

    def fetch_weights(self) -> Program:
        """Expand the fetch of every parameter, whole, to every rank."""
        for tensor, weight in self.held.items():
            self._fetch(weight.name, tensor)
        return self._program()

    def _program(self) -> Program:
        homes = {}
        for weight in self.held.values():
            for region in (weight.value, *weight.states):
                homes[region.id] = weight.home
        return Program(tuple(self._launches), homes)

    def _needed(self, targets: Sequence[int]) -> list[Node]:
        """Give the nodes that the targets depend on, in graph order."""
        wanted = set(targets)
        nodes = []
        for node in reversed(self.graph.nodes):
            if node.result in wanted:
                nodes.append(node)
                wanted.update(operand for operand in node.operands if operand is not None)
        return nodes[::-1]

    def _place(self, node: Node) -> _Placed:
        if node.id not in self._placed:
            config = self.plan.operator(node.name)
            bound = self.graph.bound(node)
            degrees = dict(config.degrees)
            reduces = any(factor.reduction and degrees[factor.name] > 1 for factor in bound.factors)
            points, tiles = [], []
            for number, tile in enumerate(bound.tiles(degrees)):
                if tile.is_empty:
                    continue
                replicas = _replicas(tile.index, config.of_point(number), self.machine)
                # A contribution counts once, so a replica of a reducing task would be thrown away.
                for point in replicas[:1] if reduces else replicas:
                    points.append(point)
                    tiles.append(tile)
            self._placed[node.id] = _Placed(tuple(points), tuple(tiles), reduces and len(points) > 1)
        return self._placed[node.id]

    def _forward(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self._place(node)
        self._inputs(nodes)
        for node in nodes:
            self._forward_launch(node)

    def _inputs(self, nodes: Sequence[Node]) -> None:
        """Launch the arrival of each input: every rank holds the whole batch and writes what its tasks will read."""
        for tensor in self.graph.inputs:
            used: dict[int, Rect] = {}
            for node in nodes:
                placed = self._placed[node.id]
                for slot, operand in enumerate(node.operands):
                    if operand != tensor.id:
                        continue
                    for point, tile in zip(placed.points, placed.tiles, strict=True):
                        rect = tile.operand_rects[slot]
                        memory = self.machine.memory_of(point.processor)
                        if rect is not None:
                            used[memory] = used[memory].hull(rect) if memory in used else rect
            if not used:
                continue
            port = self.inputs[tensor.name] = Port(tuple(sorted(used)))
            region = self._value(tensor.id)
            points = tuple(
                Point((), self.machine.processors_of(memory)[0], replica) for replica, memory in enumerate(sorted(used))
            )
            rects = tuple(used[memory] for memory in sorted(used))
            self._launch(
                f"{tensor.name}.input", points, (Requirement(region, WRITE_DISCARD, rects),), InputBinder(port, rects)
            )

    def _forward_launch(self, node: Node) -> None:
        placed = self._place(node)
        requirements = [
            self._operand(node, slot, operand, placed)
            for slot, operand in enumerate(node.operands)
            if operand is not None
        ]
        result = self._value(node.result)
        privilege = reduce("+") if placed.reduces else WRITE_DISCARD
        requirements.append(Requirement(result, privilege, tuple(tile.result_rect for tile in placed.tiles)))
        for number, region in enumerate(self._saved_regions(node)):
            rects = tuple(tile.saved_rects[number] for tile in placed.tiles)
            requirements.append(Requirement(region, WRITE_DISCARD, rects))
        flops = tuple(float(node.operator.flops(tile).forward) for tile in placed.tiles)
        binder = ForwardBinder(self.graph, node, placed.tiles)
        self._launch(f"{node.name}.forward", placed.points, tuple(requirements), binder, flops)

    def _operand(self, node: Node, slot: int, operand: int, placed: _Placed) -> Requirement:
        region = self._value(operand)
        return Requirement(region, READ, tuple(empty(tile.operand_rects[slot], region) for tile in placed.tiles))

    def _backward(self, nodes: Sequence[Node], optimizer: SGD) -> None:
        wanted = self._differentiated(nodes)
        contributors: dict[int, list[Node]] = {}
        for node in reversed(nodes):
            for operand in dict.fromkeys(self._gradient_operands(node, wanted).values()):
                contributors.setdefault(operand, []).append(node)
        left = {tensor: len(found) for tensor, found in contributors.items()}
        for node in reversed(nodes):
            operands = self._gradient_operands(node, wanted)
            if not operands:
                continue
            # The input's gradient first: tasks, perhaps on other ranks, wait for it while the weights' is computed.
            parts = {"backward": operands.keys() - self._weight_slots(node)}
            parts["weight_gradient"] = operands.keys() - parts["backward"]
            for name, slots in parts.items():
                if slots:
                    self._backward_launch(node, name, {slot: operands[slot] for slot in sorted(slots)}, contributors)
            for operand in dict.fromkeys(operands.values()):
                left[operand] -= 1
                if not left[operand] and operand in self.held:
                    self._update(self.held[operand], self._gradient(operand), optimizer)

    def _differentiated(self, nodes: Sequence[Node]) -> set[int]:
        """Give the tensors whose gradient is wanted: parameters, and what depends on one."""
        wanted = set(self.held)
        for node in nodes:
            differentiable = (node.operands[slot] for slot in node.operator.differentiable)
            if any(operand in wanted for operand in differentiable):
                wanted.add(node.result)
        return wanted

    def _gradient_operands(self, node: Node, wanted: set[int]) -> dict[int, int]:
        """Give the operand slots (with their tensors) to which a node contributes gradients."""
        slots = {slot: node.operands[slot] for slot in node.operator.differentiable if slot < len(node.operands)}
        return {slot: operand for slot, operand in slots.items() if operand is not None and operand in wanted}

    def _weight_slots(self, node: Node) -> set[int]:
        """Give the operand slots that hold parameters."""
        return {slot for slot, operand in enumerate(node.operands) if operand in self.held}

    def _backward_launch(
        self, node: Node, name: str, operands: dict[int, int], contributors: dict[int, list[Node]]
    ) -> None:
        """Launch the tasks that compute some of a node's gradients.

        Args:
            node: the operator.
            name: `backward` for the gradients of its inputs, `weight_gradient` for those of its parameters.
            operands: the slots (with their tensors) whose gradients are wanted.
            contributors: for each tensor the operators that add to its gradient.
        """
        placed = self._place(node)
        chosen = placed.primary
        points = tuple(placed.points[i] for i in chosen)
        tiles = tuple(placed.tiles[i] for i in chosen)
        primary = _Placed(points, tiles, placed.reduces)
        operator = node.operator
        requirements = []
        slots: list[tuple[str, int]] = []
        if node.result != self.graph.loss_tensor:
            gradient = self._gradient(node.result)
            requirements.append(Requirement(gradient, READ, tuple(tile.result_rect for tile in tiles)))
            slots.append(("gradient", 0))
        for slot in operator.backward_reads.operands:
            operand = node.operands[slot] if slot < len(node.operands) else None
            if operand is not None:
                requirements.append(self._operand(node, slot, operand, primary))
                slots.append(("operand", slot))
        if operator.backward_reads.result:
            region = self._value(node.result)
            requirements.append(Requirement(region, READ, tuple(tile.result_rect for tile in tiles)))
            slots.append(("result", 0))
        for number, region in enumerate(self._saved_regions(node)):
            rects = tuple(tile.saved_rects[number] for tile in tiles)
            requirements.append(Requirement(region, READ, rects))
            slots.append(("saved", number))
        for slot, operand in operands.items():
            region = self._gradient(operand)
            rects = tuple(empty(tile.gradient_rects[slot], region) for tile in tiles)
            alone = len(contributors[operand]) == 1 and list(operands.values()).count(operand) == 1
            privilege = WRITE_DISCARD if alone and _disjoint(rects) else reduce("+")
            requirements.append(Requirement(region, privilege, rects))
            slots.append(("operand_gradient", slot))
        # An operator with parameters spends half of its backward pass on each side.
        share = 0.5 if self._weight_slots(node) else 1.0
        flops = tuple(share * operator.flops(tile).backward for tile in tiles)
        binder = BackwardBinder(self.graph, node, tiles, tuple(slots))
        self._launch(f"{node.name}.{name}", points, tuple(requirements), binder, flops)

    def _update(self, weight: Weight, gradient: LogicalRegion, optimizer: SGD) -> None:
        requirements = [
            Requirement(weight.value, READ_WRITE, weight.rects),
            Requirement(gradient, READ, weight.rects),
            *(Requirement(state, READ_WRITE, weight.rects) for state in weight.states),
        ]
        flops = tuple(float(4 * rect.volume) for rect in weight.rects)
        self._launch(f"{weight.name}.update", weight.points, tuple(requirements), UpdateBinder(optimizer), flops)

    def _fetch(self, name: str, tensor: int) -> None:
        """Bring a tensor whole to every memory and hand it to the port of that name."""
        region = self._value(tensor)
        port = self.results[name] = Port(tuple(memory.id for memory in self.machine.memories))
        points = tuple(
            Point((number,), self.machine.processors_of(memory.id)[0])
            for number, memory in enumerate(self.machine.memories)
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
    ) -> None:
        self._launches.append(Launch(name, points, requirements, binder, flops))

    def _value(self, tensor: int) -> LogicalRegion:
        return self._region(self._values, tensor, "")

    def _gradient(self, tensor: int) -> LogicalRegion:
        return self._region(self._gradients, tensor, ".grad")

    def _region(self, found: dict[int, LogicalRegion], tensor: int, suffix: str) -> LogicalRegion:
        if tensor not in found:
            info = self.graph.tensors[tensor]
            found[tensor] = self.table.region(info.name + suffix, info.shape, info.dtype)
        return found[tensor]

    def _saved_regions(self, node: Node) -> tuple[LogicalRegion, ...]:
        if node.id not in self._saved:
            bound = self.graph.bound(node)
            self._saved[node.id] = tuple(
                self.table.region(f"{node.name}.{saved.name}", shape, saved.dtype or self._value(node.result).dtype)
                for (saved, _), shape in zip(bound.rule.saved, bound.saved_shapes, strict=True)
            )
        return self._saved[node.id]


def _disjoint(rects: Sequence[Rect]) -> bool:
    """Say whether rectangles share no element."""
    return next(overlapping(rects), None) is None
