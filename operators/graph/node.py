"""Nodes and tensors: the values that a graph is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from maniple.operators.operator.operator import AbstractOperator, Initial
from maniple.operators.rules.rule import Shape

TensorKind = Literal["input", "parameter", "buffer", "activation"]


@final
@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a graph.

    Args:
        id: Its place in ``Graph.tensors``.
        name: An input's, parameter's or buffer's own name; of an operator's results the first has the operator's name,
            the others ``name.1``, ``name.2``, ...
        shape: In elements.
        dtype: E.g. ``"float32"``.
        kind: Who writes it: the caller, the optimizer, an assignment at the end of a step, or a node.
        initial: Of a parameter or buffer: its initial values, unless a state dict gives them.
        requires_grad: Of a parameter: whether it is trained.
        persistent: Of a buffer: whether it is part of the state dict.
        samples: The dimension that counts samples, None where no dimension does.
        owner: Of a parameter: the node that brought it along, None where it was declared by itself.
    """

    id: int
    name: str
    shape: Shape
    dtype: str
    kind: TensorKind
    initial: Initial | None = None
    requires_grad: bool = False
    persistent: bool = True
    samples: int | None = None
    owner: int | None = None

    @property
    def lasting(self) -> bool:
        """Whether its values outlive a step."""
        return self.kind in {"parameter", "buffer"}


@final
@dataclass(frozen=True, slots=True)
class Node:
    """One operator applied to tensors.

    Args:
        id: Its place in ``Graph.nodes``: a topological order.
        name: Unique in the graph, e.g. ``"conv2d_1"``.
        operator: What it computes.
        operands: Tensor ids, the operator's own parameters last; None for an absent optional operand.
        results: The ids of the tensors that it writes.
    """

    id: int
    name: str
    operator: AbstractOperator
    operands: tuple[int | None, ...]
    results: tuple[int, ...]

    @property
    def given(self) -> tuple[int | None, ...]:
        """The operands that the operator was applied to, without trailing absent ones."""
        return self._present()[: self._first]

    @property
    def own(self) -> tuple[int | None, ...]:
        """The operands at the places of the operator's own parameters."""
        return self._present()[self._first :]

    @property
    def _first(self) -> int:
        return len(self._present()) - len(self.operator.parameters())

    def _present(self) -> tuple[int | None, ...]:
        count = len(self.operands)
        while count and self.operands[count - 1] is None:
            count -= 1
        return self.operands[:count]
