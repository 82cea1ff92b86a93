"""The loss scale: what keeps gradients in float16 from becoming zero, and steps whose gradients overflow from counting.

As torch.amp.GradScaler has it, within the schedule of the step, with scale 65536 and an interval of 2000:

    region                      holds                                   written by
    loss_scale                  the scale, float32                      rescale, in each memory, after all updates
    loss_scale.growth_tracker   good steps in a row                     rescale
    loss_scale.skipped          steps that were skipped so far          rescale
    squares                     the sum of squares of all gradients     norm; not finite where a gradient is not

    backward of the loss    begins with the scale instead of 1
    an update               squares finite: subtracts for gradient / scale; else it leaves all as it is
    rescale                 squares finite: after 2000 such steps scale * 2; else scale * 0.5 and none in a row

A float32 squared is finite in float64, and so is a sum of them: the sum of squares is finite exactly if all gradients
are.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple, final

from maniple.process.error import RequestError

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.runtime.storage.scratchpad import ScratchTurn

__all__: list[str] = []

NAME = "loss_scale"
"""What the state of a training calls the scale."""
COUNTS = ("growth_tracker", "skipped")
"""What it calls, under that name, the numbers of good steps in a row and of skipped steps."""


@final
class LossScale(NamedTuple):
    """How the scale of the loss changes: GradScaler's arguments and defaults.

    Args:
        init_scale: The scale of the first step.
        growth_factor: What it is multiplied by after ``growth_interval`` steps without overflow, > 1.
        backoff_factor: What it is multiplied by after an overflow, in (0, 1).
        growth_interval: Steps, at least 1.
    """

    init_scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000


def checked_scale(where: str, given: object) -> LossScale | None:
    """The scale that was given, also as plain data; None of None.

    Raises:
        RequestError: it is none, or a number is out of range.
    """
    if given is None:
        return None
    if not isinstance(given, tuple | list) or not 1 <= len(given) <= 4:
        raise RequestError(f"{where}: expected mp.optim.LossScale(init_scale=...) or None, got {given!r}")
    scale = LossScale(*given)
    for name, value in scale._asdict().items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value <= 0:
            raise RequestError(f"{where}.{name}: expected a finite number > 0, got {value!r}")
    if scale.growth_factor <= 1:
        raise RequestError(f"{where}.growth_factor: expected a number > 1, got {scale.growth_factor!r}")
    if scale.backoff_factor >= 1:
        raise RequestError(f"{where}.backoff_factor: expected a number < 1, got {scale.backoff_factor!r}")
    if not isinstance(scale.growth_interval, int):
        raise RequestError(f"{where}.growth_interval: expected a whole number, got {scale.growth_interval!r}")
    return scale


def bind_rescale(
    scale: LossScale, squares: Tensor, value: Tensor, tracker: Tensor, skipped: Tensor
) -> Callable[[], None]:
    """A function that changes the scale in place after a step, as torch's ``_amp_update_scale_``.

    Args:
        scale: how.
        squares: the sum of squares of all gradients of the step.
        value: the scale, float32.
        tracker: the number of good steps in a row.
        skipped: the number of skipped steps.
    """
    import torch

    def rescale() -> None:
        if not isfinite(float(squares[0])):
            value.mul_(scale.backoff_factor)
            tracker.zero_()
            skipped.add_(1.0)
        elif float(tracker) + 1 == scale.growth_interval:
            grown = value * scale.growth_factor
            if bool(torch.isfinite(grown)):
                value.copy_(grown)
            tracker.zero_()
        else:
            tracker.add_(1.0)

    def on_device() -> None:
        good = torch.isfinite(squares[0])
        grown, row = value * scale.growth_factor, tracker + 1
        grows = good & (row == scale.growth_interval)
        value.copy_(
            torch.where(good, torch.where(grows & torch.isfinite(grown), grown, value), value * scale.backoff_factor)
        )
        tracker.copy_(torch.where(good & ~grows, row, torch.zeros_like(row)))
        skipped.add_(~good)

    from maniple.operators.operator.host_memory import in_host_memory

    return rescale if in_host_memory(squares) else on_device


@final
class ScaledStep(NamedTuple):
    """What an update reads whole where the loss is scaled.

    Args:
        row: the numbers of the step; None where they are bound.
        squares: the sum of squares of all gradients.
        scale: the scale.
        skipped: the number of skipped steps so far, which the updates do not count.
    """

    row: Tensor | None
    squares: Tensor
    scale: Tensor
    skipped: Tensor


def bind_scaled_update(
    optimizer: AbstractOptimizer,
    block: tuple[Tensor, Tensor, tuple[Tensor, ...]],
    step: ScaledStep,
    cores: int,
    scratch: ScratchTurn,
) -> Callable[[], None]:
    """An update that divides the gradient by the scale, and leaves everything as it is where a gradient overflowed.

    Args:
        optimizer: of the parameter.
        block: its value, its gradient times the scale, and its states.
        step: see ``ScaledStep``.
        cores: the cores that the processor owns.
        scratch: what it has, in its turn, of memory that the bodies of a processor share.
    """
    import torch

    value, gradient, states = block
    from maniple.operators.operator.host_memory import in_host_memory

    here, own = in_host_memory(gradient), (value, *states)
    # On a device nobody looks whether a gradient overflowed: the update is made, and taken back if one did.
    forms = [(tuple(each.shape), each.dtype) for each in (gradient, *(() if here else own))]
    unscaled, *before = scratch.views(forms, gradient)
    row = None if step.row is None else step.row.clone()
    squares = None if optimizer.clip_norm is None else step.squares.clone()
    update = optimizer.bind_update(value, unscaled, states, cores, row, squares)

    def unscale() -> None:
        inverse = torch.reciprocal(step.scale.double()).float()
        torch.mul(gradient, inverse, out=unscaled)
        if row is not None and step.row is not None:
            row.copy_(step.row)
            row[0] -= step.skipped
        if squares is not None:
            torch.mul(step.squares, inverse.double().square(), out=squares)

    def run() -> None:
        if isfinite(float(step.squares[0])):
            unscale()
            update()

    def on_device() -> None:
        good = torch.isfinite(step.squares[0])
        unscale()
        for kept, each in zip(before, own, strict=True):
            kept.copy_(each)
        update()
        for kept, each in zip(before, own, strict=True):
            torch.where(good, each, kept, out=each)

    return run if here else on_device
