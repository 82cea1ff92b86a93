"""Stochastic gradient descent on CUDA: one pass over value, gradient and momentum; torch's operations make several."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from maniple.operators.training.clipping import NO_NORM, Clipping, bounded, scale
from maniple.operators.training.descent_kernels import descend, heavy, nesterov, plain
from maniple.runtime.devices.cuda_kernels import DeviceArray, as_numba, bind_launch, cuda, flat, to_device

if TYPE_CHECKING:
    from maniple.operators.training.descent import SGD


@cuda.jit
def _plain(value: Any, gradient: Any, lr: float, decay: float) -> None:
    for i in range(cuda.grid(1), value.size, cuda.gridsize(1)):
        value[i] = plain(value[i], gradient[i], lr, decay)


@cuda.jit
def _heavy(value: Any, gradient: Any, buffer: Any, lr: float, decay: float, momentum: float) -> None:
    for i in range(cuda.grid(1), value.size, cuda.gridsize(1)):
        value[i], buffer[i] = heavy(value[i], gradient[i], buffer[i], lr, decay, momentum)


@cuda.jit
def _nesterov(value: Any, gradient: Any, buffer: Any, lr: float, decay: float, momentum: float) -> None:
    for i in range(cuda.grid(1), value.size, cuda.gridsize(1)):
        value[i], buffer[i] = nesterov(value[i], gradient[i], buffer[i], lr, decay, momentum)


@cuda.jit
def _prepare(row: Any, squares: Any, limits: Any, numbers: Any) -> None:
    if cuda.grid(1) == 0:  # as ``descent_kernels.prepare``
        numbers[0] = scale(squares[0], limits[0], limits[2])
        numbers[1] = limits[1]
        numbers[2] = row[1]
        numbers[3] = row[2]
        numbers[4] = row[3]
        numbers[5] = 1.0 if row[0] <= 1.0 else 1.0 - row[4]


@cuda.jit
def _descend(value: Any, gradient: Any, buffer: Any, numbers: Any, nesterov: int) -> None:
    factor, most, lr, decay = numbers[0], numbers[1], numbers[2], numbers[3]
    momentum, share = numbers[4], numbers[5]
    heavy = buffer.size > 0 and momentum != 0
    for i in range(cuda.grid(1), value.size, cuda.gridsize(1)):
        slope = bounded(gradient[i] * factor, most) + decay * value[i]
        if heavy:
            slope, buffer[i] = descend(slope, buffer[i], momentum, share, nesterov)
        value[i] -= lr * slope


def bind_descent(
    optimizer: SGD,
    value: DeviceArray,
    gradient: DeviceArray,
    states: tuple[DeviceArray, ...],
    stream: object = 0,
    row: DeviceArray | None = None,
    squares: DeviceArray | None = None,
) -> Callable[[], None]:
    """A function that updates a block in place; see ``SGD.bind_update``.

    Args:
        optimizer: The optimizer.
        value: Contiguous.
        gradient: Contiguous; only read.
        states: Contiguous, as ``SGD.state_names`` lists them.
        stream: Of numba.
        row: See ``SGD.bind_update``.
        squares: See ``SGD.bind_update``.
    """
    arrays = tuple(flat(array) for array in (value, gradient, *states))
    kind = arrays[0].dtype.type  # a Python float would make the arithmetic double
    numbers = (kind(optimizer.lr), kind(optimizer.weight_decay))
    if row is not None:
        numbers = to_device(np.zeros(6, dtype=kind))
        summed = to_device(np.full(1, NO_NORM)) if squares is None else flat(squares)
        limits = to_device(Clipping(optimizer).limits)
        first = bind_launch(_prepare, 1, (as_numba(row), summed, limits, numbers), stream)
        buffer = arrays[2] if states else to_device(np.zeros(0, dtype=kind))
        then = bind_launch(_descend, arrays[0].size, (*arrays[:2], buffer, numbers, int(optimizer.nesterov)), stream)
        return lambda: (first(), then())[1]
    if not optimizer.momentum:
        return bind_launch(_plain, arrays[0].size, (*arrays, *numbers), stream)
    kernel = _nesterov if optimizer.nesterov else _heavy
    return bind_launch(kernel, arrays[0].size, (*arrays, *numbers, kind(optimizer.momentum)), stream)
