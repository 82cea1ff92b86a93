"""Nodes and tensors: the values that a graph is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from maniple.operators.operator import AbstractOperator
from maniple.operators.rule import Shape

TensorKind = Literal["input", "parameter", "activation"]


@final
@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a graph.

    Args:
        id: Its place in ``Graph.tensors``.
        name: An input's or parameter's own name; an activation has its node's.
        shape: In elements.
        dtype: E.g. ``"float32"``.
        kind: Who writes it: the caller, the optimizer, or a node.
        fan_in: Of a parameter: inputs of one output element, for its initial values; 0 otherwise.
    """

    id: int
    name: str
    shape: Shape
    dtype: str
    kind: TensorKind
    fan_in: int = 0


@final
@dataclass(frozen=True, slots=True)
class Node:
    """One operator applied to tensors.

    Args:
        id: Its place in ``Graph.nodes``: a topological order.
        name: Unique in the graph, e.g. ``"conv2d_1"``.
        operator: What it computes.
        operands: Tensor ids, activations first, then parameters; None for an absent optional operand.
        result: The id of the tensor that it writes.
    """

    id: int
    name: str
    operator: AbstractOperator
    operands: tuple[int | None, ...]
    result: int
