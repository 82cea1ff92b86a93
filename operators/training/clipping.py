"""Clipping: gradients within a norm and a value, as torch's `clip_grad_norm_` and `clip_grad_value_` give them."""

from __future__ import annotations

from math import inf, sqrt
from typing import TYPE_CHECKING, final

import numba
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.training.optimizer import AbstractOptimizer

__all__: list[str] = []

Floats = npt.NDArray[np.float64]
NO_NORM = -1.0
"""Stands for a sum of squares where gradients are not clipped by norm."""
NORM_GUARD = 1e-6
"""What torch adds to a norm before it divides by it."""


@final
class Clipping:
    """The clipping of an optimizer, as its kernels take it.

    Args:
        optimizer: the optimizer.
    """

    def __init__(self, optimizer: AbstractOptimizer) -> None:
        norm, value = optimizer.clip_norm, optimizer.clip_value
        sign = -1.0 if getattr(optimizer, "maximize", False) else 1.0
        self.limits = np.asarray([inf if norm is None else norm, inf if value is None else value, sign])
        """The most that the norm and that an element may be, and the sign that a gradient gets."""

    @staticmethod
    def of(squares: Tensor | None) -> Floats:
        """The sum of squares where there is one, and otherwise a number that says that there is none."""
        return np.full(1, NO_NORM) if squares is None else squares.view(-1).numpy()


@numba.njit(nogil=True)
def scale(total: float, norm: float, sign: float) -> float:
    """The factor of every gradient; NaN of a NaN norm, as torch's. A device function of CUDA too.

    Args:
        total: the sum of squares of all gradients; below 0 where they are not clipped by norm.
        norm: the most that the norm may be.
        sign: of the factor.
    """
    if total < 0.0:
        return sign
    ratio = norm / (sqrt(total) + NORM_GUARD)
    return sign if ratio > 1.0 else sign * ratio


@numba.njit(nogil=True)
def bounded(gradient: float, most: float) -> float:
    """An element of a gradient within its bound; a NaN stays one. A device function of CUDA too."""
    if gradient > most:
        return most
    if gradient < -most:
        return -most
    return gradient


def bounded_by_torch(gradient: Tensor, factor: Tensor | float, most: float) -> Tensor:
    """A gradient times its factor, within its bound; a tensor of its own."""
    found = gradient * factor
    return found if most == inf else found.clamp_(-most, most)


def on_host(numbers: Tensor | None) -> Floats:
    """Numbers of a step where the host reads them."""
    return np.full(1, NO_NORM) if numbers is None else numbers.detach().cpu().view(-1).numpy()


def factor_there(squares: Tensor | None, limits: Floats) -> Tensor | float:
    """The factor of every gradient, worked out where the sum of squares lies: a device, which nobody waits for.

    Args:
        squares: the sum of squares of all gradients, where they are clipped by norm.
        limits: see ``Clipping.limits``.
    """
    if squares is None:
        return float(limits[2])
    return (float(limits[0]) / (squares.view(-1)[0].sqrt() + NORM_GUARD)).clamp(max=1.0) * float(limits[2])
