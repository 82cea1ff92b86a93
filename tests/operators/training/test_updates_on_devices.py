"""Updates on devices: the numbers of the host, for which nobody waits; of torch's own classes the host reads them.

block on a device      update
contiguous             on CUDA a fused kernel, which reads the step's numbers where they lie
else, Muon             torch's operations, with the step's numbers as tensors of no axes
else, a class by torch torch's own step, whose Python decides by numbers: they are brought to the host
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from trained_optimizers import OPTIONS, optimizer_by

import maniple as mp
from maniple.operators.training.optimizer import AbstractOptimizer
from maniple.process.error import RunError
from maniple.runtime.devices.body_watch import BodyWatch
from maniple.runtime.devices.null_tensor import NullTensor, inside, lies_on_a_device

OURS = [row for row in OPTIONS if hasattr(mp.optim, row[0])]
BY_TORCH = [row for row in OPTIONS if row not in OURS]


def refuse(what: str) -> None:
    raise RunError(what)


def optimizers() -> dict[str, AbstractOptimizer]:
    """Every optimizer of ours of the law, as it is for each row of numbers, and averages around two."""
    found: dict[str, AbstractOptimizer] = {}
    for kind, options in OURS:
        optimizer = optimizer_by(kind, options).varying()
        for row in range(optimizer.rows[0]):
            own = optimizer.of_row(row)
            found[f"{type(own).__name__} {row} of {kind} {options}"] = own
    averaged = mp.optim.SGD(0.1, 0.9, groups={"*.bias": {"momentum": 0.0}}), mp.optim.AdamW(clip_norm=0.5)
    found.update({f"average of {each}": mp.optim.averaged(each, 0.8) for each in averaged})
    return found


def run(optimizer: AbstractOptimizer, strided: bool, there: bool) -> list[torch.Tensor]:
    """Six steps of a block, with other numbers in each; on a device under the watch over bodies."""
    chance = torch.Generator().manual_seed(0)

    def place(value: torch.Tensor) -> torch.Tensor:
        held = torch.full((9, 8), float("nan"), dtype=value.dtype)[1:8, 2:7].copy_(value) if strided else value.clone()
        return held.as_subclass(NullTensor) if there else held

    start = torch.randn(7, 5, generator=chance, dtype=torch.float64)
    drawn = torch.randn(6, 7, 5, generator=chance, dtype=torch.float64)
    host = torch.zeros(1 + len(optimizer.numbers), dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    row, total = (each.as_subclass(NullTensor) if there else each for each in host)
    value, gradient, *states = (
        place(each) for each in (start, *[torch.zeros_like(start)] * (1 + len(optimizer.states)))
    )
    squares = None if optimizer.clip_norm is None else total
    if there:
        with inside("device"):
            update = optimizer.bind_update(value, gradient, tuple(states), 1, row, squares)
    else:
        update = optimizer.bind_update(value, gradient, tuple(states), 1, row, squares)
    plain = [each.as_subclass(torch.Tensor) for each in (value, gradient, *states)]
    for step in range(1, 7):
        arguments = {**optimizer.arguments(), "lr": 0.1 / step}
        host[0].copy_(torch.tensor([step, *optimizer.flat(arguments)], dtype=torch.float64))
        host[1].copy_(drawn[step - 1].square().sum())
        plain[1].copy_(drawn[step - 1])
        if there:
            with inside("device"), BodyWatch(lies_on_a_device, refuse):
                update()
        else:
            update()
        assert torch.equal(plain[1], drawn[step - 1]), "the gradient is only read"
    return [plain[0], *plain[2:]]


@pytest.mark.parametrize("strided", [False, True], ids=["contiguous", "with gaps"])
@pytest.mark.parametrize(("name", "optimizer"), optimizers().items())
def test_nobody_waits_for_a_device_and_numbers_are_those_of_the_host(
    name: str, optimizer: AbstractOptimizer, strided: bool
) -> None:
    del name
    for found, wanted in zip(run(optimizer, strided, there=True), run(optimizer, strided, there=False), strict=True):
        assert float((found - wanted).abs().max()) <= 1e-12


@pytest.mark.parametrize(("kind", "options"), BY_TORCH, ids=str)
def test_a_class_of_torchs_has_its_numbers_on_the_host(kind: str, options: dict[str, Any]) -> None:
    with pytest.raises(RunError, match=r"\.cpu\(\) brings values to the host"):
        run(optimizer_by(kind, options), strided=False, there=True)
