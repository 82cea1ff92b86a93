"""Draws: random tensors whose elements are a function of the element and not of the tile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import pi
from typing import TYPE_CHECKING, ClassVar, Self, final

from maniple.operators.operator.operator import FLOAT_DTYPES, BackwardReads
from maniple.operators.operator.torch_operator import TorchOperator
from maniple.operators.rules.rule import Rule, Shape
from maniple.process.error import RequestError, nearest

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.operator.operator import TileContext

Sizes = tuple[tuple[str, int], ...]


@final
@dataclass(frozen=True, slots=True)
class Draw(TorchOperator):
    """Random numbers, drawn anew in every step: ``", -> b c"`` from parameters that repeat along the result.

    | distribution | operands | element, of two uniform numbers u and v |
    |---|---|---|
    | uniform | low, high | ``low + (high - low) u`` |
    | normal | mean, deviation | ``mean + deviation sqrt(-2 log(1 - u)) cos(2 pi v)`` (Box and Muller) |
    | bernoulli | probability | ``u < probability`` |
    | exponential | rate | ``-log(1 - u) / rate`` |
    | integers | low, high | ``low + floor((high - low) u)`` |

    No gradient flows through it, as in torch. An evaluation draws what the training step of its number would.

    Args:
        distribution: As above.
        text: The factor rule: how the parameters repeat.
        dtype: Of the result.
        sizes: Extents of the result that no parameter has.
    """

    distribution: str
    text: str
    dtype: str
    sizes: Sizes = ()

    name: ClassVar[str] = "draw"
    random: ClassVar[bool] = True
    backward_reads: ClassVar[BackwardReads] = BackwardReads()
    differentiable: ClassVar[tuple[int, ...] | None] = ()
    detached: ClassVar[tuple[int, ...]] = (0,)
    flops_per_point: ClassVar[int] = 50

    def __post_init__(self) -> None:
        if self.distribution not in DISTRIBUTIONS:
            raise RequestError(
                f"draw.distribution: unknown {self.distribution!r}{nearest(self.distribution, sorted(DISTRIBUTIONS))}"
            )

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule as it was given; see ``AbstractOperator.rule``."""
        del shapes
        return Rule.parse(self.text, sizes=dict(self.sizes))

    def result_dtypes(self, dtypes: tuple[str | None, ...], where: str) -> tuple[str, ...]:
        """See ``AbstractOperator.result_dtypes``."""
        del dtypes, where
        return (self.dtype,)

    def with_sizes(self, sizes: Sizes) -> Self:
        """The same draw of another shape."""
        return replace(self, sizes=sizes)

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> Tensor:
        """See ``TorchOperator.forward``."""
        from maniple.operators.library.randomness.draw_kernels import uniforms
        from maniple.runtime.storage.copy_kernels import torch_dtype

        given = [operand for operand in operands if operand is not None]
        if context.stream is None or len(given) != len(operands):
            raise TypeError("draw: needs a random stream and its parameters")
        extents = dict(context.extents)
        shape = tuple(extents[name] for name in self.text.rpartition("->")[2].split())
        u, v = uniforms(context.stream, shape, context.tile.result_rects[0])
        if self.dtype == "float32":  # so that rounding never gives 1
            u = (u * 2**24).floor() * 2**-24
        found = DISTRIBUTIONS[self.distribution](u, v, *(parameter.to(u) for parameter in given))
        return found.to(torch_dtype(self.dtype))


def _normal(u: Tensor, v: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    return mean + deviation * (-2 * (-u).log1p()).sqrt() * (2 * pi * v).cos()


DISTRIBUTIONS: dict[str, Callable[..., Tensor]] = {
    "uniform": lambda u, v, low, high: low + (high - low) * u,  # noqa: ARG005 (one number is enough)
    "normal": _normal,
    "bernoulli": lambda u, v, probability: u < probability,  # noqa: ARG005
    "exponential": lambda u, v, rate: -(-u).log1p() / rate,  # noqa: ARG005
    "integers": lambda u, v, low, high: low + ((high - low) * u).floor(),  # noqa: ARG005
}
"""By name, an element from two uniform numbers and the parameters, in float64."""

DTYPES = (*FLOAT_DTYPES, "int64", "bool")
"""What a draw may give."""
