"""Normalizations: of each sample over its features, and of each channel over the batch."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar, final

from maniple.operators.library.norms.local_batch_norm import LocalBatchNorm
from maniple.operators.library.norms.split_batch_norm import ChannelMean, ChannelMoments, ChannelNormal, axes_of
from maniple.operators.operator.axes import activation_axes, present_shape
from maniple.operators.operator.operator import AbstractOperator, BackwardReads, Initial, Kernels, ParameterSpec
from maniple.operators.operator.torch_operator import TorchOperator
from maniple.operators.rules.rule import Rule, Saved, Shape
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from maniple.operators.operator.builder import Tensor as Handle
    from maniple.operators.operator.composition import AbstractComposition
    from maniple.operators.operator.operator import TileContext

ONE = Initial("constant", 1.0)
ZERO = Initial("constant", 0.0)


@final
@dataclass(frozen=True, slots=True)
class LayerNorm(TorchOperator):
    """torch.nn.LayerNorm: ``"b s c, [c], [c] -> b s c"``; a composite where a normalized dimension is split.

    The variance is the mean of the squared distances from the exact mean, in a second pass, as torch has it.

    Args:
        normalized_shape: The last dimensions.
        rank: The operand's dimensions.
        eps: Added to the variance.
        elementwise_affine: Whether there is a weight.
        bias: Whether there is a bias beside the weight.
    """

    normalized_shape: tuple[int, ...]
    rank: int
    eps: float = 1e-5
    elementwise_affine: bool = True
    bias: bool = True

    name: ClassVar[str] = "layer_norm"
    gradients_together: ClassVar[bool] = True
    backward_reads: ClassVar[BackwardReads] = BackwardReads(operands=(0, 1), saved=(0, 1))

    def __post_init__(self) -> None:
        if not 0 < len(self.normalized_shape) <= self.rank:
            raise RequestError(
                f"layer_norm.normalized_shape: expected 1 to {self.rank} dimensions, got {self.normalized_shape}"
            )

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule above; see ``AbstractOperator.rule``."""
        shape = present_shape(shapes[0], self.name)
        if len(shape) != self.rank or shape[-len(self.normalized_shape) :] != self.normalized_shape:
            raise RequestError(
                f"layer_norm: expected {self.rank} dimensions that end in {self.normalized_shape}, got {shape}"
            )
        axes, last = self._axes()
        kept = _kept(self.rank, len(self.normalized_shape))
        return Rule.parse(f"{axes}, [{last}], [{last}] -> {axes}", saved=(Saved("mean", kept), Saved("scale", kept)))

    @property
    def saves(self) -> tuple[tuple[str, int], ...]:
        """See ``TorchOperator.saves``: the means and the reciprocal deviations."""
        return ("native_layer_norm", 1), ("native_layer_norm", 2)

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See ``AbstractOperator.parameters``."""
        weight = ParameterSpec("weight", self.normalized_shape, ONE)
        bias = ParameterSpec("bias", self.normalized_shape, ZERO)
        return (weight, bias)[: self.elementwise_affine * (1 + self.bias)]

    def exchanges(self) -> tuple[str, ...]:
        """See ``AbstractOperator.exchanges``."""
        return tuple(self._axes()[1].split())

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> Tensor:
        """See ``TorchOperator.forward``."""
        from torch.nn.functional import layer_norm

        del context
        x, weight, bias = operands
        if x is None:
            raise TypeError("layer_norm: forward needs its operand")
        return layer_norm(x, self.normalized_shape, weight, bias, self.eps)

    def kernels(self) -> Kernels:
        """See ``AbstractOperator.kernels``."""
        from maniple.operators.library.norms.norm_kernels import LAYER_NORM

        return LAYER_NORM

    def gpu_kernels(self) -> Kernels:
        """See ``AbstractOperator.gpu_kernels``: torch's."""
        return TorchOperator.kernels(self)

    def compose(self, composition: AbstractComposition, operands: tuple[Handle | None, ...]) -> tuple[Handle, ...]:
        """See ``AbstractOperator.compose``."""
        x, weight, bias = (*operands, None, None)[:3]
        axes, last = self._axes()
        dims = tuple(range(self.rank - len(self.normalized_shape), self.rank))
        kept = _kept(self.rank, len(dims))
        count, eps = prod(self.normalized_shape), self.eps
        mean = composition.formula("mean", f"{axes} -> {kept}", lambda _, x: x.sum(dims, keepdim=True) / count, x)
        variance = composition.formula(
            "variance",
            f"{axes}, {kept} -> {kept}",
            lambda _, x, m: (x - m).square().sum(dims, keepdim=True) / count,
            x,
            mean,
        )

        def result(
            context: TileContext, x: Tensor, m: Tensor, v: Tensor, weight: Tensor | None, bias: Tensor | None
        ) -> Tensor:
            del context
            return _scale((x - m) * (v + eps).rsqrt(), weight, bias)

        text = f"{axes}, {kept}, {kept}, [{last}], [{last}] -> {axes}"
        return (composition.formula("result", text, result, x, mean, variance, weight, bias),)

    def _axes(self) -> tuple[str, str]:
        """The factors of the operand, and those of its normalized dimensions."""
        axes = activation_axes(self.rank)
        return " ".join(axes), " ".join(axes[self.rank - len(self.normalized_shape) :])


@final
@dataclass(frozen=True, slots=True)
class BatchNorm(TorchOperator):
    """torch.nn.BatchNorm1d, 2d and 3d: ``"b c y x, c, c, [c], [c] -> b c y x, c, c"``; exact under any split.

    Operands: the activation, running mean, running variance, weight, bias. Results: the activation and the next running
    statistics. A training step normalizes with the mean and the variance of the whole mini-batch, whichever way it is
    cut: where a factor other than the channels is split it is a composite, whose statistics fold. An evaluation
    normalizes with the running statistics.

    Args:
        num_features: The channels.
        rank: The operand's dimensions.
        eps: Added to the variance.
        momentum: The share of the mini-batch in the next running statistics.
        affine: Whether there are weight and bias.
    """

    num_features: int
    rank: int
    eps: float = 1e-5
    momentum: float = 0.1
    affine: bool = True

    name: ClassVar[str] = "batch_norm"
    gradients_together: ClassVar[bool] = True
    backward_reads: ClassVar[BackwardReads] = BackwardReads(operands=None, saved=(0, 1))
    differentiable: ClassVar[tuple[int, ...] | None] = (0, 3, 4)
    detached: ClassVar[tuple[int, ...]] = (1, 2)

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule above; see ``AbstractOperator.rule``."""
        shape = present_shape(shapes[0], self.name)
        if len(shape) != self.rank or self.rank < 2 or shape[1] != self.num_features:
            raise RequestError(
                f"batch_norm: expected {self.rank} dimensions (batch, {self.num_features} channels, ...), got {shape}"
            )
        axes, channel = self._axes()
        statistics = f"{channel}, {channel}"
        text = f"{axes}, {statistics}, [{channel}], [{channel}] -> {axes}, {statistics}"
        return Rule.parse(text, saved=(Saved("mean", channel), Saved("scale", channel)))

    @property
    def saves(self) -> tuple[tuple[str, int], ...]:
        """See ``TorchOperator.saves``: the mini-batch's means and reciprocal deviations."""
        return ("native_batch_norm", 1), ("native_batch_norm", 2)

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See ``AbstractOperator.parameters``."""
        shape = (self.num_features,)
        return (ParameterSpec("weight", shape, ONE), ParameterSpec("bias", shape, ZERO)) if self.affine else ()

    def result_dtypes(self, dtypes: tuple[str | None, ...], where: str) -> tuple[str, ...]:
        """See ``AbstractOperator.result_dtypes``."""
        (dtype,) = super(BatchNorm, self).result_dtypes(dtypes, where)
        return (dtype,) * 3

    def exchanges(self) -> tuple[str, ...]:
        """See ``AbstractOperator.exchanges``."""
        axes, channel = self._axes()
        return tuple(name for name in axes.split() if name != channel)

    def under(self, semantics: Mapping[str, str]) -> AbstractOperator:
        """Without an exchange of statistics, where the plan says so; see ``AbstractOperator.under``."""
        return LocalBatchNorm(self) if semantics.get("batch_norm") == "local_stats" else self

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
        """See ``TorchOperator.forward``."""
        from torch.nn.functional import batch_norm

        x, mean, variance, weight, bias = operands
        if x is None or mean is None or variance is None:
            raise TypeError("batch_norm: forward needs its operand and the running statistics")
        following = mean.detach().clone(), variance.detach().clone()
        if x.is_cuda:  # not cuDNN's, which keeps statistics in another form and writes to no memory that it is given
            import torch

            found, _, _ = torch.native_batch_norm(
                x, weight, bias, *following, context.training, self.momentum, self.eps
            )
        else:
            found = batch_norm(x, *following, weight, bias, context.training, self.momentum, self.eps)
        return (found, *following)

    def kernels(self) -> Kernels:
        """See ``AbstractOperator.kernels``."""
        from maniple.operators.library.norms.batch_norm_kernels import BATCH_NORM

        return BATCH_NORM

    def local_kernels(self) -> Kernels:
        """The kernels by the tile's own statistics."""
        from maniple.operators.library.norms.batch_norm_kernels import LOCAL

        return LOCAL

    def gpu_kernels(self) -> Kernels:
        """See ``AbstractOperator.gpu_kernels``: torch's."""
        return TorchOperator.kernels(self)

    def compose(self, composition: AbstractComposition, operands: tuple[Handle | None, ...]) -> tuple[Handle, ...]:
        """See ``AbstractOperator.compose``."""
        return self.compose_with(ChannelNormal(self.rank, self.eps), composition, operands)

    def compose_with(
        self,
        normal: AbstractOperator,
        composition: AbstractComposition,
        operands: tuple[Handle | None, ...],
        others: tuple[Handle | None, ...] = (),
    ) -> tuple[Handle, ...]:
        """Write the operator as primitives.

        Args:
            normal: The primitive that gives the result: of the operand, statistics, weight, bias and others.
            composition: See ``compose``.
            operands: See ``compose``.
            others: What else the primitive reads.
        """
        x, running_mean, running_variance, weight, bias = (*operands, None, None)[:5]
        _, channel = self._axes()
        momentum = self.momentum
        count = prod(extent for name, extent in composition.bound.extents() if name != channel)
        if not composition.training:
            given = (x, running_mean, running_variance, weight, bias, *others)
            kept = f"{channel} -> {channel}"
            return (
                *composition.primitive("result", normal, given),
                composition.constant("next_mean", kept, lambda _, old: old.clone(), running_mean),
                composition.constant("next_var", kept, lambda _, old: old.clone(), running_variance),
            )
        if count < 2:
            raise RequestError("batch_norm: expected more than 1 value per channel when training")
        (near,) = composition.primitive("mean", ChannelMean(self.rank, count), (x,))
        mean, variance = composition.primitive("moments", ChannelMoments(self.rank, count), (x, near))
        found = composition.primitive("result", normal, (x, mean, variance, weight, bias, *others))
        blend = f"{channel}, {channel} -> {channel}"
        next_mean = composition.constant(
            "next_mean", blend, lambda _, old, new: (1 - momentum) * old + momentum * new, running_mean, mean
        )
        # The running variance is the unbiased one, as torch has it.
        share = momentum * count / (count - 1)
        next_variance = composition.constant(
            "next_var", blend, lambda _, old, new: (1 - momentum) * old + share * new, running_variance, variance
        )
        return *found, next_mean, next_variance

    def _axes(self) -> tuple[str, str]:
        """The factors of the operand, and that of its channels."""
        return axes_of(self.rank)


def _kept(rank: int, normalized: int) -> str:
    """The dimensions of what there is one of for all elements that are normalized together."""
    return " ".join([*activation_axes(rank)[: rank - normalized], *["1"] * normalized])


def _scale(normal: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """``normal * weight + bias``, as far as they are there."""
    if weight is not None:
        normal = normal * weight
    return normal if bias is None else normal + bias
