"""Operator forms: the launches that one operator adds to a step, whatever its degrees and its processors.

An operator has two forms at most: as it is, and composed of primitives where a factor is split that it exchanges. Each
is lowered once, by the runtime's own lowering; what a split or a placement changes is filled in later:

    launch                 requirement            filled in by a split       by a placement
    linear.forward         read x                 the tiles of operand 0     the tasks' processors
                           read linear.weight     the tiles of operand 1
                           result linear          the tiles of result 0
    linear.backward        read linear.grad       the tiles of result 0
                           gradient of x          the gradients of operand 0
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from maniple.operators.graph.differentiation import gradient_operands, gradient_results
from maniple.operators.graph.graph import Graph
from maniple.operators.lowering.composite import Composition
from maniple.operators.rules.configuration import OperatorPlan
from maniple.strategies.lowering.validity import GRADIENT, READ, RESULT
from maniple.strategies.simulation.step import OperatorLaunches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maniple.operators.graph.node import Node
    from maniple.operators.operator.builder import Tensor
    from maniple.operators.operator.operator import AbstractOperator
    from maniple.operators.training.optimizer import SGD
    from maniple.regions.logical_region import LogicalRegion
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.launch import Launch

__all__: list[str] = []

RegionRef = tuple[str, int]
"""``value``, ``gradient`` or ``saved`` of a tensor (or of a node and its place) of the form's graph, or ``clock``."""
SAVED_PLACES = 64


@final
@dataclass(frozen=True, slots=True)
class RequirementForm:
    """How a launch uses a region.

    Args:
        region: the region.
        access: READ, RESULT or GRADIENT.
        role: ``operand``, ``operand_gradient``, ``result``, ``saved`` or ``clock``: what the tiles say of it.
        place: which operand, result or saved region.
    """

    region: RegionRef
    access: int
    role: str
    place: int


@final
@dataclass(frozen=True, slots=True)
class LaunchForm:
    """One launch.

    Args:
        primitive: the number of the node in the form.
        suffix: what is computed of it: ``forward``, ``backward`` or ``weight_gradient``.
        kind: for cost models.
        share: of the operations of its forward or backward pass.
        requirements: how it uses regions.
    """

    primitive: int
    suffix: str
    kind: str
    share: float
    requirements: tuple[RequirementForm, ...]


@final
@dataclass(frozen=True, slots=True, eq=False)
class OperatorForm:
    """One form of an operator.

    Args:
        bound: the tensors of the form's graph by which it meets the rest of the step: their places among the
            operator's operands and results.
        nodes: the nodes that the step needs.
        forward: their launches forward, in order.
        backward: their launches backward, in order, each after it with the operands of the operator whose gradients
            are then complete as far as the form has a share in them.
        lowering: gives real launches.
        prefix: the name of the operator that was lowered, with which the names of the primitives begin.
        regions: what the launches use.
    """

    bound: dict[int, tuple[str, int]]
    nodes: tuple[Node, ...]
    forward: tuple[LaunchForm, ...]
    backward: tuple[tuple[LaunchForm, tuple[int, ...]], ...]
    lowering: OperatorLaunches
    prefix: str

    regions: dict[RegionRef, LogicalRegion]

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
    """

    results: tuple[int, ...]
    wanted: frozenset[int]


def operator_form(
    graph: Graph,
    node: Node,
    need: Need,
    machine: Machine,
    optimizer: SGD,
    *,
    operator: AbstractOperator | None,
) -> OperatorForm:
    """Lower one operator by itself.

    Args:
        graph: the operator's graph.
        node: the operator.
        need: what the step needs of it.
        machine: the machine.
        optimizer: what updates the weights.
        operator: what runs; None: the primitives that it is composed of.
    """
    alone, bound = _alone(graph, node, operator)
    names = {tensor: ("operand", node.operands.index(source)) for tensor, (source, reads) in bound.items() if reads}
    names |= {t: ("result", node.results.index(source)) for t, (source, reads) in bound.items() if not reads}
    wanted = _find_wanted(alone, {tensor for tensor, (source, _) in bound.items() if source in need.wanted})
    needed = [tensor for tensor, (source, reads) in bound.items() if not reads and source in need.results]
    lowering = OperatorLaunches(alone, needed, wanted, machine, optimizer)
    made = _regions(alone, lowering)
    regions = {region.id: ref for ref, region in made.items()}
    forward: list[LaunchForm] = []
    behind: list[list[LaunchForm]] = []
    for number, primitive in enumerate(lowering.nodes):
        factors = tuple((factor.name, 1) for factor in alone.bound(primitive).factors)
        first, *others = lowering.of(primitive, OperatorPlan(factors, (0,)))
        forward.append(LaunchForm(number, "forward", first.kind, 1.0, tuple(_forward(primitive, first, regions))))
        # As `Backward` has it: an operator with parameters spends half of its backward pass on each side.
        share = 0.5 if any(launch.name.endswith(".weight_gradient") for launch in others) else 1.0
        behind.append([_backward(number, primitive, launch, regions, share) for launch in others])
    backward: list[tuple[LaunchForm, tuple[int, ...]]] = []
    for number in reversed(range(len(behind))):
        complete = [names[t][1] for t in lowering.gradients.complete(lowering.nodes[number]) if t in names]
        for launch in behind[number]:
            last = launch is behind[number][-1]
            backward.append((launch, tuple(complete) if last else ()))
    return OperatorForm(names, tuple(lowering.nodes), tuple(forward), tuple(backward), lowering, node.name, made)


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


def _find_wanted(graph: Graph, wanted: set[int]) -> frozenset[int]:
    """The tensors on a path from a wanted operand to a wanted result; see ``differentiated``."""
    grows, matters = set(wanted), set(wanted)
    if graph.loss_tensor is not None:
        matters.add(graph.loss_tensor)
    made = {result for node in graph.nodes for result in node.results}
    grows -= made
    matters &= made
    for node in graph.nodes:
        if grows.intersection(gradient_operands(graph, node).values()):
            grows.update(gradient_results(graph, node).values())
    for node in reversed(graph.nodes):
        if matters.intersection(gradient_results(graph, node).values()):
            matters.update(gradient_operands(graph, node).values())
    return frozenset(grows & matters)


def _regions(graph: Graph, lowering: OperatorLaunches) -> dict[RegionRef, LogicalRegion]:
    """The regions of a form."""
    found: dict[RegionRef, LogicalRegion] = {("clock", 0): lowering.regions.clock}
    for tensor in graph.tensors:
        found["value", tensor.id] = lowering.regions.value(tensor.id)
        found["gradient", tensor.id] = lowering.regions.gradient(tensor.id)
    for node in graph.nodes:
        for place, region in enumerate(lowering.regions.saved_regions(node)):
            found["saved", node.id * SAVED_PLACES + place] = region
    return found


def _forward(node: Node, launch: Launch, regions: dict[int, RegionRef]) -> Iterator[RequirementForm]:
    """What a forward launch requires, in the order in which it is lowered."""
    operands = [place for place, operand in enumerate(node.operands) if operand is not None]
    saved = len(launch.requirements) - len(operands) - len(node.results) - node.operator.random
    roles = [("operand", place, READ) for place in operands]
    roles += [("result", place, RESULT) for place in range(len(node.results))]
    roles += [("saved", place, RESULT) for place in range(saved)]
    roles += [("clock", 0, READ)] * node.operator.random
    for requirement, (role, place, access) in zip(launch.requirements, roles, strict=True):
        yield RequirementForm(regions[requirement.region.id], access, role, place)


def _backward(number: int, node: Node, launch: Launch, regions: dict[int, RegionRef], share: float) -> LaunchForm:
    """A launch of the backward pass; its binder says what each requirement is."""
    suffix = launch.name[len(node.name) + 1 :]
    slots: tuple[tuple[str, int], ...] = launch.binder.slots  # type: ignore[union-attr]
    requirements = tuple(
        RequirementForm(
            regions[requirement.region.id],
            GRADIENT if role == "operand_gradient" else READ,
            role.replace("result_gradient", "result"),
            place,
        )
        for requirement, (role, place) in zip(launch.requirements, slots, strict=True)
    )
    return LaunchForm(number, suffix, launch.kind, share, requirements)
