"""The linear operator: ``x W^T + b``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from maniple.operators.operator.axes import activation_axes, check_at_least, present_shape
from maniple.operators.operator.operator import AbstractOperator, BackwardReads, Cost, Initial, Kernels, ParameterSpec
from maniple.operators.rules.rule import Rule, Shape
from maniple.operators.rules.tile import Tile
from maniple.process.error import RequestError


@final
@dataclass(frozen=True, slots=True)
class Linear(AbstractOperator):
    """torch.nn.Linear: ``"b k, n k, [n]@k -> b n"``, with more leading dimensions for inputs of higher rank.

    Args:
        in_features: Elements of the input's last dimension.
        out_features: Elements of the result's last dimension.
        bias: Whether there is a bias.
    """

    in_features: int
    out_features: int
    bias: bool = True

    name: ClassVar[str] = "linear"
    backward_reads: ClassVar[BackwardReads] = BackwardReads(operands=(0, 1))
    differentiable: ClassVar[tuple[int, ...] | None] = (0, 1, 2)

    def __post_init__(self) -> None:
        check_at_least("linear.in_features", self.in_features, 1)
        check_at_least("linear.out_features", self.out_features, 1)

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule above; see ``AbstractOperator.rule``."""
        rank = len(present_shape(shapes[0], self.name))
        if rank < 2:
            raise RequestError(f"linear: expected an input (batch, ..., features), got shape {shapes[0]}")
        leading = " ".join(activation_axes(rank)[:-1])
        return Rule.parse(f"{leading} k, n k, [n]@k -> {leading} n", parameters=(1, 2))

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See ``AbstractOperator.parameters``."""
        weight = ParameterSpec("weight", (self.out_features, self.in_features), Initial.fan_in(self.in_features))
        bias = ParameterSpec("bias", (self.out_features,), Initial.fan_in(self.in_features))
        return (weight, bias) if self.bias else (weight,)

    def flops(self, tile: Tile) -> Cost:
        """See ``AbstractOperator.flops``."""
        forward = 2 * tile.volume
        return Cost(forward, 2 * forward)

    def kernels(self) -> Kernels:
        """See ``AbstractOperator.kernels``."""
        from maniple.operators.library.dense.linear_kernels import KERNELS

        return KERNELS
