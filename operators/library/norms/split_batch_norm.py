"""Batch norm in parts: what each part of a split batch computes between the exchanges of a batch norm over all of it.

    batch_norm.mean      x                   -> mean               parts fold
    batch_norm.moments   x, mean             -> mean, variance     parts fold
    batch_norm.result    x, mean, variance   -> x

The variance is the mean of squared distances from the exact mean, as torch has it. ``moments`` gives the mean once
more, so that both statistics' slopes come back to one operator and are one pass over the operand: n elements and the
slopes s and t of mean and variance add (s + 2 t (x - m)) / n. The mean from which it takes distances has no slope of
its own: the distances' sum is zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from maniple.operators.operator.axes import activation_axes
from maniple.operators.operator.operator import BackwardReads, Cost, Kernels
from maniple.operators.operator.torch_operator import TorchOperator
from maniple.operators.rules.rule import Rule, Shape

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.operator.operator import TileContext
    from maniple.operators.rules.tile import Tile

__all__: list[str] = []


@dataclass(frozen=True, slots=True)
class ChannelStatistics(TorchOperator):
    """What parts of a batch add to statistics of its channels.

    Args:
        rank: The operand's dimensions.
        count: The elements of a channel, over all parts.
    """

    rank: int
    count: int

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimensions that are added up."""
        return tuple(axis for axis in range(self.rank) if axis != 1)

    def gpu_kernels(self) -> Kernels:
        """See ``AbstractOperator.gpu_kernels``: torch's."""
        return TorchOperator.kernels(self)


@final
@dataclass(frozen=True, slots=True)
class ChannelMean(ChannelStatistics):
    """The mean of each channel, to which no gradient comes: ``"b c y x -> c"``."""

    name: ClassVar[str] = "channel_mean"
    detached: ClassVar[tuple[int, ...]] = (0,)
    backward_reads: ClassVar[BackwardReads] = BackwardReads()

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule above; see ``AbstractOperator.rule``."""
        del shapes
        axes, channel = axes_of(self.rank)
        return Rule.parse(f"{axes} -> {channel}")

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> Tensor:
        """See ``TorchOperator.forward``."""
        del context
        (x,) = present(operands)
        return x.sum(self.dims) / self.count

    def kernels(self) -> Kernels:
        """See ``AbstractOperator.kernels``."""
        from maniple.operators.library.norms.split_batch_norm_kernels import MEAN

        return MEAN


@final
@dataclass(frozen=True, slots=True)
class ChannelMoments(ChannelStatistics):
    """Mean and variance of each channel, of which the mean is known: ``"b c y x, c -> c, c"``."""

    name: ClassVar[str] = "channel_moments"
    gradients_together: ClassVar[bool] = True
    differentiable: ClassVar[tuple[int, ...] | None] = (0,)
    backward_reads: ClassVar[BackwardReads] = BackwardReads(operands=(0, 1))

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule above; see ``AbstractOperator.rule``."""
        del shapes
        axes, channel = axes_of(self.rank)
        return Rule.parse(f"{axes}, {channel} -> {channel}, {channel}")

    def result_dtypes(self, dtypes: tuple[str | None, ...], where: str) -> tuple[str, ...]:
        """See ``AbstractOperator.result_dtypes``."""
        (dtype,) = super(ChannelMoments, self).result_dtypes(dtypes, where)
        return (dtype,) * 2

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
        """See ``TorchOperator.forward``."""
        del context
        x, mean = present(operands)
        far = x - mean.detach().view(spread(self.rank))
        return x.sum(self.dims) / self.count, far.square().sum(self.dims) / self.count

    def flops(self, tile: Tile) -> Cost:
        """See ``AbstractOperator.flops``."""
        return Cost(4 * tile.volume, 3 * tile.volume)

    def kernels(self) -> Kernels:
        """See ``AbstractOperator.kernels``."""
        from maniple.operators.library.norms.split_batch_norm_kernels import MOMENTS

        return MOMENTS


@final
@dataclass(frozen=True, slots=True)
class ChannelNormal(TorchOperator):
    """What is normalized by given statistics: ``"b c y x, c, c, [c], [c] -> b c y x"``.

    Args:
        rank: The operand's dimensions.
        eps: Added to the variance.
    """

    rank: int
    eps: float

    name: ClassVar[str] = "channel_normal"
    gradients_together: ClassVar[bool] = True
    backward_reads: ClassVar[BackwardReads] = BackwardReads(operands=(0, 1, 2, 3))

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule above; see ``AbstractOperator.rule``."""
        del shapes
        axes, channel = axes_of(self.rank)
        return Rule.parse(f"{axes}, {channel}, {channel}, [{channel}], [{channel}] -> {axes}")

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> Tensor:
        """See ``TorchOperator.forward``."""
        del context
        x, mean, variance = present(operands[:3])
        weight, bias = operands[3:]
        along = spread(self.rank)
        normal = (x - mean.view(along)) * (variance.view(along) + self.eps).rsqrt()
        if weight is not None:
            normal = normal * weight.view(along)
        return normal if bias is None else normal + bias.view(along)

    def flops(self, tile: Tile) -> Cost:
        """See ``AbstractOperator.flops``."""
        return Cost(3 * tile.volume, 6 * tile.volume)

    def kernels(self) -> Kernels:
        """See ``AbstractOperator.kernels``."""
        from maniple.operators.library.norms.split_batch_norm_kernels import NORMAL

        return NORMAL

    def gpu_kernels(self) -> Kernels:
        """See ``AbstractOperator.gpu_kernels``: torch's."""
        return TorchOperator.kernels(self)


def axes_of(rank: int) -> tuple[str, str]:
    """The factors of an operand of batch norm, and that of its channels."""
    axes = activation_axes(rank)
    return " ".join(axes), axes[1]


def spread(rank: int) -> tuple[int, ...]:
    """The shape in which a value for each channel meets the operand."""
    return (1, -1, *(1,) * (rank - 2))


def present(operands: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    """Operands that are there.

    Raises:
        TypeError: one is not.
    """
    found = tuple(operand for operand in operands if operand is not None)
    if len(found) < len(operands):
        raise TypeError("batch_norm: its parts need their operand and its statistics")
    return found
