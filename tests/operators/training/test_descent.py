"""SGD: the same numbers as torch.optim.SGD, fused and by torch, contiguous and strided."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from maniple.operators.training.descent import SGD
from maniple.process.error import RequestError

SETTINGS: list[dict[str, Any]] = [
    {"lr": 0.1},
    {"lr": 0.1, "weight_decay": 0.02},
    {"lr": 0.1, "momentum": 0.9},
    {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.02},
    {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.02, "nesterov": True},
    {"lr": 0, "momentum": 0.9},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ten_steps_equal_torch(settings: dict[str, Any], strided: bool, cores: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(7, 5, generator=generator, dtype=dtype)
    theirs = start.clone().requires_grad_()
    reference = torch.optim.SGD([theirs], **settings)

    def place(value: torch.Tensor) -> torch.Tensor:
        return torch.full((9, 8), float("nan"), dtype=dtype)[1:8, 2:7].copy_(value) if strided else value.clone()

    optimizer = SGD(**settings)
    value, gradient = place(start), place(torch.zeros_like(start))
    states = tuple(place(torch.zeros_like(start)) for _ in optimizer.state_names)
    update = optimizer.bind_update(value, gradient, states, cores)
    for _ in range(10):
        drawn = torch.randn(7, 5, generator=generator, dtype=dtype)
        gradient.copy_(drawn)
        theirs.grad = drawn.clone()
        reference.step()
        update()
        assert torch.equal(gradient, drawn), "the gradient is only read"
    tolerance = 1e-5 if dtype == torch.float32 else 1e-13
    assert float((value - theirs.detach()).abs().max()) <= tolerance
    for state in states:
        assert float((state - reference.state[theirs]["momentum_buffer"]).abs().max()) <= tolerance


def test_state_names() -> None:
    assert SGD(0.1).state_names == ()
    assert SGD(0.1, momentum=0.9).state_names == ("momentum",)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": -1}, "SGD.lr: expected a finite number >= 0, got -1"),
        ({"lr": float("nan")}, "SGD.lr"),
        ({"lr": "0.1"}, "SGD.lr"),
        ({"lr": True}, "SGD.lr"),
        ({"lr": 0.1, "momentum": -0.1}, "SGD.momentum"),
        ({"lr": 0.1, "weight_decay": float("inf")}, "SGD.weight_decay"),
        ({"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "nesterov": True}, "SGD.nesterov.*dampening 0.1"),
        ({"lr": 0.1, "groups": {"*.bias": {"decay": 0.0}}}, "no argument 'decay' of a group"),
        ({"lr": 0.1, "groups": {"*.bias": {"lr": -1.0}}}, r"SGD.groups\['\*.bias'\]: SGD.lr"),
        ({"lr": 0.1, "clip_value": 0.0}, "SGD.clip_value: expected a number > 0 or None"),
        ({"lr": 0.1, "nesterov": True}, "SGD.nesterov"),
    ],
)
def test_refusals(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        SGD(**settings)
