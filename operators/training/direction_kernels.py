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
from maniple.operators.training import adam_kernels, descent_kernels
from maniple.operators.training.adam_kernels import moved
from maniple.operators.training.clipping import NO_NORM, Floats, on_host
from maniple.operators.training.descent_kernels import descend
from maniple.operators.training.element_rule import COUNT, HELD, ElementRule, begin, unpacked
from maniple.process.compilation.compiled import numpy_kernel

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.training.adam import AdaptiveMoments
    from maniple.operators.training.descent import SGD
    from maniple.operators.training.optimizer import AbstractOptimizer

__all__: list[str] = []


@numpy_kernel
def _adam(
    value: Floats,
    mean: Floats,
    square: Floats,
    most_square: Floats,
    row: Floats,
    squares: Floats,
    settings: Floats,
    numbers: Floats,
    target: Floats,
) -> None:
    begin(squares, settings, numbers)
    adam_kernels.prepare(row, settings, numbers)
    numbers[0] = 1.0 / (1.0 - row[3] ** (row[0] - 1.0)) if row[0] > 1.0 else 0.0
    n = unpacked(numbers)
    for i in range(value.size):
        slope = mean[i] * n[0]
        greatest = most_square[i] if most_square.size else slope
        found, _, _, _ = moved(value[i] * n[2], slope, mean[i], square[i], greatest, n)
        target[i] = value[i] - found


@numpy_kernel
def _descent(
    value: Floats,
    buffer: Floats,
    row: Floats,
    squares: Floats,
    settings: Floats,
    numbers: Floats,
    target: Floats,
) -> None:
    begin(squares, settings, numbers)
    descent_kernels.prepare(row, settings, numbers)
    numbers[0] = (1.0 - row[3]) / (1.0 - row[4]) if row[4] != 1.0 else 0.0
    n = unpacked(numbers)
    for i in range(value.size):
        taken, _ = descend(buffer[i] * n[0], buffer[i], n[4], n[5], n[6])
        target[i] = value[i] - (value[i] - n[2] * taken)


def bind_adam_direction(
    optimizer: AdaptiveMoments, value: Tensor, states: tuple[Tensor, ...], cores: int, row: Tensor, target: Tensor
) -> Callable[[], None]:
    """See ``AbstractOptimizer.bind_direction``."""
    if _is_fused((value, *states, target), cores):
        flat, mean, square, *most = [tensor.view(-1).numpy() for tensor in (value, *states)]
        arrays = flat, mean, square, most[0] if most else flat[:0]
        return compile_kernel(_adam, (*arrays, *_given(optimizer, adam_kernels.RULE, row, target)))

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
        return compile_kernel(_descent, (flat, buffer, *_given(optimizer, descent_kernels.RULE, row, target)))

    def direct() -> None:
        # With the gradient that leaves the buffer as it is, a step ahead of it takes what a step along it takes.
        target.copy_(states[0]).mul_(float(on_host(row)[1]))

    return direct


def _given(optimizer: AbstractOptimizer, rule: ElementRule, row: Tensor, target: Tensor) -> tuple[object, ...]:
    """What both kernels read beside the block, and write; a gradient that is expected is clipped already."""
    settings, written = rule.settings(optimizer), target.view(-1).numpy()
    settings[:HELD] = inf, inf, 1.0
    return row.numpy(), np.full(1, NO_NORM), settings, np.zeros(COUNT, dtype=written.dtype), written


def _forget(target: Tensor) -> None:
    target.zero_()


def _is_fused(tensors: tuple[Tensor, ...], cores: int) -> bool:
    return cores == 1 and all(tensor.device.type == "cpu" and tensor.is_contiguous() for tensor in tensors)
