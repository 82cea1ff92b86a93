"""Extrema: the largest or the least element along some dimensions, which may be split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from maniple.operators.operator.axes import activation_axes, present_shape
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
class Extremum(TorchOperator):
    """torch.amax and amin: ``"b c -> b"``; a composite where a dimension that it looks along is split.

    The gradient goes to all elements that are equal to the extremum, in equal shares, as torch has it. So the
    primitives are the extremum and the number of elements that have it, constants to autograd, and the mean of these
    elements:

    | tile | x | extremum | count | result |
    |---|---|---|---|---|
    | 0 | 1 4 | 4 | 1 | 4/2 |
    | 1 | 4 0 | 4 | 1 | 4/2 |

    Args:
        dims: The dimensions to look along, counted from 0, in order.
        rank: The operand's dimensions.
        keepdim: Whether they stay, with one element.
        least: Whether the least element is wanted.
    """

    dims: tuple[int, ...]
    rank: int
    keepdim: bool = False
    least: bool = False

    name: ClassVar[str] = "extremum"

    def __post_init__(self) -> None:
        if not self.dims or not all(0 <= dim < self.rank for dim in self.dims):
            raise RequestError(f"extremum.dims: expected dimensions below {self.rank}, got {self.dims}")

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule above; see ``AbstractOperator.rule``."""
        shape = present_shape(shapes[0], self.name)
        if len(shape) != self.rank:
            raise RequestError(f"extremum: expected {self.rank} dimensions, got shape {shape}")
        return Rule.parse(f"{' '.join(activation_axes(self.rank))} -> {self._result(keepdim=self.keepdim)}")

    def exchanges(self) -> tuple[str, ...]:
        """See ``AbstractOperator.exchanges``."""
        names = activation_axes(self.rank)
        return tuple(names[dim] for dim in self.dims)

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> Tensor:
        """See ``TorchOperator.forward``."""
        del context
        (x,) = operands
        if x is None:
            raise TypeError("extremum: forward needs its operand")
        return self._of(x, keepdim=self.keepdim)

    def compose(self, composition: AbstractComposition, operands: tuple[Handle | None, ...]) -> tuple[Handle, ...]:
        """See ``AbstractOperator.compose``."""
        (x,) = operands
        dims, keepdim = self.dims, self.keepdim
        whole, kept = " ".join(activation_axes(self.rank)), self._result(keepdim=True)
        word = "min" if self.least else "max"
        extremum = composition.constant(
            "extremum",
            f"{whole} -> {kept}",
            lambda _, x: self._of(x, keepdim=True),
            x,
            reduce=" ".join(f"{name}:{word}" for name in self.exchanges()),
        )
        count = composition.constant(
            "count", f"{whole}, {kept} -> {kept}", lambda _, x, m: _equal(x, m).to(x.dtype).sum(dims, True), x, extremum
        )

        def result(context: TileContext, x: Tensor, m: Tensor, n: Tensor) -> Tensor:
            del context
            return (x / n).where(_equal(x, m), 0).sum(dims, keepdim)

        text = f"{whole}, {kept}, {kept} -> {self._result(keepdim=keepdim)}"
        return (composition.formula("result", text, result, x, extremum, count),)

    def _of(self, x: Tensor, *, keepdim: bool) -> Tensor:
        return x.amin(self.dims, keepdim) if self.least else x.amax(self.dims, keepdim)

    def _result(self, *, keepdim: bool) -> str:
        """The result's dimensions."""
        names = activation_axes(self.rank)
        return " ".join(
            "1" if axis in self.dims else name for axis, name in enumerate(names) if keepdim or axis not in self.dims
        )


def _equal(x: Tensor, extremum: Tensor) -> Tensor:
    """The elements that are the extremum: where there is a NaN, these."""
    return (x == extremum) | x.isnan()
