"""The launches of a training step, one by one: what changes when one operator or one home does."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from maniple.operators.backward import Backward
from maniple.operators.expansion import Expansion
from maniple.operators.optimizer import SGD
from maniple.operators.task_placement import placed_tasks
from maniple.operators.weight import at_home, weights
from maniple.runtime.region_table import RegionTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from maniple.operators.configuration import OperatorPlan, WeightPlan
    from maniple.operators.graph import Graph
    from maniple.operators.node import Node
    from maniple.operators.plan import Plan
    from maniple.operators.task_placement import PlacedTasks
    from maniple.runtime.launch import Launch
    from maniple.runtime.machine import Machine

__all__: list[str] = []


class StepLaunches(Expansion):
    """An expansion whose launches can be had one by one, under configurations that change.

    The launches of a step and the requirements of each are the graph's, once composites are replaced; a plan decides
    their points, rectangles and privileges. So a launch keeps its place in the program while no composite is split that
    was whole, or the other way round. Operators have the names that they have after the replacement.

    Args:
        graph: the graph.
        plan: the plan to begin with.
        machine: the machine.
        optimizer: what updates the weights.
    """

    def __init__(self, graph: Graph, plan: Plan, machine: Machine, optimizer: SGD) -> None:
        table = RegionTable()
        super().__init__(graph, plan, machine, dict(weights(graph, plan, machine, optimizer, table)), table)
        self._optimizer = optimizer
        self.program = self.training_step(optimizer)
        self._nodes = {node.name: node for node in self._needed([*self._targets()])}
        self._gradients = Backward(self.graph, tuple(self._nodes.values()), self._regions)

    def _targets(self) -> Iterator[int]:
        if self.graph.loss_tensor is not None:
            yield self.graph.loss_tensor
        yield from self.graph.assignments.values()

    def node(self, name: str) -> Node | None:
        """The operator of that name, where the step needs it."""
        return self._nodes.get(name)

    def place(self, name: str, config: OperatorPlan) -> PlacedTasks:
        """Take another configuration of one operator for the present one."""
        node = self._nodes[name]
        self._placed[node.id] = placed_tasks(self.graph.bound(node), config, self.machine)
        return self._placed[node.id]

    def of_operator(self, name: str, config: OperatorPlan) -> list[Launch]:
        """Give the launches that a configuration of one operator decides: its own, and its inputs' arrival."""
        node, placed = self._nodes[name], self.place(name, config)
        self._launches = []
        self._forward_launch(node, training=True)
        self._launches += self._gradients.launches(node, placed)
        for tensor in self.graph.inputs:
            if tensor.id in node.operands:
                self._input(tensor, list(self._nodes.values()))
        if node.operator.random:
            self._tick([other for other in self._nodes.values() if other.operator.random])
        return self._launches

    def of_weight(self, name: str, plan: WeightPlan) -> list[Launch]:
        """Give the launches that the home of one weight decides: its update or assignment."""
        tensor = self.graph.tensor(name)
        points, rects, home = at_home(tensor.shape, plan, self.machine)
        weight = replace(self.held[name], points=points, rects=rects, home=home)
        self.held = {**self.held, name: weight}
        self._launches = []
        if weight.states or tensor.kind == "parameter":
            self._update(weight, self._regions.gradient(tensor.id), self._optimizer)
        elif tensor.id in self.graph.assignments:
            self._assign(weight, self._regions.value(self.graph.assignments[tensor.id]))
        return self._launches


def form(primitives: Mapping[str, OperatorPlan]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What tells whether composites are replaced by the same primitives: names and factors of all operators."""
    return tuple((name, tuple(factor for factor, _ in config.degrees)) for name, config in primitives.items())
