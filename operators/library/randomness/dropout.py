"""Dropout, whose mask is a function of the element and not of the tile."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, ClassVar, final

from maniple.operators.operator.axes import activation_axes, present_shape
from maniple.operators.operator.operator import AbstractOperator, BackwardReads, Cost, Kernels
from maniple.operators.operator.torch_operator import TorchOperator
from maniple.operators.rules.rule import Rule, Shape
from maniple.operators.rules.tile import Tile
from maniple.process.error import RequestError
from maniple.regions.rectangle import Rect

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.operator.operator import TileContext

ALPHA = -1.7580993408473766
"""What SELU gives for large negative numbers, to which alpha dropout sets elements (Klambauer et al., 2017)."""


def check_probability(operator: str, p: float) -> None:
    """Refuse what is no probability.

    Raises:
        RequestError: Names the operator.
    """
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p <= 1:
        raise RequestError(f"{operator}.p: expected a probability from 0 to 1, got {p!r}")


@final
@dataclass(frozen=True, slots=True)
class Dropout(AbstractOperator):
    """torch.nn.Dropout: ``"b ... -> b ..."``; in evaluation a copy. Backward draws the mask again.

    Args:
        p: The probability of zero.
    """

    p: float = 0.5

    name: ClassVar[str] = "dropout"
    backward_reads: ClassVar[BackwardReads] = BackwardReads()
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_probability(self.name, self.p)

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule above; see ``AbstractOperator.rule``."""
        return Rule.parse("... -> ...", ellipsis=activation_axes(len(present_shape(shapes[0], self.name))))

    def flops(self, tile: Tile) -> Cost:
        """See ``AbstractOperator.flops``: about ten operations draw the word of an element."""
        return Cost(10 * tile.volume, 10 * tile.volume)

    def kernels(self) -> Kernels:
        """See ``AbstractOperator.kernels``."""
        from maniple.operators.library.randomness.dropout_kernels import KERNELS

        return KERNELS

    def gpu_kernels(self) -> Kernels:
        """See ``AbstractOperator.gpu_kernels``."""
        from maniple.operators.library.randomness.dropout_cuda_kernels import KERNELS

        return KERNELS


@final
@dataclass(frozen=True, slots=True)
class DropoutVariant(TorchOperator):
    """torch.nn.Dropout1d, 2d and 3d (``channels``), AlphaDropout (``alpha``) and FeatureAlphaDropout (both).

    A channel's mask is that of its place in (samples, channels).

    Args:
        p: The probability of being dropped.
        channels: Whether the whole of a channel of a sample is dropped.
        alpha: Whether the dropped are set to SELU's lower bound and the result is scaled to keep mean and variance.
    """

    p: float = 0.5
    channels: bool = False
    alpha: bool = False

    name: ClassVar[str] = "dropout_variant"
    backward_reads: ClassVar[BackwardReads] = BackwardReads()
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_probability(self.name, self.p)

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """``"b c ... -> b c ..."``; see ``AbstractOperator.rule``."""
        shape = present_shape(shapes[0], self.name)
        if self.channels and len(shape) < 2:
            raise RequestError(f"{self.name}.channels: expected (samples, channels, ...), got {shape}")
        return Rule.parse("... -> ...", ellipsis=activation_axes(len(shape)))

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> Tensor:
        """See ``TorchOperator.forward``."""
        (x,) = operands
        if x is None:
            raise TypeError(f"{self.name}: forward needs its operand")
        return self.drop(context, x) if context.training else x

    def drop(self, context: TileContext, x: Tensor) -> Tensor:
        """What training leaves of a tile."""
        from maniple.operators.library.randomness.dropout_mask import drawn_factors

        if context.stream is None:
            raise TypeError(f"{self.name}: needs a random stream")
        rect, count = context.tile.result_rects[0], 2 if self.channels else x.ndim
        whole = tuple(extent for _, extent in context.extents)[:count]
        part = Rect(rect.lo[:count], rect.hi[:count])
        factors = drawn_factors(context.stream, self.p, whole, part, x.dtype)
        factors = factors.view(*factors.shape, *[1] * (x.ndim - count))
        if not self.alpha or self.p == 1:
            return x * factors
        kept = factors * (1 - self.p)
        scale = 1 / sqrt((ALPHA**2 * self.p + 1) * (1 - self.p))
        return scale * (x * kept + ALPHA * (1 - kept) - ALPHA * self.p)
