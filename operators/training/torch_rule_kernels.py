"""Rules of elements of torch's classes: what a step of ``torch.optim.RMSprop`` and others does to each element.

As torch 2.13 has them, in the order of its single-tensor forms. RULES says which classes have one; of all others
torch's own step runs.

    Adagrad    J. Duchi, E. Hazan, Y. Singer, Adaptive subgradient methods, JMLR 2011
    RMSprop    T. Tieleman, G. Hinton, Lecture 6.5, 2012; A. Graves, Generating sequences, 2013, for centered
    Adadelta   M. Zeiler, Adadelta: an adaptive learning rate method, 2012
    Adamax     D. Kingma, J. Ba, Adam, ICLR 2015, section 7.1
    RAdam      L. Liu et al., On the variance of the adaptive learning rate and beyond, ICLR 2020
    Rprop      M. Riedmiller, H. Braun, A direct adaptive method for faster backpropagation learning, ICNN 1993
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import NamedTuple, final

import numba

from maniple.operators.training.clipping import Floats, bounded
from maniple.operators.training.element_rule import FLAG, HELD, ElementRule, Numbers, begin, unpacked
from maniple.process.compilation.compiled import numpy_kernel

__all__: list[str] = []

Element = tuple[float, float, float, float]


@numba.njit(nogil=True)
def adagrad_numbers(row: Floats, settings: Floats, numbers: Floats) -> None:
    """The rate of the step, the decay, eps, what the sum begins with, and whether it begins now."""
    numbers[2] = row[1] / (1.0 + (row[0] - 1.0) * row[2])
    numbers[3] = row[4]
    numbers[4] = row[3]
    numbers[5] = row[5]
    numbers[6] = 1.0 if row[0] <= 1.0 else 0.0


@numba.njit(nogil=True, error_model="numpy")
def adagrad(value: float, gradient: float, total: float, b: float, c: float, n: Numbers) -> Element:
    """One element of Adagrad; its state is the sum of squares."""
    slope = gradient + n[3] * value
    summed = (n[5] if n[6] != 0 else total) + slope * slope
    return value - n[2] * slope / (sqrt(summed) + n[4]), summed, b, c


@numba.njit(nogil=True)
def rmsprop_numbers(row: Floats, settings: Floats, numbers: Floats) -> None:
    """The rate, what means keep and take, eps, the decay, the momentum, and whether there is a mean of gradients."""
    numbers[2] = row[1]
    numbers[3] = row[3]
    numbers[4] = 1.0 - row[3]
    numbers[5] = row[4]
    numbers[6] = row[5]
    numbers[7] = row[2]
    numbers[8] = settings[HELD + 2]


@numba.njit(nogil=True, error_model="numpy")
def rmsprop(value: float, gradient: float, square: float, buffer: float, mean: float, n: Numbers) -> Element:
    """One element of RMSprop; its states are the mean of squares, the momentum, and the mean of gradients."""
    slope = gradient + n[6] * value
    square = n[3] * square + n[4] * slope * slope
    under = square
    if n[8] != 0:
        mean = mean + n[4] * (slope - mean)
        under = square - mean * mean
    step = slope / (sqrt(under) + n[5])
    if n[7] != 0:
        buffer = n[7] * buffer + step
        step = buffer
    return value - n[2] * step, square, buffer, mean


@numba.njit(nogil=True)
def adadelta_numbers(row: Floats, settings: Floats, numbers: Floats) -> None:
    """The rate, what means keep and take, eps, and the decay."""
    numbers[2] = row[1]
    numbers[3] = row[2]
    numbers[4] = 1.0 - row[2]
    numbers[5] = row[3]
    numbers[6] = row[4]


@numba.njit(nogil=True, error_model="numpy")
def adadelta(value: float, gradient: float, square: float, moves: float, c: float, n: Numbers) -> Element:
    """One element of Adadelta; its states are the means of squares of gradients and of steps."""
    slope = gradient + n[6] * value
    square = n[3] * square + n[4] * slope * slope
    step = sqrt(moves + n[5]) / sqrt(square + n[5]) * slope
    return value - n[2] * step, square, n[3] * moves + n[4] * step * step, c


@numba.njit(nogil=True)
def adamax_numbers(row: Floats, settings: Floats, numbers: Floats) -> None:
    """The rate without the bias of the mean, what the mean keeps and takes, what the norm keeps, eps, and the decay."""
    numbers[2] = row[1] / (1.0 - row[2] ** max(row[0], 1.0))
    numbers[3] = row[2]
    numbers[4] = 1.0 - row[2]
    numbers[5] = row[3]
    numbers[6] = row[4]
    numbers[7] = row[5]


@numba.njit(nogil=True, error_model="numpy")
def adamax(value: float, gradient: float, mean: float, norm: float, c: float, n: Numbers) -> Element:
    """One element of Adamax; its states are the mean of gradients and their greatest; a NaN stays in both."""
    slope = gradient + n[7] * value
    mean = n[3] * mean + n[4] * slope
    before, now = n[5] * norm, abs(slope) + n[6]
    norm = before if before > now or before != before else now  # noqa: PLR0124
    return value - n[2] * mean / norm, mean, norm, c


@numba.njit(nogil=True)
def radam_numbers(row: Floats, settings: Floats, numbers: Floats) -> None:
    """What the value keeps, what of it joins the gradient, what means keep and take, the size, eps, and if it is used.

    The size of a step has the rectification in it as soon as the length of the mean of squares allows that.
    """
    step, lr, beta1, beta2, decay = max(row[0], 1.0), row[1], row[2], row[3], row[5]
    numbers[2] = 1.0 - lr * decay if settings[FLAG] else 1.0
    numbers[3] = 0.0 if settings[FLAG] else decay
    numbers[4] = beta1
    numbers[5] = 1.0 - beta1
    numbers[6] = beta2
    numbers[7] = 1.0 - beta2
    left = 1.0 - beta2**step
    most = 2.0 / (1.0 - beta2) - 1.0
    length = most - 2.0 * step * (1.0 - left) / left
    size, rectified = lr / (1.0 - beta1**step), length > 5.0
    if rectified:
        size *= sqrt((length - 4.0) * (length - 2.0) * most / ((most - 4.0) * (most - 2.0) * length) * left)
    numbers[8] = size
    numbers[9] = row[4]
    numbers[10] = 1.0 if rectified else 0.0


@numba.njit(nogil=True, error_model="numpy")
def radam(value: float, gradient: float, mean: float, square: float, c: float, n: Numbers) -> Element:
    """One element of RAdam; its states are the means of gradients and of their squares."""
    own = value * n[2]
    slope = gradient + n[3] * value
    mean = n[4] * mean + n[5] * slope
    square = n[6] * square + n[7] * slope * slope
    step = n[8] * mean
    if n[10] != 0:
        step = step / (sqrt(square) + n[9])
    return own - step, mean, square, c


@numba.njit(nogil=True)
def rprop_numbers(row: Floats, settings: Floats, numbers: Floats) -> None:
    """The factors of a step's size and its bounds, what it begins with, whether it begins now, and then one and zero.

    The last two are numbers of the elements' dtype: with those of the source an element would be computed in double.
    """
    numbers[2] = row[2]
    numbers[3] = row[3]
    numbers[4] = row[4]
    numbers[5] = row[5]
    numbers[6] = row[1]
    numbers[7] = 1.0 if row[0] <= 1.0 else 0.0
    numbers[8] = 1.0
    numbers[9] = 0.0


@numba.njit(nogil=True, error_model="numpy")
def rprop(value: float, gradient: float, before: float, size: float, c: float, n: Numbers) -> Element:
    """One element of Rprop; its states are the gradient before and the size of its step. A NaN moves nothing."""
    turn = gradient * before
    factor = n[3] if turn > 0 else n[2] if turn < 0 else n[8]
    size = (n[6] if n[7] != 0 else size) * factor
    size = min(max(size, n[4]), n[5])
    slope = n[9] if turn < 0 else gradient
    found = value - size if slope > 0 else value + size if slope < 0 else value
    return found, slope, size, c


@numpy_kernel
def _adagrad(
    value: Floats,
    gradient: Floats,
    total: Floats,
    _b: Floats,
    _c: Floats,
    row: Floats,
    squares: Floats,
    settings: Floats,
    numbers: Floats,
) -> None:
    begin(squares, settings, numbers)
    adagrad_numbers(row, settings, numbers)
    n = unpacked(numbers)
    for i in range(value.size):
        slope = bounded(gradient[i] * n[0], n[1])
        value[i], total[i], _, _ = adagrad(value[i], slope, total[i], slope, slope, n)


@numpy_kernel
def _rmsprop(
    value: Floats,
    gradient: Floats,
    square: Floats,
    buffer: Floats,
    mean: Floats,
    row: Floats,
    squares: Floats,
    settings: Floats,
    numbers: Floats,
) -> None:
    begin(squares, settings, numbers)
    rmsprop_numbers(row, settings, numbers)
    n = unpacked(numbers)
    if buffer.size and mean.size:
        for i in range(value.size):
            slope = bounded(gradient[i] * n[0], n[1])
            value[i], square[i], buffer[i], mean[i] = rmsprop(value[i], slope, square[i], buffer[i], mean[i], n)
    elif buffer.size:
        for i in range(value.size):
            slope = bounded(gradient[i] * n[0], n[1])
            value[i], square[i], buffer[i], _ = rmsprop(value[i], slope, square[i], buffer[i], slope, n)
    elif mean.size:
        for i in range(value.size):
            slope = bounded(gradient[i] * n[0], n[1])
            value[i], square[i], _, mean[i] = rmsprop(value[i], slope, square[i], slope, mean[i], n)
    else:
        for i in range(value.size):
            slope = bounded(gradient[i] * n[0], n[1])
            value[i], square[i], _, _ = rmsprop(value[i], slope, square[i], slope, slope, n)


@numpy_kernel
def _adadelta(
    value: Floats,
    gradient: Floats,
    square: Floats,
    moves: Floats,
    _c: Floats,
    row: Floats,
    squares: Floats,
    settings: Floats,
    numbers: Floats,
) -> None:
    begin(squares, settings, numbers)
    adadelta_numbers(row, settings, numbers)
    n = unpacked(numbers)
    for i in range(value.size):
        slope = bounded(gradient[i] * n[0], n[1])
        value[i], square[i], moves[i], _ = adadelta(value[i], slope, square[i], moves[i], slope, n)


@numpy_kernel
def _adamax(
    value: Floats,
    gradient: Floats,
    mean: Floats,
    norm: Floats,
    _c: Floats,
    row: Floats,
    squares: Floats,
    settings: Floats,
    numbers: Floats,
) -> None:
    begin(squares, settings, numbers)
    adamax_numbers(row, settings, numbers)
    n = unpacked(numbers)
    for i in range(value.size):
        slope = bounded(gradient[i] * n[0], n[1])
        value[i], mean[i], norm[i], _ = adamax(value[i], slope, mean[i], norm[i], slope, n)


@numpy_kernel
def _radam(
    value: Floats,
    gradient: Floats,
    mean: Floats,
    square: Floats,
    _c: Floats,
    row: Floats,
    squares: Floats,
    settings: Floats,
    numbers: Floats,
) -> None:
    begin(squares, settings, numbers)
    radam_numbers(row, settings, numbers)
    n = unpacked(numbers)
    for i in range(value.size):
        slope = bounded(gradient[i] * n[0], n[1])
        value[i], mean[i], square[i], _ = radam(value[i], slope, mean[i], square[i], slope, n)


@numpy_kernel
def _rprop(
    value: Floats,
    gradient: Floats,
    before: Floats,
    size: Floats,
    _c: Floats,
    row: Floats,
    squares: Floats,
    settings: Floats,
    numbers: Floats,
) -> None:
    begin(squares, settings, numbers)
    rprop_numbers(row, settings, numbers)
    n = unpacked(numbers)
    for i in range(value.size):
        slope = bounded(gradient[i] * n[0], n[1])
        value[i], before[i], size[i], _ = rprop(value[i], slope, before[i], size[i], slope, n)


@final
class TorchClass(NamedTuple):
    """What is known of a class of torch.

    Args:
        numbers: its arguments that are numbers, in the order in which ``prepare`` reads them after the step's.
        rule: what a step does to an element.
    """

    numbers: tuple[str, ...]
    rule: ElementRule


_BETAS = ("betas[0]", "betas[1]", "eps", "weight_decay")
_OF_RADAM = ElementRule(("exp_avg", "exp_avg_sq"), "decoupled_weight_decay", radam_numbers, radam, _radam)
RULES: Mapping[str, TorchClass] = {
    "Adagrad": TorchClass(
        ("lr", "lr_decay", "eps", "weight_decay", "initial_accumulator_value"),
        ElementRule(("sum",), "", adagrad_numbers, adagrad, _adagrad),
    ),
    "RMSprop": TorchClass(
        ("lr", "momentum", "alpha", "eps", "weight_decay"),
        ElementRule(("square_avg", "momentum_buffer", "grad_avg"), "", rmsprop_numbers, rmsprop, _rmsprop),
    ),
    "Adadelta": TorchClass(
        ("lr", "rho", "eps", "weight_decay"),
        ElementRule(("square_avg", "acc_delta"), "", adadelta_numbers, adadelta, _adadelta),
    ),
    "Adamax": TorchClass(("lr", *_BETAS), ElementRule(("exp_avg", "exp_inf"), "", adamax_numbers, adamax, _adamax)),
    "RAdam": TorchClass(("lr", *_BETAS), _OF_RADAM),
    "Rprop": TorchClass(
        ("lr", "etas[0]", "etas[1]", "step_sizes[0]", "step_sizes[1]"),
        ElementRule(("prev", "step_size"), "", rprop_numbers, rprop, _rprop),
    ),
}
"""By the name of the class."""
