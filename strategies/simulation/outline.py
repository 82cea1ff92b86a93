"""Outlines: what of a training step no plan changes: the operators it needs, their order, and what regions hold.

A launch has a place that stays the same whatever the plan is, in the order of the program that the runtime lowers:

    inputs | clock | forward: each operator has PLACES places | fetch | backward, last operator first | assignments
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, final

from maniple.operators.graph.differentiation import find_differentiated, gradient_operands, gradient_results
from maniple.regions.error import RequestError
from maniple.regions.logical_region import LogicalRegion
from maniple.regions.rectangle import Rect
from maniple.strategies.simulation.operator_form import Need, operator_form

if TYPE_CHECKING:
    from maniple.operators.graph.graph import Graph
    from maniple.operators.graph.node import Node
    from maniple.operators.training.optimizer import SGD
    from maniple.runtime.machine.machine import Machine
    from maniple.strategies.simulation.operator_form import OperatorForm, RegionRef

__all__: list[str] = []

PLACES = 256
MOST_PLACES = 1 << 23

RegionKey = tuple[str, int, int]
"""``value`` or ``gradient`` of (-1, tensor of the graph) or of (operator, tensor of its form), ``saved`` of (operator,
place), ``state`` of (number, weight), or the ``clock``."""
CLOCK: RegionKey = ("clock", -1, 0)


@final
class Outline:
    """What of a training step no plan changes.

    Args:
        graph: the graph; it must have a loss.
        semantics: what changes results by intent.
        machine: the machine.
        optimizer: what updates the weights.
    """

    def __init__(self, graph: Graph, semantics: dict[str, str], machine: Machine, optimizer: SGD) -> None:
        if graph.loss_tensor is None:
            raise RequestError(f"graph {graph.name!r} has no loss to train for; name one with loss(tensor)")
        self.graph, self.machine, self.optimizer = graph, machine, optimizer
        self.tensors, self.nodes = graph.tensors, graph.nodes
        self.number = {node.name: node.id for node in self.nodes}
        self.operators = [node.operator.under(semantics) for node in self.nodes]
        self.exchanged = [frozenset(operator.exchanges()) for operator in self.operators]
        self.producer = {result: node.id for node in self.nodes for result in node.results}
        self.assignments = graph.assignments
        self.loss = graph.loss_tensor
        self.needed, self._tensors_needed = _find_needed(graph, [graph.loss_tensor, *self.assignments.values()])
        self._wanted = find_differentiated(graph)
        self.finisher = self._finishers()
        self._layouts: dict[object, tuple[tuple[int, ...], int]] = {}
        self._forms: dict[object, OperatorForm] = {}
        self._classes: dict[object, int] = {}
        self.kind = [self._classes.setdefault(self._kind(node), len(self._classes)) for node in self.nodes]
        first = PLACES * (1 + (len(graph.inputs) + 1) // PLACES)
        self.fetch = first + PLACES * (len(self.nodes) + 1)
        self.clock = len(graph.inputs)
        self.forward = [first + PLACES * node.id for node in self.nodes]
        self.backward = [self.fetch + PLACES * (len(self.nodes) - node.id) for node in self.nodes]
        self.assigned = {b: self.fetch + PLACES * (len(self.nodes) + 1) + n for n, b in enumerate(self.assignments)}
        if max(self.assigned.values(), default=self.fetch + PLACES * len(self.nodes)) >= MOST_PLACES:
            raise RequestError(f"simulation: expected at most {MOST_PLACES // PLACES // 2} operators")

    def _finishers(self) -> dict[int, int]:
        """The operator after whose backward pass the gradient of each parameter is complete."""
        found: dict[int, int] = {}
        for node in self.nodes:
            if node.id in self.needed and self._wanted.intersection(gradient_results(self.graph, node).values()):
                for operand in gradient_operands(self.graph, node).values():
                    if operand in self._wanted and self.tensors[operand].kind == "parameter":
                        found.setdefault(operand, node.id)
        return found

    def _kind(self, node: Node) -> object:
        """What determines the forms of an operator; layers that are alike share."""
        operands = tuple(None if operand is None else self._operand(node, operand) for operand in node.operands)
        results = tuple((r in self._wanted, r in self._tensors_needed, r == self.loss) for r in node.results)
        bound = self.graph.bound(node)
        return node.operator, self.operators[node.id], bound.operand_shapes, operands, results

    def _operand(self, node: Node, operand: int) -> object:
        tensor = self.tensors[operand]
        return tensor.kind, tensor.dtype, tensor.requires_grad, operand in self._wanted, node.operands.index(operand)

    def form(self, number: int, degrees: dict[str, int]) -> OperatorForm:
        """The form of an operator under some degrees."""
        composite = any(degrees.get(factor, 1) > 1 for factor in self.exchanged[number])
        key = self.kind[number], composite
        if key not in self._forms:
            node = self.nodes[number]
            need = Need(tuple(r for r in node.results if r in self._tensors_needed), self._wanted)
            operator = None if composite else self.operators[number]
            self._forms[key] = operator_form(self.graph, node, need, self.machine, self.optimizer, operator=operator)
        return self._forms[key]

    def key(self, number: int, form: OperatorForm, ref: RegionRef) -> RegionKey:
        """Which region of the step a form of an operator means."""
        kind, tensor = ref
        if kind == "clock":
            return CLOCK
        if kind == "saved" or tensor not in form.bound:
            return kind, number, tensor
        side, place = form.bound[tensor]
        node = self.nodes[number]
        found = node.operands[place] if side == "operand" else node.results[place]
        return kind, -1, -1 if found is None else found

    def layout(self, key: RegionKey, forms: dict[int, OperatorForm]) -> tuple[tuple[int, ...], int]:
        """The shape of a region, and the bytes of an element; see `region`."""
        known = (key, None if key[1] < 0 or key[0] == "state" else forms[key[1]])
        found = self._layouts.get(known)
        if found is None:
            region = self.region(key, forms)
            found = self._layouts[known] = region.bounds.hi, region.itemsize
        return found

    def region(self, key: RegionKey, forms: dict[int, OperatorForm]) -> LogicalRegion:
        """A region as the runtime would make it; its number is the tensor's.

        Args:
            key: the region.
            forms: the form of each operator.
        """
        kind, number, tensor = key
        if kind == "clock":
            return LogicalRegion(0, "clock", Rect.of_shape((2,)), "int64")
        suffix = ".grad" if kind == "gradient" else ""
        if kind == "state":
            suffix = f".{self.optimizer.state_names[number]}"
        if number < 0 or kind == "state":
            info = self.tensors[tensor]
            return LogicalRegion(tensor, self._name(tensor, forms) + suffix, Rect.of_shape(info.shape), info.dtype)
        form = forms[number]
        region = form.regions[kind, tensor]
        return replace(region, name=form.name_for(region.name, self.nodes[number].name))

    def _name(self, tensor: int, forms: dict[int, OperatorForm]) -> str:
        """The name of a tensor once composites are replaced."""
        number = self.producer.get(tensor)
        if number is None or number not in forms:
            return self.tensors[tensor].name
        form, place = forms[number], self.nodes[number].results.index(tensor)
        inside = next(own for own, end in form.bound.items() if end == ("result", place))
        return form.name_for(form.regions["value", inside].name, self.nodes[number].name)


def _find_needed(graph: Graph, targets: list[int]) -> tuple[frozenset[int], frozenset[int]]:
    """The operators, and the tensors, that some tensors depend on."""
    wanted, nodes = set(targets), set()
    for node in reversed(graph.nodes):
        if wanted.intersection(node.results):
            nodes.add(node.id)
            wanted.update(operand for operand in node.operands if operand is not None)
    return frozenset(nodes), frozenset(wanted)
