"""Kernels of stochastic gradient descent: one fused pass by numba, or torch's operations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numba
import torch
from torch import Tensor

from maniple.operators.operator.compiled_kernel import compile_kernel
from maniple.operators.operator.host_memory import in_host_memory
from maniple.operators.operator.kernel_scratch import CallSequence
from maniple.operators.training.block import Block
from maniple.operators.training.clipping import Floats, bounded, bounded_by_torch, factor_there, on_host
from maniple.operators.training.element_rule import FLAG, ElementRule, Numbers, begin, unpacked
from maniple.process.compilation.compiled import kernel
from maniple.process.torch_internals import fused_descent

if TYPE_CHECKING:
    from maniple.operators.training.descent import SGD

__all__: list[str] = []


@numba.njit(nogil=True)
def plain(value: float, gradient: float, lr: float, decay: float) -> float:
    """The next value of one element, without momentum."""
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
def prepare(row: Floats, settings: Floats, numbers: Floats) -> None:
    """What the elements of a step need; see ``ElementRule.prepare``.

    Args:
        row: the number of the step, then ``SGD.numbers``.
        settings: see ``ElementRule.settings``; the flag is Nesterov's.
        numbers: after those of ``begin`` the rate, the decay, the momentum, the gradient's share, and the flag.
    """
    numbers[2] = row[1]
    numbers[3] = row[2]
    numbers[4] = row[3]
    numbers[5] = 1.0 if row[0] <= 1.0 else 1.0 - row[4]
    numbers[6] = settings[FLAG]


@numba.njit(nogil=True)
def descend(gradient: float, buffer: float, momentum: float, share: float, nesterov: float) -> tuple[float, float]:
    """What is subtracted, at rate 1, and the next buffer of one element; its gradient has the decay in it."""
    buffer = momentum * buffer + share * gradient
    return (gradient + momentum * buffer if nesterov else buffer), buffer


@numba.njit(nogil=True)
def element(
    value: float, gradient: float, buffer: float, b: float, c: float, n: Numbers
) -> tuple[float, float, float, float]:
    """The next value and momentum buffer of one element; see ``ElementRule.element``."""
    taken = gradient + n[3] * value
    if n[4] != 0:
        taken, buffer = descend(taken, buffer, n[4], n[5], n[6])
    return value - n[2] * taken, buffer, b, c


@kernel
def _descend(
    value: Floats,
    gradient: Floats,
    buffer: Floats,
    _b: Floats,
    _c: Floats,
    row: Floats,
    squares: Floats,
    settings: Floats,
    numbers: Floats,
) -> None:
    begin(squares, settings, numbers)
    prepare(row, settings, numbers)
    n = unpacked(numbers)
    if buffer.size:
        for i in range(value.size):
            slope = bounded(gradient[i] * n[0], n[1])
            value[i], buffer[i], _, _ = element(value[i], slope, buffer[i], slope, slope, n)
    else:
        for i in range(value.size):
            slope = bounded(gradient[i] * n[0], n[1])
            value[i], _, _, _ = element(value[i], slope, slope, slope, slope, n)


RULE = ElementRule(("momentum",), "nesterov", prepare, element, _descend)


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
        if cores == 1 and value.device.type == "cpu" and all(tensor.is_contiguous() for tensor in tensors):
            return RULE.bind(optimizer, Block(value, gradient, states), row, squares)
        return _by_torch_varying(optimizer, tensors, row, squares, RULE.settings(optimizer))
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


def _by_torch_varying(
    optimizer: SGD, tensors: tuple[Tensor, ...], row: Tensor, squares: Tensor | None, settings: Floats
) -> Callable[[], None]:
    """The operations of torch.optim.SGD in its order, with the numbers of the step."""
    value, gradient, *states = tensors

    def update() -> None:
        factor, most, lr, decay, momentum, share, *_ = RULE.numbers(on_host(row), on_host(squares), settings)
        slope = bounded_by_torch(gradient, factor, most).add_(value, alpha=decay)
        if states and momentum:
            buffer = states[0].mul_(momentum).add_(slope, alpha=share)
            slope = slope.add_(buffer, alpha=momentum) if optimizer.nesterov else buffer
        value.add_(slope, alpha=-lr)

    def on_device() -> None:
        """The same with numbers that stay there: to have them as numbers the host would wait."""
        step, lr, decay, momentum, dampening = row.unbind()
        slope = bounded_by_torch(gradient, factor_there(squares, settings), float(settings[1])).add_(value * decay)
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
