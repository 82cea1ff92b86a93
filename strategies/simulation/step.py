"""The launches of a training step as the runtime's own lowering has them: of a whole graph, or of one operator."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from maniple.operators.lowering.backward import Backward
from maniple.operators.lowering.expansion import Expansion
from maniple.operators.lowering.weight import Weight, at_home, weights
from maniple.operators.plan.plan import Plan
from maniple.operators.rules.task_placement import place_tasks
from maniple.runtime.program.region_table import RegionTable

if TYPE_CHECKING:
    from maniple.operators.graph.graph import Graph
    from maniple.operators.graph.node import Node
    from maniple.operators.rules.configuration import OperatorPlan, WeightPlan
    from maniple.operators.training.optimizer import SGD
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.launch import Launch

__all__: list[str] = []


class StepLaunches(Expansion):
    """The launches of a whole step under a plan.

    Args:
        graph: the graph.
        plan: the plan.
        machine: the machine.
        optimizer: what updates the weights.
    """

    def __init__(self, graph: Graph, plan: Plan, machine: Machine, optimizer: SGD) -> None:
        table = RegionTable()
        super().__init__(graph, plan, machine, dict(weights(graph, plan, machine, optimizer, table)), table)
        self.program = self.training_step(optimizer)


class OperatorLaunches(Expansion):
    """The launches of one operator of a graph, by itself.

    Args:
        graph: the operator, or the primitives that it is composed of, and what these read.
        needed: the results that the step needs.
        wanted: the tensors whose gradients the step needs.
        machine: the machine.
        optimizer: what updates the weights.
    """

    def __init__(
        self, graph: Graph, needed: list[int], wanted: frozenset[int], machine: Machine, optimizer: SGD
    ) -> None:
        table = RegionTable()
        held = {}
        for tensor in graph.lasting:
            names = optimizer.state_names if tensor.requires_grad else ()
            made = [table.region(name, tensor.shape, tensor.dtype) for name in (tensor.name, *names)]
            held[tensor.name] = Weight(tensor.name, made[0], tuple(made[1:]), (), (), ())
        super().__init__(graph, Plan("", "", (), ()), machine, held, table)
        self.regions = self._regions
        self.nodes = self._find_needed(needed)
        self.gradients = Backward(graph, self.nodes, self._regions, wanted)
        self._optimizer = optimizer

    def of(self, node: Node, config: OperatorPlan) -> list[Launch]:
        """The launches of a node: forward, and those of its backward pass."""
        self._placed[node.id] = place_tasks(self.graph.bound(node), config, self.machine)
        self._launches = []
        self._forward_launch(node, training=True)
        return [*self._launches, *self.gradients.launches(node, self._placed[node.id])]

    def update(self, name: str, home: WeightPlan) -> Launch:
        """The launch that updates a parameter at its home."""
        tensor = self.graph.tensor(name)
        points, rects, held = at_home(tensor.shape, home, self.machine)
        self._launches = []
        weight = replace(self.held[name], points=points, rects=rects, home=held)
        self._update(weight, self._regions.gradient(tensor.id), self._optimizer)
        return self._launches[0]
