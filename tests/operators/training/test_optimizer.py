"""Updates by numbers that enter: the same as torch's optimizers, fused and by torch, contiguous and strided."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import maniple as mp
from maniple.operators.training.optimizer import AbstractOptimizer
from maniple.process.error import RequestError

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.02}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    ("Adam", {"weight_decay": 0.02}),
    ("Adam", {"amsgrad": True, "maximize": True, "weight_decay": 0.02}),
    ("AdamW", {"lr": 0.05, "betas": (0.5, 0.9), "eps": 1e-4}),
    ("AdamW", {"amsgrad": True}),
]


def row_of(optimizer: AbstractOptimizer, step: int, lr: float) -> torch.Tensor:
    numbers = optimizer.flat({**optimizer.arguments(), "lr": lr})
    return torch.tensor([step, *numbers], dtype=torch.float64)


@pytest.mark.parametrize(("kind", "options"), OPTIONS, ids=str)
@pytest.mark.parametrize(("strided", "cores"), [(False, 1), (True, 1), (False, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ten_steps_equal_torch(
    kind: str, options: dict[str, Any], strided: bool, cores: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(7, 5, generator=generator, dtype=dtype)
    theirs = start.clone().requires_grad_()
    reference = getattr(torch.optim, kind)([theirs], **options)
    optimizer: AbstractOptimizer = getattr(mp.optim, kind)(**options)

    def place(value: torch.Tensor) -> torch.Tensor:
        return torch.full((9, 8), float("nan"), dtype=dtype)[1:8, 2:7].copy_(value) if strided else value.clone()

    value, gradient = place(start), place(torch.zeros_like(start))
    states = tuple(place(torch.zeros_like(start)) for _ in optimizer.states)
    row = row_of(optimizer, 0, 0.0)
    update = optimizer.bind_update(value, gradient, states, cores, row)
    for step in range(1, 11):
        lr = 0.1 / step
        row.copy_(row_of(optimizer, step, lr))
        reference.param_groups[0]["lr"] = lr
        drawn = torch.randn(7, 5, generator=generator, dtype=dtype)
        gradient.copy_(drawn)
        theirs.grad = drawn.clone()
        reference.step()
        update()
        assert torch.equal(gradient, drawn), "the gradient is only read"
    tolerance = 1e-5 if dtype == torch.float32 else 1e-13
    assert float((value - theirs.detach()).abs().max()) <= tolerance
    names = {"momentum": "momentum_buffer"}
    for state, name in zip(states, optimizer.state_names, strict=True):
        assert float((state - reference.state[theirs][names.get(name, name)]).abs().max()) <= tolerance


@pytest.mark.parametrize(("kind", "options"), OPTIONS, ids=str)
def test_the_direction_is_what_an_update_with_the_mean_as_its_gradient_tends_to(
    kind: str, options: dict[str, Any]
) -> None:
    """With one gradient again and again the state says what the next update takes."""
    optimizer: AbstractOptimizer = getattr(mp.optim, kind)(**{**options, "weight_decay": 0.0, "maximize": False})
    if getattr(optimizer, "nesterov", False):
        optimizer = mp.optim.SGD(0.1, 0.9)
    value, gradient = torch.ones(4, dtype=torch.float64), torch.linspace(0.1, 1, 4, dtype=torch.float64)
    states, row = tuple(torch.zeros_like(value) for _ in optimizer.states), row_of(optimizer, 0, 0.01)
    update = optimizer.bind_update(value, gradient, states, 1, row)
    before = value.clone()
    for step in range(1, 301):
        row[0] = step
        before = value.clone()
        update()
    assert torch.allclose(before - value, optimizer.direction(value, states, row), rtol=1e-6)


def test_costs_and_groups() -> None:
    optimizer = mp.optim.AdamW(groups={"*.bias": {"weight_decay": 0.0, "amsgrad": True}, "a.*": {"lr": 1.0}})
    assert optimizer.state_names == ("exp_avg", "exp_avg_sq")
    assert optimizer.of("a.bias").state_names == ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    assert [optimizer.row_of(name) for name in ("a.bias", "a.weight", "b.weight")] == [1, 2, 0]
    assert optimizer.rows == (3, 6)
    assert optimizer.of("a.weight").arguments()["lr"] == 1.0
    assert optimizer.cost(10, 4) == (140, 160)
    assert mp.optim.SGD is mp.SGD


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("AdamW", {"betas": (0.9, 1.0)}, r"AdamW.betas: expected two numbers in \[0, 1\)"),
        ("Adam", {"betas": 0.9}, "Adam.betas: expected two numbers"),
        ("Adam", {"eps": -1.0}, "Adam.eps: expected a finite number >= 0"),
        ("AdamW", {"lr": float("nan")}, "AdamW.lr"),
        ("AdamW", {"amsgrad": 2}, "AdamW.amsgrad: expected False or True"),
        ("AdamW", {"groups": 3}, "AdamW.groups: expected patterns"),
        ("AdamW", {"groups": {"*": {"clip_value": 3.0}}}, "no argument 'clip_value' of a group"),
        ("AdamW", {"groups": {"*": {3: 3.0}}}, "no argument 3 of a group"),
        ("AdamW", {"groups": {"*": 3}}, r"AdamW.groups\['\*'\]: expected arguments by name, .*, got 3"),
        ("AdamW", {"groups": (("*", ("lr", 0.1)),)}, r"AdamW.groups\['\*'\]: expected arguments by name"),
        ("AdamW", {"groups": (1,)}, "AdamW.groups: expected patterns of names with arguments, got 1"),
        ("AdamW", {"groups": {3: {}}}, "AdamW.groups: expected patterns of names"),
        ("AdamW", {"groups": {"*": {"lr": [0.1]}}}, "AdamW.lr: expected a finite number >= 0"),
        ("AdamW", {"lr": 10**400}, "AdamW.lr: expected a finite number >= 0"),
    ],
)
def test_refusals(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        getattr(mp.optim, kind)(**options)


def test_betas_may_be_a_list() -> None:
    """As torch takes them, of an optimizer and of its groups."""
    listed, joined = [0.5, 0.75], (0.5, 0.75)
    assert mp.optim.Adam(betas=listed, groups={"*": {"betas": listed}}) == (  # type: ignore[arg-type]
        mp.optim.Adam(betas=joined, groups={"*": {"betas": joined}})
    )
    theirs = mp.optim.by_torch(torch.optim.Adam, betas=listed, groups={"*": {"betas": listed}})
    assert theirs == mp.optim.by_torch(torch.optim.Adam, betas=joined, groups={"*": {"betas": joined}})
    assert theirs.of("any").arguments()["betas"] == joined
