"""The handles of tensors that a graph passes around while it is built, and what they know of the graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from maniple.operators.operator.operator import AbstractOperator
from maniple.operators.rules.rule import Shape


@final
@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A handle of a tensor of a graph that is being built.

    Args:
        graph: The graph that it belongs to.
        id: The tensor's id there.
        name: The tensor's name.
        shape: In elements.
        dtype: E.g. ``"float32"``.
    """

    graph: AbstractBuilder
    id: int
    name: str
    shape: Shape
    dtype: str

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.shape}, {self.dtype!r})"


class AbstractBuilder(ABC):
    """A graph as its tensors know it: one door for nodes, which checks everything."""

    @abstractmethod
    def apply(
        self,
        operator: AbstractOperator,
        operands: Sequence[Tensor | None],
        parameters: Sequence[Tensor | None] = (),
        name: str | None = None,
    ) -> tuple[Tensor, ...]:
        """Apply an operator.

        Args:
            operator: What to compute.
            operands: What it reads; None for an absent optional operand.
            parameters: For each of the operator's own parameters, a tensor to share or None to create it.
            name: The node's name; None: the operator's name and a counter.

        Returns:
            The results.

        Raises:
            RequestError: A tensor of another graph, a shape or dtype that does not fit, or a duplicate name.
        """


def share(weight: Tensor | None, *, bias: Tensor | bool) -> tuple[Tensor | None, ...]:
    """The tensors to share at the places of a weight and, where there is one, a bias."""
    if bias is False:
        return (weight,)
    return weight, bias if isinstance(bias, Tensor) else None
