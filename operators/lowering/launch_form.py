"""Launch forms: how the launches of one operator use regions, whatever its split is and wherever its tasks run.

launch                 requirement            of each task, by the table of tiles
linear.forward         reads x                its part of operand 0
reads linear.weight    its part of operand 1
writes linear          its part of result 0; adds to it, where parts of a split fold
linear.backward        reads linear.grad      its part of result 0
reads linear.weight    its part of operand 1
adds to x.grad         what it contributes to the gradient of operand 0
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

import numpy as np

from maniple.operators.graph.differentiation import find_differentiated, gradient_operands, gradient_results

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from maniple.operators.graph.graph import Graph, Node
    from maniple.operators.operator.operator import AbstractOperator
    from maniple.operators.rules.bounds import Column
    from maniple.operators.rules.tile import TensorRole
    from maniple.operators.rules.tile_table import TileTable

__all__: list[str] = []

NORM_FLOPS = 2
"""Operations that an element of a gradient counts for as it joins the norm of all."""

RegionRef = tuple[str, int]
"""``value`` or ``gradient`` of a tensor, its values computed ``again``, ``saved`` of a node and a place (see
`saved_ref`), the same where it is ``unread``, the ``clock``, or, of a parameter or buffer, its values as halves, by
their dtype; the ``scale`` of the loss."""
Slot = tuple[Literal["operand", "operand_gradient", "result", "result_gradient", "saved", "clock"], int]
"""What a view is to an operator's body, and which of them."""
CLOCK: RegionRef = ("clock", 0)
SCALE: RegionRef = ("scale", 0)
SAVED_PLACES = 64


@final
@dataclass(frozen=True, slots=True)
class RequirementForm:
    """How a launch uses a region.

    Args:
        region: the region.
        access: ``read``; ``result``: written, or added to where parts of a split fold; ``gradient``: written by the
            only contributor, if its tasks share no element, and else added to.
        slot: what it is to the body.
    """

    region: RegionRef
    access: Literal["read", "result", "gradient"]
    slot: Slot

    @property
    def tiles(self) -> tuple[TensorRole, int] | None:
        """What of the table of tiles says which part each task uses; None: all tasks use the whole region."""
        role, place = self.slot
        if role == "clock":
            return None
        return "result" if role == "result_gradient" else role, place

    def fold(self, table: TileTable) -> str | None:
        """The operation by which the tasks of a split add to the region; None where each writes a part of its own."""
        role, place = self.slot
        return table.folds[place] if role == "result" and self.access == "result" else None


@final
@dataclass(frozen=True, slots=True)
class LaunchForm:
    """One launch of an operator.

    Args:
        node: the operator.
        part: what is computed of it: ``forward``, ``again`` (forward of what was not kept), ``backward`` (the gradients
            of its inputs) or ``weight_gradient``.
        share: of the operations of its forward or backward pass.
        requirements: how it uses regions.
    """

    node: Node
    part: Literal["forward", "again", "backward", "weight_gradient"]
    share: float
    requirements: tuple[RequirementForm, ...]

    @property
    def name(self) -> str:
        """What the launch is called."""
        return f"{self.node.name}.{self.part}"

    @property
    def kind(self) -> str:
        """What it is to cost models."""
        return f"{self.node.operator.name}.{'forward' if self.part == 'again' else self.part}"

    @property
    def is_forward(self) -> bool:
        """Whether it computes results."""
        return self.part in {"forward", "again"}

    @property
    def direction(self) -> Literal["forward", "backward"]:
        """Which pass of a step it belongs to."""
        return "forward" if self.is_forward else "backward"

    @property
    def slots(self) -> tuple[Slot, ...]:
        """What each requirement is to the body."""
        return tuple([requirement.slot for requirement in self.requirements])


def tile_flops(operator: AbstractOperator, table: TileTable) -> tuple[Column, Column]:
    """Give the operations of forward and of backward of each tile."""
    first, which = table.alike()
    costs = [operator.flops(tile) for tile in table.tiles(first.tolist())]
    forward = np.asarray([cost.forward for cost in costs])[which]
    return forward, np.asarray([cost.backward for cost in costs])[which]


def saved_ref(node: Node, place: int) -> RegionRef:
    """A region that a node's forward leaves for its backward."""
    return "saved", node.id * SAVED_PLACES + place


def value_ref(graph: Graph, node: Node, place: int, operand: int) -> RegionRef:
    """Where a node reads an operand's values: what lasts and is rounded as it is read is cast at its home before."""
    half = node.operator.reads_as(place)
    return (half, operand) if half and graph.tensors[operand].lasting else ("value", operand)


def forward_form(graph: Graph, node: Node, *, training: bool = True) -> LaunchForm:
    """The launch of an operator's forward pass; an evaluation saves nothing."""
    found = [
        RequirementForm(value_ref(graph, node, place, operand), "read", ("operand", place))
        for place, operand in enumerate(node.operands)
        if operand is not None
    ]
    found += [
        RequirementForm(("value", result), "result", ("result", place)) for place, result in enumerate(node.results)
    ]
    saved = range(len(graph.bound(node).rule.saved) if training else 0)
    found += [RequirementForm(saved_ref(node, place), "result", ("saved", place)) for place in saved]
    if node.operator.random:
        found.append(RequirementForm(CLOCK, "read", ("clock", 0)))
    return LaunchForm(node, "forward", 1.0, tuple(found))


@final
class BackwardForms:
    """The launches of the backward pass of some nodes.

    Args:
        graph: the graph.
        nodes: what the loss depends on, in the graph's order.
        wanted: the tensors whose gradient is computed; by default those that the graph's own loss needs.
        scaled: whether the gradient of the loss is its scale instead of 1.
        passed: by number of a node, the places of the operands whose gradient is that of its result, as it is.
    """

    def __init__(
        self,
        graph: Graph,
        nodes: Sequence[Node],
        wanted: frozenset[int] | None = None,
        *,
        scaled: bool = False,
        passed: Mapping[int, tuple[int, ...]] | None = None,
    ) -> None:
        self._graph, self._tensors, self._scaled = graph, graph.tensors, scaled
        self._passed = passed or {}
        self._is_of = {node.operands[p]: node.results[0] for node in nodes for p in self._passed.get(node.id, ())}
        self.wanted = find_differentiated(graph) if wanted is None else wanted
        """The tensors whose gradient is computed."""
        self._contributes = {node.id: self._contributions(node) for node in nodes}
        contributors = Counter(operand for operands in self._contributes.values() for operand in operands.values())
        self.shared = frozenset(tensor for tensor, count in contributors.items() if count > 1)
        """The tensors to whose gradients several launches contribute."""
        # Backward goes last operator first, so the first one that contributes completes a gradient.
        self._last: dict[int, int] = {}
        for node in nodes:
            for operand in self._contributes[node.id].values():
                self._last.setdefault(operand, node.id)

    def of(self, node: Node) -> Iterator[LaunchForm]:
        """The launches of one node.

        The inputs' gradients come first: tasks, perhaps on other ranks, wait for them while the parameters' are
        computed in tasks of their own. Of an operator whose gradients come of one computation, all come together.
        """
        operands = self._contributes[node.id]
        if node.operator.gradients_together:
            if operands:
                yield LaunchForm(node, "backward", 1.0, self._requirements(node, sorted(operands)))
            return
        owned = {place for place, operand in enumerate(node.operands) if self._is_parameter(operand)}
        # An operator with parameters spends half of its backward pass on each side.
        share = 0.5 if owned else 1.0
        if inputs := sorted(operands.keys() - owned):
            yield LaunchForm(node, "backward", share, self._requirements(node, inputs))
        if weights := sorted(operands.keys() & owned):
            yield LaunchForm(node, "weight_gradient", share, self._requirements(node, weights))

    def complete(self, node: Node) -> list[int]:
        """The tensors whose gradients lack no contribution once a node's are launched."""
        return [operand for operand in self.contributed(node) if self._last[operand] == node.id]

    def contributed(self, node: Node) -> list[int]:
        """The tensors to whose gradients a node contributes."""
        operands = dict.fromkeys(reversed(self._contributes[node.id].values()))
        return list(reversed(operands))

    def _is_parameter(self, operand: int | None) -> bool:
        return operand is not None and self._tensors[operand].kind == "parameter"

    def _contributions(self, node: Node) -> dict[int, int]:
        """The operands (by place) to which a node contributes gradients."""
        if not self.wanted.intersection(gradient_results(self._graph, node).values()):
            return {}
        operands = gradient_operands(self._graph, node)
        passed = self._passed.get(node.id, ())
        return {place: operand for place, operand in operands.items() if operand in self.wanted and place not in passed}

    def gradient_of(self, tensor: int) -> int:
        """The tensor whose gradient is a tensor's own, as it is."""
        while tensor in self._is_of:
            tensor = self._is_of[tensor]
        return tensor

    def _requirements(self, node: Node, places: Sequence[int]) -> tuple[RequirementForm, ...]:
        """What a launch reads of a node, and the operands to whose gradients it contributes."""
        found = [
            RequirementForm(("gradient", self.gradient_of(tensor)), "read", ("result_gradient", place))
            for place, tensor in gradient_results(self._graph, node).items()
            if tensor in self.wanted and tensor != self._graph.loss_tensor
        ]
        if self._scaled and self._graph.loss_tensor in node.results:
            place = node.results.index(self._graph.loss_tensor)
            found.append(RequirementForm(SCALE, "read", ("result_gradient", place)))
        reads = node.operator.backward_reads
        for place in reads.operand_places(len(node.operands)):
            operand = node.operands[place]
            if operand is not None:
                ref = value_ref(self._graph, node, place, operand)
                found.append(RequirementForm(ref, "read", ("operand", place)))
        found += [RequirementForm(("value", node.results[place]), "read", ("result", place)) for place in reads.results]
        saved = range(len(self._graph.bound(node).rule.saved))
        found += [RequirementForm(saved_ref(node, place), "read", ("saved", place)) for place in saved]
        if node.operator.random:
            found.append(RequirementForm(CLOCK, "read", ("clock", 0)))
        contributes = self._contributes[node.id]
        found += [
            RequirementForm(("gradient", contributes[place]), "gradient", ("operand_gradient", place))
            for place in places
        ]
        return tuple(found)
