"""Softmax and its logarithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from maniple.operators.operator.axes import activation_axes, check_at_least, present_shape
from maniple.operators.operator.operator import BackwardReads
from maniple.operators.operator.torch_operator import TorchOperator
from maniple.operators.rules.rule import Rule, Shape
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.operator.builder import Tensor as Handle
    from maniple.operators.operator.composition import AbstractComposition
    from maniple.operators.operator.operator import TileContext


@final
@dataclass(frozen=True, slots=True)
class Softmax(TorchOperator):
    """torch.nn.Softmax and LogSoftmax: ``"b c -> b c"``; a composite where the dimension that it sums over is split.

    The primitives are those of the online softmax: the maximum folds by max, the sum of the exponentials by sum. The
    maximum shifts numerator and denominator alike, so it is a constant to autograd.

    Args:
        dim: The dimension that sums to 1, counted from 0.
        rank: The operand's dimensions.
        log: Whether the logarithm is wanted.
    """

    dim: int
    rank: int
    log: bool = False

    name: ClassVar[str] = "softmax"
    backward_reads: ClassVar[BackwardReads] = BackwardReads(results=(0,))

    def __post_init__(self) -> None:
        check_at_least("softmax.dim", self.dim, 0)
        if self.dim >= self.rank:
            raise RequestError(f"softmax.dim: expected a dimension below {self.rank}, got {self.dim}")

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule above; see ``AbstractOperator.rule``."""
        shape = present_shape(shapes[0], self.name)
        if len(shape) != self.rank:
            raise RequestError(f"softmax: expected {self.rank} dimensions, got shape {shape}")
        return Rule.parse("... -> ...", ellipsis=activation_axes(self.rank))

    def exchanges(self) -> tuple[str, ...]:
        """See ``AbstractOperator.exchanges``."""
        return (activation_axes(self.rank)[self.dim],)

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> Tensor:
        """See ``TorchOperator.forward``."""
        del context
        (x,) = operands
        if x is None:
            raise TypeError("softmax: forward needs its operand")
        return x.log_softmax(self.dim) if self.log else x.softmax(self.dim)

    def compose(self, composition: AbstractComposition, operands: tuple[Handle | None, ...]) -> tuple[Handle, ...]:
        """See ``AbstractOperator.compose``."""
        (x,) = operands
        dim, log = self.dim, self.log
        axes = activation_axes(self.rank)
        whole = " ".join(axes)
        kept = " ".join("1" if axis == dim else name for axis, name in enumerate(axes))
        shift = composition.constant(
            "shift", f"{whole} -> {kept}", lambda _, x: x.amax(dim, keepdim=True), x, reduce=f"{axes[dim]}:max"
        )
        total = composition.formula(
            "sum", f"{whole}, {kept} -> {kept}", lambda _, x, m: (x - m).exp().sum(dim, keepdim=True), x, shift
        )

        def result(context: TileContext, x: Tensor, m: Tensor, s: Tensor) -> Tensor:
            del context
            return x - m - s.log() if log else (x - m).exp() / s

        return (composition.formula("result", f"{whole}, {kept}, {kept} -> {whole}", result, x, shift, total),)
