"""Backward: the launches that compute gradients, last operator first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.operators.graph.differentiation import find_differentiated, gradient_operands, gradient_results
from maniple.operators.lowering.operator_body import BackwardBinder
from maniple.operators.lowering.step_regions import used_part
from maniple.regions.privilege import READ, WRITE_DISCARD, reduce
from maniple.regions.rectangle import Rect, overlapping
from maniple.runtime.schedule.launch import Launch, Requirement

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maniple.operators.graph.graph import Graph, Node
    from maniple.operators.lowering.step_regions import StepRegions
    from maniple.operators.rules.task_placement import PlacedTasks

__all__: list[str] = []


class Backward:
    """The backward pass of some nodes.

    A gradient with one contributor and disjoint tiles is written; any other is reduced.

    Args:
        graph: the graph.
        nodes: what the loss depends on, in the graph's order.
        regions: the regions of the step.
        wanted: the tensors whose gradient is computed; by default those that the graph's own loss needs.
    """

    def __init__(
        self, graph: Graph, nodes: Sequence[Node], regions: StepRegions, wanted: frozenset[int] | None = None
    ) -> None:
        self._graph = graph
        self._tensors = graph.tensors
        self._regions = regions
        self._wanted = find_differentiated(graph) if wanted is None else wanted
        self._contributors: dict[int, int] = {}
        self._slots = {node.id: self._gradient_slots(node) for node in nodes}
        for slots in self._slots.values():
            for operand in slots.values():
                self._contributors[operand] = self._contributors.get(operand, 0) + 1
        self._left = dict(self._contributors)

    def launches(self, node: Node, placed: PlacedTasks) -> Iterator[Launch]:
        """Give the launches of one node.

        The inputs' gradients come first: tasks, perhaps on other ranks, wait for them while the parameters' are
        computed in tasks of their own.
        """
        slots = self._slots[node.id]
        owned = {slot for slot, operand in enumerate(node.operands) if self._is_parameter(operand)}
        # An operator with parameters spends half of its backward pass on each side.
        share = 0.5 if owned else 1.0
        for name, chosen in (("backward", slots.keys() - owned), ("weight_gradient", slots.keys() & owned)):
            if chosen:
                yield self._launch(node, name, {slot: slots[slot] for slot in sorted(chosen)}, placed.primary(), share)

    def complete(self, node: Node) -> list[int]:
        """Count a node's contributions as launched, and give the tensors whose gradients lack no other."""
        found = []
        for operand in self._slots[node.id].values():
            self._left[operand] -= 1
            if not self._left[operand]:
                found.append(operand)
        return found

    def _is_parameter(self, operand: int | None) -> bool:
        return operand is not None and self._tensors[operand].kind == "parameter"

    def _gradient_slots(self, node: Node) -> dict[int, int]:
        """The operands (by slot) to which a node contributes gradients."""
        if not self._wanted.intersection(gradient_results(self._graph, node).values()):
            return {}
        slots = gradient_operands(self._graph, node)
        return {slot: operand for slot, operand in slots.items() if operand in self._wanted}

    def _launch(self, node: Node, name: str, operands: dict[int, int], placed: PlacedTasks, share: float) -> Launch:
        """Give the tasks that compute some of a node's gradients.

        Args:
            node: the operator.
            name: `backward` for the gradients of its inputs, `weight_gradient` for those of its parameters.
            operands: the slots (with their tensors) whose gradients are wanted.
            placed: its tasks.
            share: of the floating-point operations of its backward pass.
        """
        requirements, slots = self._reads(node, placed)
        for slot, operand in operands.items():
            region = self._regions.gradient(operand)
            rects = tuple(used_part(tile.gradient_rects[slot], region) for tile in placed.tiles)
            alone = self._contributors[operand] == 1
            privilege = WRITE_DISCARD if alone and _disjoint(rects) else reduce("+")
            requirements.append(Requirement(region, privilege, rects))
            slots.append(("operand_gradient", slot))
        flops = tuple(share * node.operator.flops(tile).backward for tile in placed.tiles)
        binder = BackwardBinder(self._graph, node, placed.tiles, tuple(slots))
        kind = f"{node.operator.name}.{name}"
        return Launch(f"{node.name}.{name}", placed.points, tuple(requirements), binder, flops, kind)

    def _reads(self, node: Node, placed: PlacedTasks) -> tuple[list[Requirement], list[tuple[str, int]]]:
        """What the backward tasks of a node read, and which part of the operator each requirement is."""
        regions, operator, tiles = self._regions, node.operator, placed.tiles
        requirements: list[Requirement] = []
        slots: list[tuple[str, int]] = []
        for place, tensor in gradient_results(self._graph, node).items():
            if tensor in self._wanted and tensor != self._graph.loss_tensor:
                rects = tuple(tile.result_rects[place] for tile in tiles)
                requirements.append(Requirement(regions.gradient(tensor), READ, rects))
                slots.append(("result_gradient", place))
        for slot in operator.backward_reads.operand_places(len(node.operands)):
            operand = node.operands[slot]
            if operand is not None:
                region = regions.value(operand)
                rects = tuple(used_part(tile.operand_rects[slot], region) for tile in tiles)
                requirements.append(Requirement(region, READ, rects))
                slots.append(("operand", slot))
        for place in operator.backward_reads.results:
            rects = tuple(tile.result_rects[place] for tile in tiles)
            requirements.append(Requirement(regions.value(node.results[place]), READ, rects))
            slots.append(("result", place))
        for number, region in enumerate(regions.saved_regions(node)):
            rects = tuple(tile.saved_rects[number] for tile in tiles)
            requirements.append(Requirement(region, READ, rects))
            slots.append(("saved", number))
        if operator.random:
            requirements.append(Requirement(regions.clock, READ, (regions.clock.bounds,) * len(tiles)))
            slots.append(("clock", 0))
        return requirements, slots


def _disjoint(rects: Sequence[Rect]) -> bool:
    """Say whether rectangles share no element."""
    return next(overlapping(rects), None) is None
