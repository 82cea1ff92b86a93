"""Kernels of Adam and AdamW: one fused pass by numba, or torch's operations."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import TYPE_CHECKING

import numba
import numpy as np
import torch

from maniple.operators.operator.host_memory import in_host_memory
from maniple.operators.training.clipping import Floats, bounded, bounded_by_torch, factor_there, on_host
from maniple.operators.training.element_rule import FLAG, HELD, ElementRule, Numbers, begin, unpacked
from maniple.process.compilation.compiled import numpy_kernel

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.training.adam import AdaptiveMoments

__all__: list[str] = []


@numba.njit(nogil=True)
def step_of(step: float, lr: float, beta1: float, beta2: float) -> tuple[float, float]:
    """The size of a step, and the factor of the root, without the bias of the means. A device function of CUDA too."""
    at = max(step, 1.0)
    return lr / (1.0 - beta1**at), 1.0 / sqrt(1.0 - beta2**at)


@numba.njit(nogil=True)
def prepare(row: Floats, settings: Floats, numbers: Floats) -> None:
    """What the elements of a step need; see ``ElementRule.prepare``.

    Args:
        row: the number of the step, then ``adam.NUMBERS``.
        settings: see ``ElementRule.settings``; the flag says that the decay is of the value itself.
        numbers: after those of ``begin`` what the value keeps and what of it joins the gradient; what the means keep
            and take, one after the other; the step's size, the root's factor, eps, and whether the most that the mean
            of squares was is kept.
    """
    numbers[2] = 1.0 - row[1] * row[2] if settings[FLAG] else 1.0
    numbers[3] = 0.0 if settings[FLAG] else row[2]
    numbers[4] = row[3]
    numbers[5] = 1.0 - row[3]
    numbers[6] = row[4]
    numbers[7] = 1.0 - row[4]
    numbers[8], numbers[9] = step_of(row[0], row[1], row[3], row[4])
    numbers[10] = row[5]
    numbers[11] = settings[HELD + 2]


@numba.njit(nogil=True, error_model="numpy")
def moved(
    own: float, slope: float, mean: float, square: float, greatest: float, n: Numbers
) -> tuple[float, float, float, float]:
    """The next value and states of one element, of what the value keeps of itself and the gradient with its decay."""
    first = n[4] * mean + n[5] * slope
    second = n[6] * square + n[7] * slope * slope
    under = max(greatest, second) if n[11] != 0 else second
    return own - n[8] * first / (sqrt(under) * n[9] + n[10]), first, second, under


@numba.njit(nogil=True, error_model="numpy")
def element(
    value: float, gradient: float, mean: float, square: float, greatest: float, n: Numbers
) -> tuple[float, float, float, float]:
    """The next value and states of one element; see ``ElementRule.element``."""
    own = value * n[2]
    return moved(own, gradient + n[3] * own, mean, square, greatest, n)


@numpy_kernel
def _adam(
    value: Floats,
    gradient: Floats,
    mean: Floats,
    square: Floats,
    most: Floats,
    row: Floats,
    squares: Floats,
    settings: Floats,
    numbers: Floats,
) -> None:
    begin(squares, settings, numbers)
    prepare(row, settings, numbers)
    n = unpacked(numbers)
    if most.size:
        for i in range(value.size):
            slope = bounded(gradient[i] * n[0], n[1])
            value[i], mean[i], square[i], most[i] = element(value[i], slope, mean[i], square[i], most[i], n)
    elif n[1] == np.inf and n[3] == 0.0:  # what neither changes takes no time
        for i in range(value.size):
            slope = gradient[i] * n[0]
            value[i], mean[i], square[i], _ = moved(value[i] * n[2], slope, mean[i], square[i], slope, n)
    else:
        for i in range(value.size):
            slope = bounded(gradient[i] * n[0], n[1])
            value[i], mean[i], square[i], _ = element(value[i], slope, mean[i], square[i], slope, n)


RULE = ElementRule(("exp_avg", "exp_avg_sq", "max_exp_avg_sq"), "decoupled", prepare, element, _adam)


def bind_torch(
    optimizer: AdaptiveMoments, tensors: tuple[Tensor, ...], row: Tensor, squares: Tensor | None
) -> Callable[[], None]:
    """The operations of torch.optim.Adam; they may use several cores.

    Args:
        optimizer: The optimizer.
        tensors: The value, the gradient and the states of a block.
        row: See ``AbstractOptimizer.bind_update``.
        squares: See ``AbstractOptimizer.bind_update``.
    """
    value, gradient, mean, square, *most_square = tensors
    settings = RULE.settings(optimizer)

    def update() -> None:
        numbers = RULE.numbers(on_host(row), on_host(squares), settings)
        factor, most, kept, joined, beta1, share1, beta2, share2, size, root, eps, _ = numbers
        value.mul_(kept)
        slope = bounded_by_torch(gradient, factor, most).add_(value, alpha=joined)
        mean.mul_(beta1).add_(slope, alpha=share1)
        square.mul_(beta2).addcmul_(slope, slope, value=share2)
        under = torch.maximum(most_square[0], square, out=most_square[0]) if most_square else square
        value.addcdiv_(mean, under.sqrt().mul_(root).add_(eps), value=-size)

    def on_device() -> None:
        """The same with numbers that stay there: to have them as numbers the host would wait."""
        step, lr, decay, beta1, beta2, eps = row.unbind()
        if optimizer.decoupled:
            value.mul_(1 - lr * decay)
        slope = bounded_by_torch(gradient, factor_there(squares, settings), float(settings[1]))
        if not optimizer.decoupled:
            slope.add_(value * decay)
        mean.mul_(beta1).add_(slope * (1 - beta1))
        square.mul_(beta2).add_(slope * slope * (1 - beta2))
        under = torch.maximum(most_square[0], square, out=most_square[0]) if most_square else square
        at = step.clamp(min=1.0)
        size, root = lr / (1 - beta1**at), (1 - beta2**at).rsqrt()
        value.sub_(mean / (under.sqrt().mul_(root).add_(eps)) * size)

    return update if in_host_memory(value) else on_device
