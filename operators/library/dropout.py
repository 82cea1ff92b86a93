"""Dropout, whose mask is a function of the element and not of the tile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from maniple.operators.library.axes import activation_axes, present_shape
from maniple.operators.operator import AbstractOperator, BackwardReads, Cost, Kernels
from maniple.operators.rule import Rule, Shape
from maniple.operators.tile import Tile
from maniple.regions.error import RequestError


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
        from maniple.operators.kernels.dropout import KERNELS

        return KERNELS
