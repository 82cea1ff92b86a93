"""Kernels of Adam and AdamW: one fused pass by numba, or torch's operations."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import TYPE_CHECKING

import numba
import numpy as np
import torch

from maniple.operators.operator.compiled_kernel import compile_kernel
from maniple.operators.operator.host_memory import in_host_memory
from maniple.operators.training.clipping import (
    Clipping,
    Floats,
    bounded,
    bounded_by_torch,
    factor_there,
    on_host,
    scale,
)
from maniple.process.compilation.compiled import numpy_kernel

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.training.adam import AdaptiveMoments

__all__: list[str] = []

COUNT = 11
"""How many numbers the elements of a step need."""


@numba.njit(nogil=True)
def step_of(step: float, lr: float, beta1: float, beta2: float) -> tuple[float, float]:
    """The size of a step, and the factor of the root, without the bias of the means. A device function of CUDA too."""
    at = max(step, 1.0)
    return lr / (1.0 - beta1**at), 1.0 / sqrt(1.0 - beta2**at)


@numba.njit(nogil=True)
def prepare(row: Floats, squares: Floats, limits: Floats, numbers: Floats, decoupled: int) -> None:
    """What the elements of a step need, in their dtype; CUDA has a kernel of the same form.

    Args:
        row: the number of the step, then ``adam.NUMBERS``.
        squares: the sum of squares of all gradients, or ``clipping.NO_NORM``.
        limits: see ``Clipping.limits``.
        numbers: the factor (NaN of a NaN norm) and the bound of a gradient; what the value keeps and what of it joins
            the gradient; what the means keep and take, one after the other; the step's size, the root's factor, and
            eps.
        decoupled: 1 where the decay is of the value itself, else 0.
    """
    numbers[0] = scale(squares[0], limits[0], limits[2])
    numbers[1] = limits[1]
    numbers[2] = 1.0 - row[1] * row[2] if decoupled else 1.0
    numbers[3] = 0.0 if decoupled else row[2]
    numbers[4] = row[3]
    numbers[5] = 1.0 - row[3]
    numbers[6] = row[4]
    numbers[7] = 1.0 - row[4]
    numbers[8], numbers[9] = step_of(row[0], row[1], row[3], row[4])
    numbers[10] = row[5]


@numpy_kernel
def _adam(
    value: Floats,
    gradient: Floats,
    mean: Floats,
    square: Floats,
    most_square: Floats,
    row: Floats,
    squares: Floats,
    limits: Floats,
    numbers: Floats,
    decoupled: int,
) -> None:
    prepare(row, squares, limits, numbers, decoupled)
    factor, most, kept, joined = numbers[0], numbers[1], numbers[2], numbers[3]
    beta1, share1, beta2, share2 = numbers[4], numbers[5], numbers[6], numbers[7]
    size, root, eps = numbers[8], numbers[9], numbers[10]
    if most_square.size:
        for i in range(value.size):
            own = value[i] * kept
            slope = bounded(gradient[i] * factor, most) + joined * own
            mean[i] = beta1 * mean[i] + share1 * slope
            square[i] = beta2 * square[i] + share2 * slope * slope
            most_square[i] = max(most_square[i], square[i])
            value[i] = own - size * mean[i] / (np.sqrt(most_square[i]) * root + eps)
    elif most == np.inf and joined == 0.0:  # what neither changes takes no time
        for i in range(value.size):
            slope = gradient[i] * factor
            first = beta1 * mean[i] + share1 * slope
            second = beta2 * square[i] + share2 * slope * slope
            mean[i] = first
            square[i] = second
            value[i] = value[i] * kept - size * first / (np.sqrt(second) * root + eps)
    else:
        for i in range(value.size):
            own = value[i] * kept
            slope = bounded(gradient[i] * factor, most) + joined * own
            first = beta1 * mean[i] + share1 * slope
            second = beta2 * square[i] + share2 * slope * slope
            mean[i] = first
            square[i] = second
            value[i] = own - size * first / (np.sqrt(second) * root + eps)


def bind_fused(
    optimizer: AdaptiveMoments, tensors: tuple[Tensor, ...], row: Tensor, squares: Tensor | None
) -> Callable[[], None]:
    """One pass over contiguous memory of the host.

    Args:
        optimizer: The optimizer.
        tensors: The value, the gradient and the states of a block.
        row: See ``AbstractOptimizer.bind_update``.
        squares: See ``AbstractOptimizer.bind_update``.
    """
    value, gradient, mean, square, *most = [tensor.view(-1).numpy() for tensor in tensors]
    clipping, numbers = Clipping(optimizer), np.zeros(COUNT, dtype=value.dtype)
    arrays = (value, gradient, mean, square, most[0] if most else value[:0])
    given = (row.numpy(), clipping.of(squares), clipping.limits, numbers, int(optimizer.decoupled))
    return compile_kernel(_adam, (*arrays, *given))


def bind_torch(
    optimizer: AdaptiveMoments, tensors: tuple[Tensor, ...], row: Tensor, squares: Tensor | None
) -> Callable[[], None]:
    """The operations of torch.optim.Adam; they may use several cores. See ``bind_fused``."""
    value, gradient, mean, square, *most_square = tensors
    limits, numbers = Clipping(optimizer).limits, np.zeros(COUNT)

    def update() -> None:
        prepare.py_func(on_host(row), on_host(squares), limits, numbers, int(optimizer.decoupled))
        factor, most, kept, joined, beta1, share1, beta2, share2, size, root, eps = numbers.tolist()
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
        slope = bounded_by_torch(gradient, factor_there(squares, limits), float(limits[1]))
        if not optimizer.decoupled:
            slope.add_(value * decay)
        mean.mul_(beta1).add_(slope * (1 - beta1))
        square.mul_(beta2).add_(slope * slope * (1 - beta2))
        under = torch.maximum(most_square[0], square, out=most_square[0]) if most_square else square
        at = step.clamp(min=1.0)
        size, root = lr / (1 - beta1**at), (1 - beta2**at).rsqrt()
        value.sub_(mean / (under.sqrt().mul_(root).add_(eps)) * size)

    return update if in_host_memory(value) else on_device
