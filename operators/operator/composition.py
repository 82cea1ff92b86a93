"""Compositions: what an operator is given to write itself as primitives; see ``lowering.composite``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from maniple.operators.operator.builder import Tensor
    from maniple.operators.operator.formula import TileFunction
    from maniple.operators.operator.operator import AbstractOperator
    from maniple.operators.rules.bound_rule import BoundRule

__all__: list[str] = []


class AbstractComposition(ABC):
    """The primitives of one composite as they are written; their factors are the composite's, by name."""

    training: bool
    """Whether a training step is wanted, and no evaluation."""
    bound: BoundRule
    """The composite's rule, with its extents."""

    @property
    def rank(self) -> int:
        """The dimensions of the first operand."""
        return len(self.bound.operand_shapes[0] or ())

    def formula(
        self,
        part: str,
        text: str,
        function: TileFunction,
        *operands: Tensor | None,
        sizes: Mapping[str, int] | None = None,
    ) -> Tensor:
        """Write a primitive and give its result.

        Args:
            part: Its name inside the composite.
            text: Its rule in the composite's factors.
            function: Gives the tile's result for a context and the operands.
            operands: What it reads.
            sizes: Extents that no dimension gives by itself.
        """
        return self.formulas(part, text, function, *operands, sizes=sizes)[0]

    @abstractmethod
    def formulas(
        self,
        part: str,
        text: str,
        function: TileFunction,
        *operands: Tensor | None,
        sizes: Mapping[str, int] | None = None,
    ) -> tuple[Tensor, ...]:
        """Write a primitive of several results; see ``formula``."""

    @abstractmethod
    def constant(
        self,
        part: str,
        text: str,
        function: TileFunction,
        *operands: Tensor | None,
        reduce: str = "",
        sizes: Mapping[str, int] | None = None,
    ) -> Tensor:
        """Write a primitive through which no gradient flows; see ``formula`` and, for ``reduce``, ``Rule.parse``."""

    @abstractmethod
    def primitive(
        self, part: str, operator: AbstractOperator, operands: tuple[Tensor | None, ...]
    ) -> tuple[Tensor, ...]:
        """Write any operator as a primitive.

        Args:
            part: Its name inside the composite.
            operator: What it computes; its factors are the composite's.
            operands: What it reads, the composite's own parameters last if it has them too.
        """

    @abstractmethod
    def within(
        self, change: Callable[[AbstractOperator, tuple[Tensor | None, ...]], AbstractOperator]
    ) -> AbstractComposition:
        """The same composition for what changes each primitive that is written to it, knowing its operands."""
