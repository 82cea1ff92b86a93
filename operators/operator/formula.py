"""Formulas: the primitive operators of composites, each a rule's text and a function of tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from maniple.operators.operator.operator import FLOAT_DTYPES
from maniple.operators.operator.torch_operator import TorchOperator
from maniple.operators.rules.rule import Rule, Shape

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.operator.operator import TileContext

TileFunction = Callable[..., object]


@dataclass(frozen=True, slots=True)
class Formula(TorchOperator):
    """An operator written where it is used.

    Args:
        text: Its factor rule.
        function: Gives the tile's result or results for a context and the operands.
        reduce: See ``Rule.parse``.
        sizes: Extents that no dimension gives by itself.
    """

    text: str
    function: TileFunction
    reduce: str = ""
    sizes: tuple[tuple[str, int], ...] = ()

    name: ClassVar[str] = "formula"

    @property
    def is_recordable(self) -> bool:
        """See ``TorchOperator.is_recordable``: those of the library do."""
        return self.function.__module__.startswith("maniple.")

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """See ``AbstractOperator.rule``."""
        return Rule.parse(self.text, shapes=shapes, reduce=self.reduce, sizes=dict(self.sizes))

    def result_dtypes(self, dtypes: tuple[str | None, ...], where: str) -> tuple[str, ...]:
        """The first float dtype among the operands, for every result."""
        del where
        common = next((dtype for dtype in dtypes if dtype in FLOAT_DTYPES), FLOAT_DTYPES[0])
        return (common,) * (self.text.partition("->")[2].count(",") + 1)

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> Tensor | tuple[Tensor, ...]:
        """See ``TorchOperator.forward``."""
        return self.function(context, *operands)  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class ConstantFormula(Formula):
    """A formula whose first result is a constant to autograd: a shift that cancels, a count, a running statistic."""

    detached: ClassVar[tuple[int, ...]] = (0,)
