"""A strategy of one's own: it decides how operators are cut and where they run, and cannot change what they compute.

python examples/custom_strategy.py
maniple run --nodes 2 examples/custom_strategy.py
maniple search examples/custom_strategy.py:network --machine cpu:2x1 --strategy heavy
"""

from __future__ import annotations

from math import prod

import torch

import maniple as mp
from maniple.plugins import DirectStrategy, Node, OperatorPlan, Problem, complete, configure, split_sample


class Heavy(DirectStrategy):
    """Cuts operators with many weights by output feature, so that the weights stay in place; all others by sample."""

    name = "heavy"

    def plan(self, problem: Problem) -> mp.Plan:
        """Choose for every operator how it is cut, and where its tasks run."""
        return complete(problem, self.name, tuple((node.name, cut(problem, node)) for node in problem.graph.nodes))


def cut(problem: Problem, node: Node) -> OperatorPlan:
    """Cut one operator."""
    graph, machine = problem.graph, problem.machine
    weights = [graph.tensors[operand] for operand in node.own if operand is not None]
    if sum(prod(weight.shape) for weight in weights) >= 1000:
        for factor in graph.bound(node).factors:
            if factor.role == "parameter" and factor.splittable:
                return configure(graph, node, {factor.name: min(factor.extent, len(machine.processors))}, machine)
    return split_sample(graph, node, machine)


mp.register_strategy("heavy", Heavy)


def network() -> mp.Graph:
    """Make a small network: one layer of it has many weights."""
    graph = mp.Graph("network")
    x, y = graph.input("x", (8, 30)), graph.input("y", (8,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(graph.relu(graph.linear(x, 64)), 4), y))
    return graph


if __name__ == "__main__":
    drawn, losses = torch.Generator().manual_seed(0), []
    x, y = torch.randn(8, 30, generator=drawn), torch.randint(0, 4, (8,), generator=drawn)
    for strategy in ("heavy", "data_parallel"):
        plan = mp.search(network(), mp.Machine.cpu(2), strategy=strategy)
        trainer = mp.Trainer(network(), plan=plan, optimizer=mp.SGD(0.1), seed=0)
        losses.append([trainer.step(x, y) for _ in range(3)])
        print(plan.explain(), *losses[-1])
    print("the same under both:", torch.allclose(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=1e-5))
