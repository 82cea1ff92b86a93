"""The plan-free step: what no plan changes of a training step: its operators, their order, and what regions hold.

A launch has a place that stays the same whatever the plan is: every action of the step's script but an update has
PLACES places, in the order of the script, and an operator's launches take the first ones of its actions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, final

from maniple.operators.lowering.fusion.fused_launch import home_users
from maniple.operators.lowering.passed_gradient import passed_gradients
from maniple.operators.lowering.precision import is_scaled
from maniple.operators.lowering.script import needs_squares, training_script
from maniple.operators.lowering.step_regions import gradient_dtype
from maniple.operators.lowering.view_group import step_targets, view_groups
from maniple.operators.lowering.weight import scale_regions
from maniple.operators.operator.operator import HALF_DTYPES
from maniple.process.error import RequestError
from maniple.regions.logical_region import LogicalRegion
from maniple.regions.rectangle import Rect
from maniple.runtime.program.region_table import RegionTable
from maniple.strategies.simulation.operator_form import Need, operator_form

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maniple.operators.graph.graph import Graph
    from maniple.operators.graph.node import Node
    from maniple.operators.lowering.launch_form import RegionRef
    from maniple.operators.lowering.script import Action, Script
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.runtime.machine.machine import Machine
    from maniple.strategies.simulation.operator_form import OperatorForm

__all__: list[str] = []

PLACES = 256
MOST_PLACES = 1 << 23

RegionKey = tuple[str, int, int]
"""``value`` or ``gradient`` of (-1, tensor of the graph) or of (operator, tensor of its form), ``saved`` of (operator,
place), ``state`` of (number, weight), the halves of (-1, weight) by their dtype, the ``clock``, ``hyper``, the numbers
of the updates, ``squares``, the sum of those of all gradients, or the ``scale`` of the loss and its counts."""
CLOCK: RegionKey = ("clock", -1, 0)
HYPER: RegionKey = ("hyper", -1, 0)
SQUARES: RegionKey = ("squares", -1, 0)
SCALE: RegionKey = ("scale", -1, 0)
GROWTH: RegionKey = ("scale", -1, 1)
SKIPPED: RegionKey = ("scale", -1, 2)


@final
class PlanFreeStep:
    """What of a training step no plan changes.

    Args:
        graph: the graph; it must have a loss.
        semantics: what changes results by intent.
        machine: the machine.
        optimizer: what updates the weights.
    """

    def __init__(self, graph: Graph, semantics: dict[str, str], machine: Machine, optimizer: AbstractOptimizer) -> None:
        self.passed = passed_gradients(graph)
        """The gradients that operators pass as they are."""
        script = training_script(graph, optimizer, passed=self.passed)
        self._gradient_of = script.backward.gradient_of
        self.graph, self.machine, self.optimizer = graph, machine, optimizer
        self.tensors, self.nodes = graph.tensors, graph.nodes
        self.number = {node.name: node.id for node in self.nodes}
        self.operators = [node.operator.under(semantics) for node in self.nodes]
        self.exchanged = [frozenset(operator.exchanges()) for operator in self.operators]
        self.producer = {result: node.id for node in self.nodes for result in node.results}
        self.assignments = graph.assignments
        self.loss = next(number for kind, number, *_ in script.actions if kind == "fetch")
        self.needed = frozenset(node.id for node in script.nodes)
        read = (operand for node in script.nodes for operand in node.operands if operand is not None)
        self._tensors_needed = frozenset([self.loss, *self.assignments.values(), *read])
        self._wanted = script.backward.wanted
        self._layouts: dict[object, tuple[tuple[int, ...], int]] = {}
        self._types: dict[object, str] = {}
        self._forms: dict[object, OperatorForm] = {}
        self._classes: dict[object, int] = {}
        self.kind = [self._classes.setdefault(self._kind(node), len(self._classes)) for node in self.nodes]
        # Where what follows a complete gradient comes among the launches of an operator, the operator's form says.
        self.follows: Literal["norm", "update"] = "norm" if needs_squares(graph, optimizer) else "update"
        """What comes as soon as the gradient of a parameter is complete."""
        self._actions = [action for action in script.actions if action.kind != self.follows]
        self.places = {(kind, number): PLACES * at for at, (kind, number, *_) in enumerate(self._actions)}
        """Where the launches of each action begin, by its kind and number."""
        if len(self._actions) > MOST_PLACES // PLACES:
            raise RequestError(f"simulation: expected at most {MOST_PLACES // PLACES // 2} operators")
        self.groups = view_groups(graph, step_targets(graph, training=True))
        """The tensors that are views of others."""
        self.finisher = _finishers(script, self.follows)
        """The operator after whose backward pass the gradient of each parameter is complete."""
        named = home_users(graph)
        self.users: Mapping[int, tuple[int, ...]] = {t.id: named[t.name] for t in graph.lasting}
        """By parameter or buffer the operators that use it."""
        self.together = self._neighbours()
        """By buffer, and by parameter where updates come last, the places of what may be one launch with what follows
        at its home."""
        self.halves = {action.number: action.port for action in script.actions if action.kind == "cast"}
        """The parameters and buffers that are cast at their homes, with the dtype."""
        self.scaled = is_scaled(graph)
        """Whether the loss is scaled."""
        self.whole = (
            *((HYPER,) if optimizer.enters else ()),
            *((SQUARES,) if self.follows == "norm" else ()),
            *((SCALE, SKIPPED) if self.scaled else ()),
        )
        """What each task of an update reads whole."""

    def _neighbours(self) -> dict[int, dict[int, int]]:
        found: dict[int, dict[int, int]] = {}
        last: Action | None = None
        for action in self._actions:
            if action.kind in {"update", "assign"}:
                near = last is not None and last.kind == action.kind
                alike = near and last is not None and self.users[last.number] == self.users[action.number]
                places = found[last.number] if alike and last is not None else {}
                places[action.number] = self.places[action.kind, action.number]
                found[action.number] = places
            last = action
        return found

    def own(self, tensor: int) -> AbstractOptimizer:
        """The optimizer as it is for a parameter."""
        return self.optimizer.of(self.tensors[tensor].name)

    def action(self, place: int) -> Action:
        """What of a step a place belongs to; updates belong to the backward pass of an operator."""
        return self._actions[place // PLACES]

    def _kind(self, node: Node) -> object:
        """What determines the forms of an operator; layers that are alike share."""
        operands = tuple(None if operand is None else self._operand(node, operand) for operand in node.operands)
        results = tuple((r in self._wanted, r in self._tensors_needed, r == self.loss) for r in node.results)
        bound = self.graph.bound(node)
        own = node.operator, self.operators[node.id], bound.operand_shapes, self.passed.get(node.id, ())
        return *own, operands, results

    def _operand(self, node: Node, operand: int) -> object:
        tensor = self.tensors[operand]
        row = self.optimizer.row_of(tensor.name) if tensor.requires_grad else 0
        wanted, place = operand in self._wanted, node.operands.index(operand)
        return tensor.kind, tensor.dtype, tensor.requires_grad, wanted, place, row

    def form(self, number: int, degrees: dict[str, int]) -> OperatorForm:
        """The form of an operator under some degrees."""
        composite = any(degrees.get(factor, 1) > 1 for factor in self.exchanged[number])
        key = self.kind[number], composite
        if key not in self._forms:
            node = self.nodes[number]
            needed = tuple(r for r in node.results if r in self._tensors_needed)
            need = Need(needed, self._wanted, self.passed.get(node.id, ()))
            operator = None if composite else self.operators[number]
            self._forms[key] = operator_form(
                self.graph, node, need, self.machine, self.optimizer, operator=operator, scaled=self.scaled
            )
        return self._forms[key]

    def key(self, number: int, form: OperatorForm, ref: RegionRef) -> RegionKey:
        """Which region of the step a form of an operator means."""
        kind, tensor = ref
        if kind in {"clock", "scale"}:
            return CLOCK if kind == "clock" else SCALE
        if kind == "saved" or tensor not in form.bound:
            return kind, number, tensor
        side, place = form.bound[tensor]
        node = self.nodes[number]
        found = node.operands[place] if side == "operand" else node.results[place]
        if kind == "gradient" and found is not None:
            found = self._gradient_of(found)
        return kind, -1, -1 if found is None else found

    def layout(self, key: RegionKey, forms: dict[int, OperatorForm]) -> tuple[tuple[int, ...], int]:
        """The shape of a region, and the bytes of an element; see `region`."""
        known = (key, None if key[1] < 0 or key[0] == "state" else forms[key[1]])
        found = self._layouts.get(known)
        if found is None:
            region = self.region(key, forms)
            found = self._layouts[known] = region.bounds.hi, region.itemsize
        return found

    def dtype(self, key: RegionKey, forms: dict[int, OperatorForm]) -> str:
        """The type of a region's elements; see `region`."""
        known = (key, None if key[1] < 0 or key[0] == "state" else forms[key[1]])
        found = self._types.get(known)
        if found is None:
            found = self._types[known] = self.region(key, forms).dtype
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
        if kind == "hyper":
            return LogicalRegion(0, "hyper", Rect.of_shape(self.optimizer.rows), "float64")
        if kind == "squares":
            return LogicalRegion(0, "squares", Rect.of_shape((1,)), "float64")
        if kind == "scale":
            return scale_regions(RegionTable())[tensor]
        suffix = ".grad" if kind == "gradient" else ".half" if kind in HALF_DTYPES else ""
        if kind == "state":
            suffix = f".{self.own(tensor).state_names[number]}"
        if number < 0 or kind == "state":
            info = self.tensors[tensor]
            dtype = kind if kind in HALF_DTYPES else gradient_dtype(info.dtype) if kind == "gradient" else info.dtype
            return LogicalRegion(tensor, self._name(tensor, forms) + suffix, Rect.of_shape(info.shape), dtype)
        form = forms[number]
        region = form.lowering.regions.region((kind, tensor))
        return replace(region, name=form.name_for(region.name, self.nodes[number].name))

    def _name(self, tensor: int, forms: dict[int, OperatorForm]) -> str:
        """The name of a tensor once composites are replaced."""
        number = self.producer.get(tensor)
        if number is None or number not in forms:
            return self.tensors[tensor].name
        form, place = forms[number], self.nodes[number].results.index(tensor)
        inside = next(own for own, end in form.bound.items() if end == ("result", place))
        return form.name_for(form.lowering.regions.value(inside).name, self.nodes[number].name)


def _finishers(script: Script, follows: str) -> dict[int, int]:
    """The operator whose backward pass completes the gradient of each parameter: what follows comes right after."""
    found: dict[int, int] = {}
    operator = -1
    for kind, number, *_ in script.actions:
        if kind == "backward":
            operator = number
        elif kind == follows:
            found[number] = operator
    return found
