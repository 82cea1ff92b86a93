"""Updates by numbers that enter: the same as torch's optimizers, fused and by torch, contiguous and strided."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch

import maniple as mp
from maniple.operators.training import adam_kernels, descent_kernels, direction_kernels, norm_kernels
from maniple.operators.training.optimizer import AbstractOptimizer
from maniple.process.compilation import compiled
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


DIRECTED: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.7, "dampening": 0.4}),
    ("Adam", {"lr": 0.01}),
    ("Adam", {"lr": 0.01, "betas": (0.5, 0.7), "amsgrad": True}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.1}),
]


@pytest.mark.parametrize(("kind", "options"), DIRECTED, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_direction_is_what_the_update_subtracts_of_the_gradient_that_is_expected(
    kind: str, options: dict[str, Any], dtype: torch.dtype
) -> None:
    """To the last bit, after each of some steps; the state stays, and torch's operations say nearly the same."""
    optimizer: AbstractOptimizer = getattr(mp.optim, kind)(**options)
    chance = torch.Generator().manual_seed(4)
    value, gradient = (torch.randn(40, generator=chance, dtype=dtype) for _ in range(2))
    states, target = tuple(torch.zeros_like(value) for _ in optimizer.states), torch.empty_like(value)
    row, following = row_of(optimizer, 0, 0.01), row_of(optimizer, 0, 0.03)
    update = optimizer.bind_update(value, gradient, states, 1, row)
    direct = optimizer.bind_direction(value, states, 1, following, target)
    for step in range(1, 8):
        row[0], following[0] = step, step + 1
        gradient.copy_(torch.randn(40, generator=chance, dtype=dtype))
        update()
        if kind == "SGD":
            share = 1.0 - float(following[4])
            expected = states[0] * torch.tensor((1.0 - float(following[3])) / share, dtype=dtype)
        else:
            expected = states[0] * torch.tensor(1.0 / (1.0 - float(following[3]) ** step), dtype=dtype)
        kept = [tensor.clone() for tensor in (value, *states)]
        direct()
        assert all(torch.equal(one, other) for one, other in zip((value, *states), kept, strict=True))
        after, own = value.clone(), tuple(state.clone() for state in states)
        optimizer.bind_update(after, expected, own, 1, following)()
        assert torch.equal(target, value - after)
        nearly = torch.empty_like(value)
        optimizer.bind_direction(value, states, 2, following, nearly)()
        torch.testing.assert_close(nearly, target, rtol=1e-3 if dtype == torch.float32 else 1e-9, atol=1e-6)


def test_of_some_optimizers_no_direction_is_known() -> None:
    value, target = torch.ones(3), torch.ones(3)
    mp.SGD(0.1).bind_direction(value, (), 1, row_of(mp.SGD(0.1), 2, 0.1), target)()
    assert not target.any()
    with pytest.raises(mp.RequestError, match=r"torch\.optim\.RMSprop: what its next update subtracts is not known"):
        mp.optim.by_torch(torch.optim.RMSprop).bind_direction(value, (value,), 1, value, target)


def test_compiled_bodies_see_a_change_of_what_they_call() -> None:
    """What numba keeps of them lies in folders named by the contents of their modules and of those they call."""
    clipping = Path(str(adam_kernels.bounded.py_func.__code__.co_filename))
    found = compiled.digest(b"", {"__name__": adam_kernels.__name__, "bounded": adam_kernels.bounded})
    told = f"bounded = {hashlib.sha256(clipping.read_bytes()).hexdigest()}"
    assert found == hashlib.sha256(told.encode() + compiled.ASKED).hexdigest()[:16]
    for module in (adam_kernels, descent_kernels, direction_kernels, norm_kernels):
        assert module.__name__ in compiled._MODULES


def test_costs_and_groups() -> None:
    optimizer = mp.optim.AdamW(groups={"*.bias": {"weight_decay": 0.0, "amsgrad": True}, "a.*": {"lr": 1.0}})
    assert optimizer.state_names == ("exp_avg", "exp_avg_sq")
    assert optimizer.of("a.bias").state_names == ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    assert [optimizer.row_of(name) for name in ("a.bias", "a.weight", "b.weight")] == [1, 2, 0]
    assert optimizer.rows == (3, 6)
    assert optimizer.of("a.weight").arguments()["lr"] == 1.0
    assert optimizer.cost((2, 5), 4) == (140, 160)
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
