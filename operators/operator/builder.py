"""The builder: what the methods that write a graph by hand need of it, and the handles that they pass around."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from maniple.operators.operator.operator import AbstractOperator, Initial
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
    """What the methods need of the graph that they write: one door for nodes, which checks everything."""

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

    @abstractmethod
    def buffer(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str = "float32",
        initial: Initial | None = None,
        *,
        persistent: bool = True,
    ) -> Tensor:
        """Declare a buffer; see ``GraphWriter.buffer``."""

    @abstractmethod
    def assign(self, buffer: Tensor, value: Tensor) -> None:
        """Make a tensor the next value of a buffer; see ``GraphWriter.assign``."""

    @abstractmethod
    def fresh(self, stem: str) -> str:
        """A name that is free: the stem, with the first free counter where it is taken."""

    @final
    def append(
        self,
        operator: AbstractOperator,
        operands: Sequence[Tensor | None],
        parameters: Sequence[Tensor | None] = (),
        name: str | None = None,
    ) -> Tensor:
        """Apply an operator and give its first result; see ``apply``."""
        return self.apply(operator, operands, parameters, name)[0]


def shared(weight: Tensor | None, *, bias: Tensor | bool) -> tuple[Tensor | None, ...]:
    """The tensors to share at the places of a weight and, where there is one, a bias."""
    if bias is False:
        return (weight,)
    return weight, bias if isinstance(bias, Tensor) else None
