"""The kernel of a gradient's norm: the sum of the squares of a block, in double precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from maniple.operators.operator.compiled_kernel import compile_kernel
from maniple.process.compilation.compiled import kernel

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.training.clipping import Floats

__all__: list[str] = []


@kernel
def _squares(gradient: Floats, squares: Floats) -> None:
    total = 0.0
    for i in range(gradient.size):
        element = float(gradient[i])
        total += element * element
    squares[0] = total


def bind_squares(gradient: Tensor, squares: Tensor, cores: int) -> Callable[[], None]:
    """A function that writes the sum of the squares of a block each time that it is called.

    Args:
        gradient: The block.
        squares: One float64; written.
        cores: The cores that the processor owns.
    """
    if cores == 1 and gradient.device.type == "cpu" and gradient.is_contiguous():
        return compile_kernel(_squares, (gradient.view(-1).numpy(), squares.view(-1).numpy()))

    def add() -> None:
        doubled = gradient.to(torch.float64)
        squares.copy_((doubled * doubled).sum())

    return add
