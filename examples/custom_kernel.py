"""Kernels of one's own for an operator: compiled loops in place of torch's function, forward and backward.

python examples/custom_kernel.py
maniple run --nodes 2 examples/custom_kernel.py
maniple check-rule examples/custom_kernel.py:swish
"""

from __future__ import annotations

from math import exp
from typing import Any

import torch

import maniple as mp


@mp.operator("b n -> b n", flops_per_point=4)
def swish(x: torch.Tensor) -> torch.Tensor:
    """Give x times its sigmoid: what the kernels have to give, and what runs where there is none."""
    return x * torch.sigmoid(x)


@swish.forward("numba")
def swish_forward(x: Any, out: Any) -> None:
    """Write the result: it is given after the operands."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] / (1 + exp(-x[i, j]))


@swish.backward("numba")
def swish_backward(gradient: Any, x: Any, out: Any) -> None:
    """Write the operand's gradient: it is given after the result's gradient and the operand."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            gate = 1 / (1 + exp(-x[i, j]))
            out[i, j] = gradient[i, j] * gate * (1 + x[i, j] * (1 - gate))


if __name__ == "__main__":
    graph = mp.Graph("network")
    x, y = graph.input("x", (8, 12)), graph.input("y", (8,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(swish(graph.linear(x, 16)), 4), y))
    drawn = torch.Generator().manual_seed(0)
    images, labels = torch.randn(8, 12, generator=drawn), torch.randint(0, 4, (8,), generator=drawn)
    trainer = mp.Trainer(graph, plan=mp.search(graph, mp.Machine.cpu(2)), optimizer=mp.SGD(0.5), seed=0)
    losses = [trainer.step(images, labels) for _ in range(20)]
    print(f"loss {losses[0]:.4f}, after 20 steps {losses[-1]:.4f}" if losses[-1] < losses[0] else "BAD: no lower")
