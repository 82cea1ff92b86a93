"""Normalizations without a mean over the batch: of root mean squares, and of groups of channels."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar, final

from maniple.operators.library.norms.normalization import ONE, ZERO
from maniple.operators.operator.axes import activation_axes, check_at_least, present_shape
from maniple.operators.operator.operator import BackwardReads, ParameterSpec
from maniple.operators.operator.torch_operator import TorchOperator
from maniple.operators.rules.rule import Rule, Saved, Shape
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.operator.builder import Tensor as Handle
    from maniple.operators.operator.composition import AbstractComposition
    from maniple.operators.operator.operator import TileContext


@final
@dataclass(frozen=True, slots=True)
class RMSNorm(TorchOperator):
    """torch.nn.RMSNorm: ``"b s c, [c] -> b s c"``; a composite where a normalized dimension is split.

    Args:
        normalized_shape: The last dimensions.
        rank: The operand's dimensions.
        eps: Added to the mean square; None: the least difference from 1 of the dtype, as torch has it.
        elementwise_affine: Whether there is a weight.
    """

    normalized_shape: tuple[int, ...]
    rank: int
    eps: float | None = None
    elementwise_affine: bool = True

    name: ClassVar[str] = "rms_norm"
    gradients_together: ClassVar[bool] = True
    backward_reads: ClassVar[BackwardReads] = BackwardReads(operands=None, saved=(0,))

    def __post_init__(self) -> None:
        if not 0 < len(self.normalized_shape) <= self.rank:
            raise RequestError(
                f"rms_norm.normalized_shape: expected 1 to {self.rank} dimensions, got {self.normalized_shape}"
            )

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule above; see ``AbstractOperator.rule``."""
        shape = present_shape(shapes[0], self.name)
        if len(shape) != self.rank or shape[-len(self.normalized_shape) :] != self.normalized_shape:
            raise RequestError(
                f"rms_norm: expected {self.rank} dimensions that end in {self.normalized_shape}, got {shape}"
            )
        axes = activation_axes(self.rank)
        kept = " ".join([*axes[: self.rank - len(self.normalized_shape)], *["1"] * len(self.normalized_shape)])
        text = f"{' '.join(axes)}, [{' '.join(self.exchanges())}] -> {' '.join(axes)}"
        return Rule.parse(text, saved=(Saved("scale", kept),))

    @property
    def saves(self) -> tuple[tuple[str, int], ...]:
        """See ``TorchOperator.saves``: the reciprocal roots of the mean squares."""
        return (("rsqrt", 0),)

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See ``AbstractOperator.parameters``."""
        return (ParameterSpec("weight", self.normalized_shape, ONE),) if self.elementwise_affine else ()

    def exchanges(self) -> tuple[str, ...]:
        """See ``AbstractOperator.exchanges``."""
        return activation_axes(self.rank)[self.rank - len(self.normalized_shape) :]

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> Tensor:
        """See ``TorchOperator.forward``."""
        from torch.nn.functional import rms_norm

        del context
        x, weight = operands
        if x is None:
            raise TypeError("rms_norm: forward needs its operand")
        return rms_norm(x, self.normalized_shape, weight, self.eps)

    def compose(self, composition: AbstractComposition, operands: tuple[Handle | None, ...]) -> tuple[Handle, ...]:
        """See ``AbstractOperator.compose``."""
        x, weight = (*operands, None)[:2]
        axes, last = activation_axes(self.rank), " ".join(self.exchanges())
        dims = tuple(range(self.rank - len(self.normalized_shape), self.rank))
        whole, kept = " ".join(axes), " ".join([*axes[: dims[0]], *("1" for _ in dims)])
        count = prod(self.normalized_shape)

        def result(context: TileContext, x: Tensor, square: Tensor, weight: Tensor | None) -> Tensor:
            import torch

            del context
            normal = x * (square + (torch.finfo(x.dtype).eps if self.eps is None else self.eps)).rsqrt()
            return normal if weight is None else normal * weight

        square = composition.formula(
            "square", f"{whole} -> {kept}", lambda _, x: x.square().sum(dims, keepdim=True) / count, x
        )
        return (composition.formula("result", f"{whole}, {kept}, [{last}] -> {whole}", result, x, square, weight),)


@final
@dataclass(frozen=True, slots=True)
class GroupNorm(TorchOperator):
    """torch.nn.GroupNorm: ``"b (g k!) y x, [(g k!)], [(g k!)] -> b (g k!) y x"``.

    With as many groups as channels it is torch.nn.InstanceNorm. A composite where a dimension after the channels is
    split.

    Args:
        num_groups: Divides the channels.
        num_channels: The channels.
        rank: The operand's dimensions.
        eps: Added to the variance.
        affine: Whether there are weight and bias.
    """

    num_groups: int
    num_channels: int
    rank: int
    eps: float = 1e-5
    affine: bool = True

    name: ClassVar[str] = "group_norm"
    gradients_together: ClassVar[bool] = True
    backward_reads: ClassVar[BackwardReads] = BackwardReads(operands=(0, 1), saved=(0, 1))

    def __post_init__(self) -> None:
        check_at_least("group_norm.num_groups", self.num_groups, 1)
        if self.num_channels % self.num_groups:
            raise RequestError(
                f"group_norm.num_groups: expected a divisor of {self.num_channels} channels, got {self.num_groups}"
            )

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule above; see ``AbstractOperator.rule``."""
        shape = present_shape(shapes[0], self.name)
        if len(shape) != self.rank or self.rank < 2 or shape[1] != self.num_channels:
            raise RequestError(
                f"group_norm: expected {self.rank} dimensions (batch, {self.num_channels} channels, ...), got {shape}"
            )
        whole = self._whole()
        saved = (Saved("mean", "b g"), Saved("scale", "b g"))
        return Rule.parse(f"{whole}, [(g k!)], [(g k!)] -> {whole}", sizes=self._sizes(), saved=saved)

    @property
    def saves(self) -> tuple[tuple[str, int], ...]:
        """See ``TorchOperator.saves``: the means and the reciprocal deviations."""
        return ("native_group_norm", 1), ("native_group_norm", 2)

    def _whole(self) -> str:
        """The operand's dimensions."""
        return " ".join(["b", "(g k!)", *self.exchanges()])

    def _sizes(self) -> dict[str, int]:
        """The extents of the channels' factors."""
        return {"g": self.num_groups, "k": self.num_channels // self.num_groups}

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See ``AbstractOperator.parameters``."""
        shape = (self.num_channels,)
        return (ParameterSpec("weight", shape, ONE), ParameterSpec("bias", shape, ZERO)) if self.affine else ()

    def exchanges(self) -> tuple[str, ...]:
        """See ``AbstractOperator.exchanges``."""
        return tuple(f"d{axis}" for axis in range(2, self.rank))

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> Tensor:
        """See ``TorchOperator.forward``."""
        from torch.nn.functional import group_norm

        x, weight, bias = operands
        if x is None:
            raise TypeError("group_norm: forward needs its operand")
        return group_norm(x, context.tile.extent("g"), weight, bias, self.eps)

    def compose(self, composition: AbstractComposition, operands: tuple[Handle | None, ...]) -> tuple[Handle, ...]:
        """See ``AbstractOperator.compose``."""
        x, weight, bias = (*operands, None, None)[:3]
        whole, eps, sizes = self._whole(), self.eps, self._sizes()
        count = prod(extent for name, extent in composition.bound.extents() if name not in {"b", "g"})

        def group(x: Tensor, groups: Tensor) -> Tensor:
            return x.reshape(x.shape[0], groups.shape[1], -1)

        def mean(context: TileContext, x: Tensor) -> Tensor:
            return x.reshape(x.shape[0], context.tile.extent("g"), -1).sum(2) / count

        def variance(context: TileContext, x: Tensor, m: Tensor) -> Tensor:
            del context
            return (group(x, m) - m.unsqueeze(2)).square().sum(2) / count

        def result(
            context: TileContext, x: Tensor, m: Tensor, v: Tensor, weight: Tensor | None, bias: Tensor | None
        ) -> Tensor:
            del context
            found = ((group(x, m) - m.unsqueeze(2)) * (v + eps).rsqrt().unsqueeze(2)).view(x.shape)
            across = (-1, *(1,) * (x.ndim - 2))
            if weight is not None:
                found = found * weight.view(across)
            return found if bias is None else found + bias.view(across)

        m = composition.formula("mean", f"{whole} -> b g", mean, x, sizes=sizes)
        v = composition.formula("variance", f"{whole}, b g -> b g", variance, x, m, sizes=sizes)
        text = f"{whole}, b g, b g, [(g k!)], [(g k!)] -> {whole}"
        return (composition.formula("result", text, result, x, m, v, weight, bias, sizes=sizes),)
