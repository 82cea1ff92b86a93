"""Adam and AdamW on CUDA: one pass over value, gradient and state."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from maniple.operators.training.adam_kernels import COUNT, step_of
from maniple.operators.training.clipping import NO_NORM, Clipping, bounded, scale
from maniple.runtime.devices.cuda_kernels import DeviceArray, as_numba, bind_launch, cuda, flat, to_device

if TYPE_CHECKING:
    from maniple.operators.training.adam import AdaptiveMoments

__all__: list[str] = []


@cuda.jit
def _prepare(row: Any, squares: Any, limits: Any, numbers: Any, decoupled: int) -> None:
    if cuda.grid(1) == 0:  # as ``adam_kernels.prepare``
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


@cuda.jit
def _adam(value: Any, gradient: Any, mean: Any, square: Any, most_square: Any, numbers: Any) -> None:
    factor, most, kept, joined = numbers[0], numbers[1], numbers[2], numbers[3]
    beta1, share1, beta2, share2 = numbers[4], numbers[5], numbers[6], numbers[7]
    size, root, eps = numbers[8], numbers[9], numbers[10]
    holds = most_square.size > 0
    for i in range(cuda.grid(1), value.size, cuda.gridsize(1)):
        own = value[i] * kept
        slope = bounded(gradient[i] * factor, most) + joined * own
        first = beta1 * mean[i] + share1 * slope
        second = beta2 * square[i] + share2 * slope * slope
        mean[i] = first
        square[i] = second
        if holds:
            most_square[i] = second = max(most_square[i], second)
        value[i] = own - size * first / (sqrt(second) * root + eps)


def bind_adam(
    optimizer: AdaptiveMoments,
    value: DeviceArray,
    gradient: DeviceArray,
    states: tuple[DeviceArray, ...],
    row: DeviceArray,
    squares: DeviceArray | None,
    stream: object = 0,
) -> Callable[[], None]:
    """A function that updates a block in place; see ``AbstractOptimizer.bind_update``.

    Args:
        optimizer: The optimizer.
        value: Contiguous.
        gradient: Contiguous; only read.
        states: Contiguous, as ``states`` lists them.
        row: The numbers of the step, float64.
        squares: The sum of squares of all gradients, float64, where they are clipped by norm.
        stream: Of numba.
    """
    arrays = [flat(array) for array in (value, gradient, *states)]
    if len(states) == 2:
        arrays.append(to_device(np.zeros(0, dtype=arrays[0].dtype)))
    numbers, limits = to_device(np.zeros(COUNT, dtype=arrays[0].dtype)), to_device(Clipping(optimizer).limits)
    summed = to_device(np.full(1, NO_NORM)) if squares is None else flat(squares)
    given = (as_numba(row), summed, limits, numbers, int(optimizer.decoupled))
    first = bind_launch(_prepare, 1, given, stream)
    then = bind_launch(_adam, arrays[0].size, (*arrays, numbers), stream)

    def update() -> None:
        first()
        then()

    return update
