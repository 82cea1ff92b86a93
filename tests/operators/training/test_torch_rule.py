"""Optimizers of torch that go element by element: any of them updates blocks, and what does not is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import maniple as mp
from maniple.operators.training import torch_rule, torch_rule_kernels
from maniple.process.error import RequestError

OPTIONS: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.2}),
    (torch.optim.Adagrad, {"maximize": True, "weight_decay": 0.1}),
    (torch.optim.RMSprop, {"lr": 0.1, "momentum": 0.5, "centered": True}),
    (torch.optim.RMSprop, {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.1}),
    (torch.optim.RMSprop, {"lr": 0.1, "centered": True, "maximize": True}),
    (torch.optim.RMSprop, {"lr": 0.1}),
    (torch.optim.Adadelta, {"rho": 0.7, "weight_decay": 0.1}),
    (torch.optim.Adamax, {"betas": (0.5, 0.7)}),
    (torch.optim.Adamax, {"betas": (0.5, 0.7), "weight_decay": 0.1, "maximize": True}),
    (torch.optim.RAdam, {"lr": 0.1, "decoupled_weight_decay": True, "weight_decay": 0.1}),
    (torch.optim.RAdam, {"lr": 0.1, "betas": (0.5, 0.7), "weight_decay": 0.1}),
    (torch.optim.Rprop, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.5, "dampening": 0.2}),
]


@pytest.mark.parametrize(("kind", "options"), OPTIONS, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("strided", [False, True])
def test_ten_steps_equal_torch(kind: type[torch.optim.Optimizer], options: dict[str, Any], strided: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    theirs = start.clone().requires_grad_()
    reference = kind([theirs], **options)
    optimizer = mp.optim.by_torch(kind, **options)

    def place(value: torch.Tensor) -> torch.Tensor:
        return torch.zeros(9, 8, dtype=value.dtype)[1:8, 2:7].copy_(value) if strided else value.clone()

    value, gradient = place(start), place(torch.zeros_like(start))
    states = tuple(place(torch.zeros_like(start)) for _ in optimizer.states)
    row = torch.zeros(1 + len(optimizer.numbers), dtype=torch.float64)
    update = optimizer.bind_update(value, gradient, states, 1, row)
    for step in range(1, 11):
        arguments = {**optimizer.arguments(), "lr": 0.1 / step}
        row.copy_(torch.tensor([step, *optimizer.flat(arguments)], dtype=torch.float64))
        reference.param_groups[0]["lr"] = 0.1 / step
        gradient.copy_(torch.randn(7, 5, generator=generator, dtype=torch.float64))
        theirs.grad = gradient.clone()
        reference.step()
        update()
    assert float((value - theirs.detach()).abs().max()) <= 1e-13


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (torch.optim.LBFGS, {}, "torch.optim.LBFGS: cannot update a block by itself"),
        (torch.optim.Adafactor, {}, "torch.optim.Adafactor: does not go element by element"),
        (torch.optim.NAdam, {}, "torch.optim.NAdam: its state 'mu_product' is not of the parameter's shape"),
        (torch.optim.SparseAdam, {}, "torch.optim.SparseAdam: cannot update a block by itself"),
        (torch.optim.RMSprop, {"beta": 0.1}, "torch.optim.RMSprop: cannot update a block by itself: .*beta"),
        (torch.optim.Optimizer, {}, "torch.optim.Optimizer: cannot update a block by itself"),
        (dict, {}, "expected a class of torch.optim, got dict"),
        (torch.optim.RMSprop, {"groups": {"*.bias": {"beta": 0.1}}}, "no argument 'beta' of a group"),
        (
            torch.optim.SGD,
            {"fused": True},
            "torch.optim.SGD: fused=True is not for .*; leave it out",
        ),
        (torch.optim.Adam, {"capturable": True}, "torch.optim.Adam: capturable=True is not for updates of blocks"),
        (torch.optim.Adam, {"differentiable": True}, "differentiable=True is not for updates of blocks"),
        (torch.optim.Adam, {"groups": {"*.bias": {"fused": True}}}, "fused=True is not for updates of blocks"),
    ],
)
def test_refusals(kind: type[torch.optim.Optimizer], options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        mp.optim.by_torch(kind, **options)


@pytest.mark.parametrize("kind", ["SGD", "Adam", "Adagrad"])
def test_the_trial_finds_what_reads_columns_as_contiguous_memory(kind: str) -> None:
    """Torch's fused kernels on the host ignore strides."""
    with pytest.raises(RequestError, match=f"torch.optim.{kind}: does not go element by element"):
        torch_rule._trial(kind, (("lr", 0.1), ("fused", True)))


def test_what_changes_nothing_of_a_block_is_accepted() -> None:
    optimizer = mp.optim.by_torch(torch.optim.Adam, lr=0.1, foreach=True, fused=False)
    assert optimizer.state_names == ("exp_avg", "exp_avg_sq")


@pytest.mark.parametrize("kind", [*torch_rule_kernels.RULES, "Adam"])
def test_one_core_updates_contiguous_blocks_in_one_pass_where_the_rule_is_known(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bits of float32 may differ by the order of roundings; a NaN stays where it is, as in torch's step."""
    optimizer = mp.optim.by_torch(getattr(torch.optim, kind))
    steps: list[str] = []
    made = torch_rule._made

    def noted(name: str, *given: Any) -> torch.optim.Optimizer:
        steps.append(name)
        return made(name, *given)

    monkeypatch.setattr(torch_rule, "_made", noted)
    found: list[list[torch.Tensor]] = []
    for cores in (1, 2):
        chance = torch.Generator().manual_seed(1)
        value, *states = (torch.rand(33, generator=chance) for _ in range(1 + len(optimizer.states)))
        gradient = torch.randn(33, generator=chance)
        gradient[3] = torch.nan
        row = torch.tensor([9.0, *optimizer.flat(optimizer.arguments())], dtype=torch.float64)
        optimizer.bind_update(value, gradient, tuple(states), cores, row)()
        found.append([value, *states])
        known = kind in torch_rule_kernels.RULES
        assert steps == ([] if cores == 1 and known else [kind] * len(steps))
        assert bool(steps) == (cores == 2 or not known)
    for fused, theirs in zip(*found, strict=True):
        assert torch.allclose(fused, theirs, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_a_torch_with_other_numbers_has_its_own_step(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = mp.optim.by_torch(torch.optim.Adagrad)
    assert optimizer.rule is torch_rule_kernels.RULES["Adagrad"].rule
    other = torch_rule_kernels.RULES["Adagrad"]._replace(numbers=("lr", "eps"))
    monkeypatch.setattr(torch_rule_kernels, "RULES", {"Adagrad": other})
    assert optimizer.rule is None
