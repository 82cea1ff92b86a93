"""Operator forms: the launches that one operator adds to a step, whatever its degrees and its processors.

An operator has two forms at most: as it is, and composed of primitives where a factor is split that it exchanges. Each
is found once; what a split or a placement changes is filled in later (see ``operators/lowering/launch_form.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from maniple.operators.graph.differentiation import find_between, find_needed
from maniple.operators.graph.graph import Graph
from maniple.operators.lowering.composite import Composition
from maniple.operators.lowering.launch_form import BackwardForms, forward_form
from maniple.operators.lowering.step_regions import StepRegions
from maniple.operators.lowering.weight import Weight, scale_regions
from maniple.operators.rules.configuration import OperatorPlan
from maniple.operators.rules.task_placement import memory_by_processor, place_tasks
from maniple.operators.training import loss_scale
from maniple.process.error import RunError
from maniple.runtime.program.region_table import RegionTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.operators.graph.node import Node
    from maniple.operators.lowering.launch_form import LaunchForm
    from maniple.operators.operator.builder import Tensor
    from maniple.operators.operator.operator import AbstractOperator
    from maniple.operators.plan.weight_home import WeightHome
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.launch import Launch

__all__: list[str] = []


@final
class OperatorLaunches:
    """The launches of one operator of a graph, by itself.

    Args:
        graph: the operator, or the primitives that it is composed of, and what these read.
        needed: the results that the step needs.
        wanted: the tensors whose gradients the step needs.
        machine: the machine.
        optimizer: what updates the weights.
        scaled: whether the loss is scaled.
        passed: see `Need`; of an operator by itself.
    """

    def __init__(
        self,
        graph: Graph,
        needed: Sequence[int],
        wanted: frozenset[int],
        machine: Machine,
        optimizer: AbstractOptimizer,
        *,
        scaled: bool = False,
        passed: tuple[int, ...] = (),
    ) -> None:
        table = RegionTable()
        self._made = {}
        for tensor in graph.lasting:
            kept = optimizer.of(tensor.name).state_names if tensor.requires_grad else ()
            names = (tensor.name, *kept)
            self._made[tensor.name] = tuple(table.region(name, tensor.shape, tensor.dtype) for name in names)
        held = {name: Weight(name, made[0], made[1:], (), (), ()) for name, made in self._made.items()}
        if scaled:
            scale = scale_regions(table)
            held[loss_scale.NAME] = Weight(loss_scale.NAME, scale[0], scale[1:], (), (), ())
        self.graph, self.regions = graph, StepRegions(graph, held, table)
        self.nodes = find_needed(graph, needed)
        passing = {node.id: passed for node in self.nodes} if passed else {}
        self.backward = BackwardForms(graph, self.nodes, wanted, scaled=scaled, passed=passing)
        self._memory_of, self._optimizer = memory_by_processor(machine), optimizer

    def launch(self, form: LaunchForm, config: OperatorPlan) -> Launch:
        """One of them, under a configuration of its node."""
        from maniple.operators.lowering.operator_launch import launch_pattern  # which needs torch

        placed = place_tasks(self.graph.bound(form.node), config, self._memory_of)
        return launch_pattern(self.graph, form, placed, self.regions, self.backward.shared).launch

    def update(self, name: str, home: WeightHome) -> Launch:
        """The launch that updates a parameter at its home."""
        from maniple.operators.lowering.operator_launch import update_launch  # which needs torch

        gradient = self.regions.gradient(self.graph.tensor(name).id)
        weight, whole = Weight.at(name, self._made[name], home), self.regions.numbers(self._optimizer)
        return update_launch(weight, gradient, self._optimizer, name, whole, self.regions.scratchpads)

    def norm(self, name: str, home: WeightHome) -> Launch:
        """The launch that adds up the squares of a parameter's gradient at its home."""
        from maniple.operators.lowering.operator_launch import norm_launch  # which needs torch

        squares = self.regions.squares(self._optimizer)
        gradient = self.regions.gradient(self.graph.tensor(name).id)
        if squares is None:
            raise RunError(f"{name}: nothing needs the norm of its gradient")
        return norm_launch(Weight.at(name, self._made[name], home), gradient, squares)


@final
@dataclass(frozen=True, slots=True, eq=False)
class OperatorForm:
    """One form of an operator.

    Args:
        bound: the tensors of the form's graph by which it meets the rest of the step: their places among the
            operator's operands and results.
        forward: the launches forward of the nodes that the step needs, in order.
        backward: their launches backward, in order, each after it with the operands of the operator whose gradients
            are then complete as far as the form has a share in them.
        lowering: gives real launches, and the regions that the forms of launches refer to.
        prefix: the name of the operator that was lowered, with which the names of the primitives begin.
    """

    bound: dict[int, tuple[str, int]]
    forward: tuple[LaunchForm, ...]
    backward: tuple[tuple[LaunchForm, tuple[int, ...]], ...]
    lowering: OperatorLaunches
    prefix: str

    def name_for(self, name: str, owner: str) -> str:
        """A name of the form's graph as it is where the form stands for an operator of another name."""
        return owner + name[len(self.prefix) :]


@final
@dataclass(frozen=True, slots=True)
class Need:
    """What the rest of a step needs of an operator.

    Args:
        results: which of its results are needed at all.
        wanted: the tensors whose gradients are computed.
        passed: the places of its operands whose gradients are that of its result.
    """

    results: tuple[int, ...]
    wanted: frozenset[int]
    passed: tuple[int, ...] = ()


def operator_form(
    graph: Graph,
    node: Node,
    need: Need,
    machine: Machine,
    optimizer: AbstractOptimizer,
    *,
    operator: AbstractOperator | None,
    scaled: bool = False,
) -> OperatorForm:
    """Lower one operator by itself.

    Args:
        graph: the operator's graph.
        node: the operator.
        need: what the step needs of it.
        machine: the machine.
        optimizer: what updates the weights.
        operator: what runs; None: the primitives that it is composed of.
        scaled: whether the loss is scaled.
    """
    alone, bound = _alone(graph, node, operator)
    names = {tensor: ("operand", node.operands.index(source)) for tensor, (source, reads) in bound.items() if reads}
    names |= {t: ("result", node.results.index(source)) for t, (source, reads) in bound.items() if not reads}
    wanted = {tensor for tensor, (source, _) in bound.items() if source in need.wanted}
    made = {result for primitive in alone.nodes for result in primitive.results}
    ends = wanted & made if alone.loss_tensor is None else (wanted & made) | {alone.loss_tensor}
    needed = [tensor for tensor, (source, reads) in bound.items() if not reads and source in need.results]
    between = find_between(alone, wanted - made, ends)
    lowering = OperatorLaunches(alone, needed, between, machine, optimizer, scaled=scaled, passed=need.passed)
    forward = tuple(forward_form(alone, primitive) for primitive in lowering.nodes)
    backward: list[tuple[LaunchForm, tuple[int, ...]]] = []
    for primitive in reversed(lowering.nodes):
        complete = tuple(names[t][1] for t in lowering.backward.complete(primitive) if t in names)
        launches = list(lowering.backward.of(primitive))
        backward += [(launch, complete if launch is launches[-1] else ()) for launch in launches]
    return OperatorForm(names, forward, tuple(backward), lowering, node.name)


def _alone(graph: Graph, node: Node, operator: AbstractOperator | None) -> tuple[Graph, dict[int, tuple[int, bool]]]:
    """A graph of one operator; and for its tensors that the given graph has, which one, and whether it is read."""
    made = Graph(graph.name)
    handles: dict[int, Tensor] = {}
    for operand in node.operands:
        if operand is not None and operand not in handles:
            handles[operand] = made.adopt(replace(graph.tensors[operand], owner=None))
    given = [None if operand is None else handles[operand] for operand in node.given]
    own = [None if operand is None else handles[operand] for operand in node.own]
    if operator is not None:
        results = made.apply(operator, given, own, node.name)
    else:
        whole = OperatorPlan(tuple((factor.name, 1) for factor in graph.bound(node).factors), (0,))
        results = node.operator.compose(Composition(made, graph, node, whole, training=True), (*given, *own))
    for handle, result in zip(results, node.results, strict=True):
        if result == graph.loss_tensor:
            made.loss(handle)
    bound = {handle.id: (tensor, True) for tensor, handle in handles.items()}
    return made, bound | {handle.id: (tensor, False) for tensor, handle in zip(node.results, results, strict=True)}
