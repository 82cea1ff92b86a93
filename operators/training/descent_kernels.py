"""Kernels of stochastic gradient descent: one fused pass by numba, or torch's operations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from maniple.operators.operator.compiled_kernel import compile_kernel
from maniple.operators.operator.host_memory import in_host_memory
from maniple.operators.operator.kernel_scratch import CallSequence
from maniple.operators.training.clipping import Clipping, bounded, bounded_by_torch, factor_there, on_host, scale
from maniple.process.compilation.compiled import kernel
from maniple.process.torch_internals import fused_descent

if TYPE_CHECKING:
    from maniple.operators.training.descent import SGD

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


@kernel
def _plain(value: Floats, gradient: Floats, lr: float, decay: float) -> None:
    for i in range(value.size):
        value[i] = plain(value[i], gradient[i], lr, decay)


@kernel
def _heavy(value: Floats, gradient: Floats, buffer: Floats, lr: float, decay: float, momentum: float) -> None:
    for i in range(value.size):
        value[i], buffer[i] = heavy(value[i], gradient[i], buffer[i], lr, decay, momentum)


@kernel
def _nesterov(value: Floats, gradient: Floats, buffer: Floats, lr: float, decay: float, momentum: float) -> None:
    for i in range(value.size):
        value[i], buffer[i] = nesterov(value[i], gradient[i], buffer[i], lr, decay, momentum)


@numba.njit(nogil=True)
def prepare(row: Floats, squares: Floats, limits: Floats, numbers: Floats) -> None:
    """What the elements of a step need, in their dtype; CUDA has a kernel of the same form.

    Args:
        row: the number of the step, then ``SGD.numbers``.
        squares: the sum of squares of all gradients, or ``clipping.NO_NORM``.
        limits: see ``Clipping.limits``.
        numbers: the factor (NaN of a NaN norm) and the bound of a gradient, the rate, the decay, the momentum,
            the gradient's share.
    """
    numbers[0] = scale(squares[0], limits[0], limits[2])
    numbers[1] = limits[1]
    numbers[2] = row[1]
    numbers[3] = row[2]
    numbers[4] = row[3]
    numbers[5] = 1.0 if row[0] <= 1.0 else 1.0 - row[4]


@numba.njit(nogil=True)
def descend(gradient: float, buffer: float, momentum: float, share: float, nesterov: int) -> tuple[float, float]:
    """What is subtracted, at rate 1, and the next buffer of one element; its gradient has the decay in it."""
    buffer = momentum * buffer + share * gradient
    return (gradient + momentum * buffer if nesterov else buffer), buffer


@kernel
def _descend(
    value: Floats,
    gradient: Floats,
    buffer: Floats,
    row: Floats,
    squares: Floats,
    limits: Floats,
    numbers: Floats,
    nesterov: int,
) -> None:
    prepare(row, squares, limits, numbers)
    factor, most, lr, decay = numbers[0], numbers[1], numbers[2], numbers[3]
    momentum, share = numbers[4], numbers[5]
    if buffer.size and momentum != 0.0:
        for i in range(value.size):
            slope = bounded(gradient[i] * factor, most) + decay * value[i]
            taken, buffer[i] = descend(slope, buffer[i], momentum, share, nesterov)
            value[i] -= lr * taken
    else:
        for i in range(value.size):
            value[i] -= lr * (bounded(gradient[i] * factor, most) + decay * value[i])


def bind_descent(
    optimizer: SGD,
    value: Tensor,
    gradient: Tensor,
    states: tuple[Tensor, ...],
    cores: int,
    row: Tensor | None = None,
    squares: Tensor | None = None,
) -> Callable[[], None]:
    """See ``SGD.bind_update``."""
    tensors = (value, gradient, *states)
    if row is not None:
        clipping = Clipping(optimizer)
        if cores == 1 and value.device.type == "cpu" and all(tensor.is_contiguous() for tensor in tensors):
            return _fuse_varying(optimizer, tensors, row, clipping.of(squares), clipping.limits)
        return _by_torch_varying(optimizer, tensors, row, squares, clipping.limits)
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


def _fuse_varying(
    optimizer: SGD, tensors: tuple[Tensor, ...], row: Tensor, squares: Floats, limits: Floats
) -> Callable[[], None]:
    value, gradient, *states = [tensor.view(-1).numpy() for tensor in tensors]
    buffer = states[0] if states else value[:0]
    numbers = np.zeros(6, dtype=value.dtype)
    return compile_kernel(
        _descend, (value, gradient, buffer, row.numpy(), squares, limits, numbers, int(optimizer.nesterov))
    )


def _by_torch_varying(
    optimizer: SGD, tensors: tuple[Tensor, ...], row: Tensor, squares: Tensor | None, limits: Floats
) -> Callable[[], None]:
    """The operations of torch.optim.SGD in its order, with the numbers of the step."""
    value, gradient, *states = tensors
    numbers = np.zeros(6)

    def update() -> None:
        prepare.py_func(on_host(row), on_host(squares), limits, numbers)
        factor, most, lr, decay, momentum, share = numbers.tolist()
        slope = bounded_by_torch(gradient, factor, most).add_(value, alpha=decay)
        if states and momentum:
            buffer = states[0].mul_(momentum).add_(slope, alpha=share)
            slope = slope.add_(buffer, alpha=momentum) if optimizer.nesterov else buffer
        value.add_(slope, alpha=-lr)

    def on_device() -> None:
        """The same with numbers that stay there: to have them as numbers the host would wait."""
        step, lr, decay, momentum, dampening = row.unbind()
        slope = bounded_by_torch(gradient, factor_there(squares, limits), float(limits[1])).add_(value * decay)
        if states:  # a momentum of 0 leaves the buffer as it is
            heavy = momentum != 0
            buffer = states[0] * momentum + slope * torch.where(step <= 1, torch.ones_like(step), 1 - dampening)
            taken = slope + buffer * momentum if optimizer.nesterov else buffer
            slope = torch.where(heavy, taken, slope)
            states[0].copy_(torch.where(heavy, buffer, states[0]))
        value.sub_(slope * lr)

    return update if in_host_memory(value) else on_device


def _by_torch(optimizer: SGD, value: Tensor, gradient: Tensor, states: tuple[Tensor, ...]) -> Callable[[], None]:
    """The operations of torch.optim.SGD, on several cores: in one pass where torch has that, else in its order."""
    fused, tensors = fused_descent(), (value, gradient, *states)
    if fused is not None and value.device.type == "cpu" and all(tensor.is_contiguous() for tensor in tensors):
        numbers = {"lr": optimizer.lr, "weight_decay": optimizer.weight_decay, "momentum": optimizer.momentum}
        kind = {"dampening": 0.0, "nesterov": optimizer.nesterov, "maximize": False, "is_first_step": False}
        lists = [value], [gradient], list(states)
        return partial(fused, *lists, **numbers, **kind)
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
