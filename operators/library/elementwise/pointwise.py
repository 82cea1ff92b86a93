"""Pointwise operators: every element of the result depends on one element of each operand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from maniple.operators.operator.axes import activation_axes, present_shape
from maniple.operators.operator.operator import AbstractOperator, BackwardReads, Cost, Kernels
from maniple.operators.rules.rule import Rule, Shape
from maniple.operators.rules.tile import Tile


@final
@dataclass(frozen=True, slots=True)
class ReLU(AbstractOperator):
    """torch.nn.ReLU: ``"b ... -> b ..."``. Backward reads the result, which is zero exactly where the gradient is."""

    name: ClassVar[str] = "relu"
    backward_reads: ClassVar[BackwardReads] = BackwardReads(results=(0,))
    differentiable: ClassVar[tuple[int, ...] | None] = (0,)

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule above; see ``AbstractOperator.rule``."""
        axes = activation_axes(len(present_shape(shapes[0], self.name)))
        return Rule.parse("... -> ...", ellipsis=axes)

    def flops(self, tile: Tile) -> Cost:
        """See ``AbstractOperator.flops``."""
        return Cost(tile.volume, tile.volume)

    def kernels(self) -> Kernels:
        """See ``AbstractOperator.kernels``."""
        from maniple.operators.library.elementwise.pointwise_kernels import RELU_KERNELS

        return RELU_KERNELS


@final
@dataclass(frozen=True, slots=True)
class Add(AbstractOperator):
    """The sum of two tensors of equal shape: ``"b ..., b ... -> b ..."``."""

    name: ClassVar[str] = "add"
    backward_reads: ClassVar[BackwardReads] = BackwardReads()
    differentiable: ClassVar[tuple[int, ...] | None] = (0, 1)
    passes: ClassVar[tuple[int, ...]] = (0, 1)

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule above; see ``AbstractOperator.rule``."""
        axes = activation_axes(len(present_shape(shapes[0], self.name)))
        return Rule.parse("..., ... -> ...", ellipsis=axes)

    def flops(self, tile: Tile) -> Cost:
        """See ``AbstractOperator.flops``."""
        return Cost(tile.volume, tile.volume)

    def kernels(self) -> Kernels:
        """See ``AbstractOperator.kernels``."""
        from maniple.operators.library.elementwise.pointwise_kernels import ADD_KERNELS

        return ADD_KERNELS
