"""Kernels of stochastic gradient descent: one fused pass by numba, or torch's operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from maniple.operators.operator.compiled_kernel import compile_kernel
from maniple.operators.operator.kernel_scratch import CallSequence

if TYPE_CHECKING:
    from maniple.operators.training.optimizer import SGD

Floats = npt.NDArray[np.float64]  # or of float32: numba compiles for what comes


@numba.njit(nogil=True)
def plain(value: float, gradient: float, lr: float, decay: float) -> float:
    """The next value of one element, without momentum. This and the two below are device functions of CUDA too."""
    return value - lr * (gradient + decay * value)


@numba.njit(nogil=True)
def heavy(
    value: float, gradient: float, buffer: float, lr: float, decay: float, momentum: float
) -> tuple[float, float]:
    """The next value and momentum buffer of one element."""
    buffer = momentum * buffer + (gradient + decay * value)
    return value - lr * buffer, buffer


@numba.njit(nogil=True)
def nesterov(
    value: float, gradient: float, buffer: float, lr: float, decay: float, momentum: float
) -> tuple[float, float]:
    """The next value and momentum buffer of one element, the value ahead of the buffer."""
    slope = gradient + decay * value
    buffer = momentum * buffer + slope
    return value - lr * (slope + momentum * buffer), buffer


@numba.njit(cache=True, nogil=True)
def _plain(value: Floats, gradient: Floats, lr: float, decay: float) -> None:
    for i in range(value.size):
        value[i] = plain(value[i], gradient[i], lr, decay)


@numba.njit(cache=True, nogil=True)
def _heavy(value: Floats, gradient: Floats, buffer: Floats, lr: float, decay: float, momentum: float) -> None:
    for i in range(value.size):
        value[i], buffer[i] = heavy(value[i], gradient[i], buffer[i], lr, decay, momentum)


@numba.njit(cache=True, nogil=True)
def _nesterov(value: Floats, gradient: Floats, buffer: Floats, lr: float, decay: float, momentum: float) -> None:
    for i in range(value.size):
        value[i], buffer[i] = nesterov(value[i], gradient[i], buffer[i], lr, decay, momentum)


def bind_descent(
    optimizer: SGD, value: Tensor, gradient: Tensor, states: tuple[Tensor, ...], cores: int
) -> Callable[[], None]:
    """See ``SGD.bind_update``."""
    tensors = (value, gradient, *states)
    if cores == 1 and all(tensor.is_contiguous() for tensor in tensors):
        return _fuse(optimizer, tensors)
    return _by_torch(optimizer, value, gradient, states)


def _fuse(optimizer: SGD, tensors: tuple[Tensor, ...]) -> Callable[[], None]:
    """One pass over contiguous memory."""
    arrays = [tensor.view(-1).numpy() for tensor in tensors]
    # Scalars of the arrays' own dtype: a Python float would make the arithmetic double.
    kind = arrays[0].dtype.type
    lr, decay, momentum = kind(optimizer.lr), kind(optimizer.weight_decay), kind(optimizer.momentum)
    if not optimizer.momentum:
        return compile_kernel(_plain, (*arrays, lr, decay))
    return compile_kernel(_nesterov if optimizer.nesterov else _heavy, (*arrays, lr, decay, momentum))


def _by_torch(optimizer: SGD, value: Tensor, gradient: Tensor, states: tuple[Tensor, ...]) -> Callable[[], None]:
    """The operations of torch.optim.SGD in its order; they may use several cores."""
    steps = CallSequence()
    slope = gradient
    if optimizer.weight_decay or optimizer.nesterov:
        decayed = torch.empty_like(gradient)
        steps.then(lambda: torch.add(gradient, value, alpha=optimizer.weight_decay, out=decayed))
        slope = decayed
    direction = slope
    if optimizer.momentum:
        (buffer,) = states
        steps.then(lambda: buffer.mul_(optimizer.momentum))
        steps.then(lambda: buffer.add_(slope))
        direction = buffer
        if optimizer.nesterov:
            steps.then(lambda: slope.add_(buffer, alpha=optimizer.momentum))
            direction = slope
    steps.then(lambda: value.add_(direction, alpha=-optimizer.lr))
    return steps.bind()
