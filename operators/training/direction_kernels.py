"""Kernels of directions: what an update would subtract if its gradient were what the state says of gradients.

They say it by the update's own arithmetic, element by element, so that of contiguous blocks on one core of the host it
is what the update subtracts of that gradient, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import TYPE_CHECKING

import numpy as np
import torch

from maniple.operators.operator.compiled_kernel import compile_kernel
from maniple.operators.training.adam_kernels import COUNT
from maniple.operators.training.adam_kernels import prepare as prepare_adam
from maniple.operators.training.clipping import NO_NORM, Floats, on_host
from maniple.operators.training.descent_kernels import descend, prepare
from maniple.process.compilation.compiled import numpy_kernel

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.training.adam import AdaptiveMoments
    from maniple.operators.training.descent import SGD

__all__: list[str] = []

UNCLIPPED = np.asarray([inf, inf, 1.0])
"""The limits of a gradient that is clipped already; see ``Clipping``."""


@numpy_kernel
def _adam(
    value: Floats,
    mean: Floats,
    square: Floats,
    most_square: Floats,
    row: Floats,
    squares: Floats,
    limits: Floats,
    numbers: Floats,
    target: Floats,
    decoupled: int,
) -> None:
    prepare_adam(row, squares, limits, numbers, decoupled)
    kept, beta1, share1, beta2, share2 = numbers[2], numbers[4], numbers[5], numbers[6], numbers[7]
    size, root, eps = numbers[8], numbers[9], numbers[10]
    numbers[0] = 1.0 / (1.0 - row[3] ** (row[0] - 1.0)) if row[0] > 1.0 else 0.0
    expected = numbers[0]
    for i in range(value.size):
        own = value[i] * kept
        slope = mean[i] * expected
        first = beta1 * mean[i] + share1 * slope
        second = beta2 * square[i] + share2 * slope * slope
        if most_square.size:
            second = max(most_square[i], second)
        target[i] = value[i] - (own - size * first / (np.sqrt(second) * root + eps))


@numpy_kernel
def _descent(
    value: Floats,
    buffer: Floats,
    row: Floats,
    squares: Floats,
    limits: Floats,
    numbers: Floats,
    target: Floats,
    nesterov: int,
) -> None:
    prepare(row, squares, limits, numbers)
    lr, momentum, share = numbers[2], numbers[4], numbers[5]
    numbers[0] = (1.0 - row[3]) / (1.0 - row[4]) if row[4] != 1.0 else 0.0
    expected = numbers[0]
    for i in range(value.size):
        taken, _ = descend(buffer[i] * expected, buffer[i], momentum, share, nesterov)
        target[i] = value[i] - (value[i] - lr * taken)


def bind_adam_direction(
    optimizer: AdaptiveMoments, value: Tensor, states: tuple[Tensor, ...], cores: int, row: Tensor, target: Tensor
) -> Callable[[], None]:
    """See ``AbstractOptimizer.bind_direction``."""
    if _is_fused((value, *states, target), cores):
        flat, mean, square, *most = [tensor.view(-1).numpy() for tensor in (value, *states)]
        numbers, none = np.zeros(COUNT, dtype=flat.dtype), np.full(1, NO_NORM)
        arrays = flat, mean, square, most[0] if most else flat[:0]
        given = row.numpy(), none, UNCLIPPED, numbers, target.view(-1).numpy(), int(optimizer.decoupled)
        return compile_kernel(_adam, (*arrays, *given))

    def direct() -> None:
        step, lr, decay, beta1, beta2, eps = on_host(row).tolist()
        slope = states[0] / (1 - beta1 ** (step - 1)) if step > 1 else torch.zeros_like(states[0])
        first = (beta1 * states[0] + (1 - beta1) * slope) / (1 - beta1**step)
        second = beta2 * states[1] + (1 - beta2) * slope * slope
        if len(states) > 2:
            second = torch.maximum(states[2], second)
        target.copy_(lr * first / ((second / (1 - beta2**step)).sqrt() + eps))
        if optimizer.decoupled:
            target.add_(value, alpha=lr * decay)

    return direct


def bind_descent_direction(
    optimizer: SGD, value: Tensor, states: tuple[Tensor, ...], cores: int, row: Tensor, target: Tensor
) -> Callable[[], None]:
    """See ``AbstractOptimizer.bind_direction``."""
    if not states:
        return partial(_forget, target)
    if _is_fused((value, *states, target), cores):
        flat, buffer = value.view(-1).numpy(), states[0].view(-1).numpy()
        numbers, none = np.zeros(6, dtype=flat.dtype), np.full(1, NO_NORM)
        given = row.numpy(), none, UNCLIPPED, numbers, target.view(-1).numpy(), int(optimizer.nesterov)
        return compile_kernel(_descent, (flat, buffer, *given))

    def direct() -> None:
        # With the gradient that leaves the buffer as it is, a step ahead of it takes what a step along it takes.
        target.copy_(states[0]).mul_(float(on_host(row)[1]))

    return direct


def _forget(target: Tensor) -> None:
    target.zero_()


def _is_fused(tensors: tuple[Tensor, ...], cores: int) -> bool:
    return cores == 1 and all(tensor.device.type == "cpu" and tensor.is_contiguous() for tensor in tensors)
