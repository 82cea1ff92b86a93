"""A strategy of one's own: it decides how operators are cut and where they run, and cannot change what they compute.

python examples/custom_strategy.py
maniple run --nodes 2 examples/custom_strategy.py
maniple search examples/custom_strategy.py:network --machine cpu:2x1 --strategy heavy
"""

from __future__ import annotations

from math import prod

import torch

import maniple as mp
from maniple.strategies import (
    AbstractDirectStrategy,
    Node,
    OperatorPlan,
    Plan,
    Problem,
    complete,
    configure,
    register_strategy,
    split_sample,
)

MANY = 1000


class Heavy(AbstractDirectStrategy):
    """Cuts operators with many weights by output feature, so that the weights stay in place; all others by sample."""

    name = "heavy"

    def plan(self, problem: Problem) -> Plan:
        """Choose for every operator how it is cut, and where its tasks run."""
        operators = tuple((node.name, self._cut(problem, node)) for node in problem.graph.nodes)
        return complete(problem, self.name, operators)

    @staticmethod
    def _cut(problem: Problem, node: Node) -> OperatorPlan:
        graph, machine = problem.graph, problem.machine
        weights = [graph.tensors[operand] for operand in node.own if operand is not None]
        if sum(prod(weight.shape) for weight in weights) >= MANY:
            for factor in graph.bound(node).factors:
                if factor.role == "parameter" and factor.splittable:
                    degree = min(factor.extent, len(machine.processors))
                    return configure(graph, node, {factor.name: degree}, machine)
        return split_sample(graph, node, machine)


register_strategy("heavy", Heavy)


def network() -> mp.Graph:
    """Make a small network: one layer of it has many weights."""
    graph = mp.Graph("network")
    x, y = graph.input("x", (8, 30)), graph.input("y", (8,), dtype="int64")
    hidden = graph.relu(graph.linear(x, 64))
    graph.loss(graph.cross_entropy(graph.linear(hidden, 4), y))
    return graph


def main() -> None:
    """Train three steps by our strategy and by data parallelism, and show that only the places differ."""
    graph, machine = network(), mp.Machine.cpu(2)
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(8, 30, generator=draw), torch.randint(0, 4, (8,), generator=draw)
    losses: list[list[float]] = []
    for strategy in ("heavy", "data_parallel"):
        plan = mp.search(graph, machine, strategy=strategy)
        print(plan.explain())
        trainer = mp.Trainer(graph, plan=plan, optimizer=mp.SGD(0.1), seed=0)
        losses.append([trainer.step(x, y) for _ in range(3)])
        print("losses", *(f"{loss:.5f}" for loss in losses[-1]))
    same = torch.allclose(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=1e-5)
    print(f"the same under both strategies: {same}")


if __name__ == "__main__":
    main()
