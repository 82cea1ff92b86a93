"""The scale of the loss: GradScaler's numbers, step by step, and what is refused."""

from __future__ import annotations

from contextlib import nullcontext
from math import inf, nan
from random import Random
from typing import Any

import pytest
import torch

import maniple as mp
from maniple.operators.training.loss_scale import LossScale, ScaledStep, bind_rescale, bind_scaled_update
from maniple.runtime.devices.null_tensor import NullTensor, inside
from maniple.runtime.storage.scratchpad import Scratchpad


@pytest.mark.parametrize("near", [False, True])
def test_it_grows_and_backs_off_as_torch(near: bool) -> None:
    """A few hundred steps of which some overflow, at both ends of what a scale can be; on a device nobody looks."""
    for start, chance in ((2.0**-120, Random(1)), (2.0**126, Random(2)), (65536.0, Random(3))):
        scale = LossScale(start, 2.0, 0.25, 3)
        theirs = torch.tensor(start), torch.tensor(0, dtype=torch.int32)
        value, tracker, skipped = torch.tensor(start), torch.zeros(()).double(), torch.zeros(()).double()
        squares = torch.zeros(1).double()
        rescale = bind_rescale(scale, *(lay(each, near) for each in (squares, value, tracker, skipped)))
        overflows = 0
        for _ in range(200):
            overflow = chance.random() < 0.2
            overflows += overflow
            squares[0] = chance.choice((inf, nan)) if overflow else 1e60
            with inside("device") if near else nullcontext():
                rescale()
            torch._amp_update_scale_(*theirs, torch.tensor(float(overflow)), 2.0, 0.25, 3)  # type: ignore[attr-defined]
            assert (float(value), int(tracker), int(skipped)) == (float(theirs[0]), int(theirs[1]), overflows)


def lay(tensor: torch.Tensor, near: bool) -> torch.Tensor:
    """The tensor as the host or a device has it, in the same memory."""
    return tensor.as_subclass(NullTensor) if near else tensor


@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize("overflow", [False, True])
def test_an_update_divides_by_it_or_leaves_all_as_it_is(overflow: bool, near: bool) -> None:
    optimizer = mp.optim.AdamW(lr=0.1)
    values = [torch.randn(3, 4) for _ in range(4)]
    parameter, gradient, mean, square = values[0], values[1], values[2], values[3].abs()
    wanted = [tensor.clone() for tensor in (parameter, mean, square)]
    row = torch.tensor([5.0, *optimizer.flat(optimizer.arguments())], dtype=torch.float64)
    counted = row.clone()
    counted[0] = 3.0
    optimizer.bind_update(wanted[0], gradient, (wanted[1], wanted[2]), 1, counted)()
    scaled = gradient * 1024.0
    squares = torch.tensor([inf if overflow else 1.0]).double()
    numbers = (lay(each, near) for each in (row, squares, torch.tensor(1024.0), torch.tensor(2.0).double()))
    step = ScaledStep(*numbers)
    before = [tensor.clone() for tensor in (parameter, mean, square)]
    own, given, *states = (lay(each, near) for each in (parameter, scaled, mean, square))
    with inside("device") if near else nullcontext():
        bind_scaled_update(optimizer, (own, given, tuple(states)), step, 1, Scratchpad().turn())()
    for found, other in zip((parameter, mean, square), before if overflow else wanted, strict=True):
        assert torch.equal(found, other)
    assert row[0] == 5.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3.0, r"loss_scale: expected mp\.optim\.LossScale"),
        (LossScale(0.0), r"loss_scale\.init_scale: expected a finite number > 0, got 0.0"),
        (LossScale(growth_factor=1.0), r"growth_factor: expected a number > 1"),
        (LossScale(backoff_factor=1.0), r"backoff_factor: expected a number < 1"),
        (LossScale(growth_interval=2.5), r"growth_interval: expected a whole number"),  # type: ignore[arg-type]
        (LossScale(init_scale=inf), r"init_scale: expected a finite number"),
    ],
)
def test_what_is_no_scale_is_refused(given: Any, message: str) -> None:
    for make in (mp.optim.Adam, mp.optim.AdamW, lambda **options: mp.SGD(0.1, **options)):
        with pytest.raises(mp.RequestError, match=message):
            make(loss_scale=given)
