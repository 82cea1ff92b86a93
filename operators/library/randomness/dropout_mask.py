"""Masks: what dropout multiplies a tile by, for operators that use it inside of their body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from maniple.operators.library.randomness.dropout_kernels import Mask, bind_dropout
from maniple.operators.operator.host_memory import as_plain
from maniple.operators.operator.torch_operator import AbstractDrawn

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from maniple.operators.operator.random_stream import RandomStream
    from maniple.regions.rectangle import Rect


def drawn_factors(stream: RandomStream, p: float, shape: tuple[int, ...], rect: Rect, dtype: torch.dtype) -> Tensor:
    """What dropout multiplies a tile by in the step that runs: zeros, and 1/(1-p) where an element stays.

    Args:
        stream: Of the operator; the factors are drawn where its clock lies.
        p: The probability of zero.
        shape: Of the whole tensor.
        rect: The tile.
        dtype: float32 or float64.
    """
    clock, mask = stream.clock, Mask(stream.operator, p)
    factors, ones = clock.new_empty(rect.shape, dtype=dtype), clock.new_ones(rect.shape, dtype=dtype)
    if clock.is_cuda:
        from maniple.operators.library.randomness import dropout_cuda_kernels
        from maniple.runtime.devices.cuda_kernels import current_stream

        dropout_cuda_kernels.bind_dropout(mask, shape, rect, clock, ones, factors, current_stream())()
    else:
        given, made, told = (as_plain(tensor) for tensor in (ones, factors, clock))
        bind_dropout(mask, shape, rect, told.numpy(), given, made)()
    return factors


@final
@dataclass(frozen=True, slots=True)
class DropFactors(AbstractDrawn):
    """What dropout multiplies a tile by; see ``drawn_factors``.

    Args:
        p: The probability of zero.
        whole: The shape of the whole tensor.
        rect: The tile.
    """

    p: float
    whole: tuple[int, ...]
    rect: Rect

    @property
    def shape(self) -> tuple[int, ...]:
        """See ``AbstractDrawn.shape``."""
        return self.rect.shape

    def draw(self, stream: RandomStream, dtype: torch.dtype) -> Tensor:
        """See ``AbstractDrawn.draw``."""
        return drawn_factors(stream, self.p, self.whole, self.rect, dtype)
