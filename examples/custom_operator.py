"""An operator of one's own: a rule that says how it splits, and a pure function of tiles; its gradient is autograd's.

python examples/custom_operator.py
maniple run --nodes 2 examples/custom_operator.py
maniple check-rule examples/custom_operator.py:gated
"""

from __future__ import annotations

import torch

import maniple as mp


@mp.operator("b k!, n k!, n k! -> b n", flops_per_point=4)
def gated(x: torch.Tensor, weight: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Give a linear layer times the sigmoid of another; `k!`: no task has a part of a row."""
    return (x @ weight.T) * torch.sigmoid(x @ gate.T)


def network() -> mp.Graph:
    """Make a network of two of them."""
    graph = mp.Graph("gates")
    h, y = graph.input("x", (8, 12)), graph.input("y", (8,), dtype="int64")
    for number, (inputs, outputs) in enumerate(((12, 16), (16, 4))):
        initial = mp.plugins.Initial.fan_in(inputs)
        weights = [graph.parameter(f"{name}{number}", (outputs, inputs), "float32", initial) for name in ("w", "g")]
        h = gated(h, *weights)
    graph.loss(graph.cross_entropy(h, y))
    return graph


if __name__ == "__main__":
    drawn, losses = torch.Generator().manual_seed(0), []
    x, y = torch.randn(8, 12, generator=drawn), torch.randint(0, 4, (8,), generator=drawn)
    for strategy in ("data_parallel", "expert", "random"):
        plan = mp.search(network(), mp.Machine.cpu(2), strategy=strategy)
        trainer = mp.Trainer(network(), plan=plan, optimizer=mp.SGD(0.1), seed=0)
        losses.append([trainer.step(x, y) for _ in range(3)])
        print(strategy, *(f"{loss:.5f}" for loss in losses[-1]))
    same = torch.allclose(torch.tensor(losses[1:]), torch.tensor(losses[0]), rtol=1e-5)
    print("the same under all:" if same else "BAD:", same)
