"""What a body does may depend on values: it is computed anew in every step, whatever was recorded of others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import maniple as mp

TOLERANCE = 1e-11  # of float64, after three steps


class Scaled(torch.autograd.Function):
    """A sine whose gradient is scaled by a number that leaves torch on its way."""

    @staticmethod
    def forward(context: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:  # type: ignore[override]
        context.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(context: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = context.saved_tensors  # type: ignore[attr-defined]
        return gradient * x.cos() * sum(x.tolist()[0])


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "a branch": lambda x: x * 2 if torch.allclose(x, torch.zeros_like(x)) else x * 3,
    "a count": lambda x: x * (x > 0).nonzero().shape[0],
    "a number of different values": lambda x: x * len(torch.unique(x)),
    "a shape": lambda x: x[x > 0].sum() + 0 * x,
    "a gradient of its own": Scaled.apply,
    "no inverse of zeros": lambda x: torch.linalg.cholesky(x @ x.T + torch.eye(6, dtype=x.dtype)) @ x,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_computed_of_the_values_of_the_step(name: str) -> None:
    function = FUNCTIONS[name]
    graph = mp.Graph("values")
    x, y = graph.input("x", (6, 4), "float64"), graph.input("y", (6, 4), "float64")
    (found,) = graph.call(function, graph.linear(x, 4), results=[((6, 4), "float64")])
    graph.loss(graph.mse_loss(found, y))
    plan = mp.search(graph, mp.Machine.cpu(2), strategy="random", seed=3)
    torch.manual_seed(0)
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.05)) as trainer:
        own = [value.clone().requires_grad_() for value in trainer.parameters().values()]
        for _ in range(3):
            batch = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)
            loss = (function(torch.nn.functional.linear(batch[0], *own)) - batch[1]).square().mean()
            assert trainer.step(*batch) == pytest.approx(loss.item(), rel=TOLERANCE)
            for value, gradient in zip(own, torch.autograd.grad(loss, own), strict=True):
                value.data -= 0.05 * gradient
