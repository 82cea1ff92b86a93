"""Clipping by a norm: what torch's `clip_grad_norm_` gives, also of a norm that is no number."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import maniple as mp
from maniple.operators.training.optimizer import AbstractOptimizer

MADE: dict[str, tuple[type[torch.optim.Optimizer], AbstractOptimizer, dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, mp.optim.SGD(0.1, clip_norm=0.5), {"lr": 0.1}),
    "AdamW": (torch.optim.AdamW, mp.optim.AdamW(clip_norm=0.5), {}),
    "RMSprop": (torch.optim.RMSprop, mp.optim.by_torch(torch.optim.RMSprop, clip_norm=0.5), {}),
}


@pytest.mark.parametrize("name", [*MADE])
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("other", [0.1, 30.0, float("nan"), float("inf")])
def test_a_block_of_a_clipped_gradient_equals_torch(name: str, strided: bool, other: float) -> None:
    """The block's own gradient is finite: what another block's does to the norm reaches it as a factor."""
    kind, optimizer, options = MADE[name]
    start = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3)
    slope = torch.full_like(start, 0.2)
    theirs, elsewhere = start.clone().requires_grad_(), torch.zeros(1, dtype=torch.float64, requires_grad=True)
    theirs.grad, elsewhere.grad = slope.clone(), torch.full_like(elsewhere, other)
    torch.nn.utils.clip_grad_norm_([theirs, elsewhere], 0.5)
    kind([theirs], **options).step()

    def place(value: torch.Tensor) -> torch.Tensor:
        return torch.zeros(4, 5, dtype=value.dtype)[:, 1:4].copy_(value) if strided else value.clone()

    value, states = place(start), tuple(place(torch.zeros_like(start)) for _ in optimizer.states)
    row = torch.tensor([1, *optimizer.flat(optimizer.arguments())], dtype=torch.float64)
    squares = (slope.square().sum() + other**2).reshape(1)
    optimizer.bind_update(value, place(slope), states, 1, row, squares)()
    assert torch.allclose(value, theirs.detach(), rtol=1e-13, atol=1e-15, equal_nan=True)
