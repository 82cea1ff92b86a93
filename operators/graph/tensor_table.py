"""The tensors of a graph that is being built: declared once, under names that differ."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict, Unpack, final

from maniple.operators.graph.node import TensorInfo, TensorKind
from maniple.operators.operator.builder import Tensor
from maniple.process.error import RequestError, nearest

if TYPE_CHECKING:
    from maniple.operators.operator.builder import AbstractBuilder
    from maniple.operators.operator.operator import Initial
    from maniple.operators.rules.rule import Shape


class Traits(TypedDict, total=False):
    """What a tensor may have beside name, shape, dtype and kind; see ``TensorInfo``."""

    initial: Initial | None
    requires_grad: bool
    persistent: bool
    samples: int | None
    owner: int | None


@final
class TensorTable:
    """Declares tensors and hands out handles of them.

    Args:
        graph: The graph that the handles belong to.
        name: What messages call it.
    """

    def __init__(self, graph: AbstractBuilder, name: str) -> None:
        self.tensors: list[TensorInfo] = []
        self._graph = graph
        self._name = name
        self._by_name: dict[str, TensorInfo] = {}

    def declare(self, name: str, shape: Shape, dtype: str, kind: TensorKind, **traits: Unpack[Traits]) -> TensorInfo:
        """Add a tensor.

        Raises:
            RequestError: The name is taken, or no name.
        """
        return self.adopt(TensorInfo(len(self.tensors), name, shape, dtype, kind, **traits))

    def adopt(self, tensor: TensorInfo) -> TensorInfo:
        """Add a tensor as another graph has it, under an id of this one.

        Raises:
            RequestError: The name is taken, or no name.
        """
        self.check_free(tensor.name, f"{tensor.kind} '{tensor.name}'")
        tensor = replace(tensor, id=len(self.tensors))
        self.tensors.append(tensor)
        self._by_name[tensor.name] = tensor
        return tensor

    def by_name(self, name: str) -> TensorInfo:
        """The tensor of that name.

        Raises:
            RequestError: There is none; names the nearest.
        """
        if name not in self._by_name:
            raise RequestError(f"graph '{self._name}' has no tensor '{name}'{nearest(name, list(self._by_name))}")
        return self._by_name[name]

    def handle(self, tensor: TensorInfo) -> Tensor:
        """The handle of a tensor."""
        return Tensor(self._graph, tensor.id, tensor.name, tensor.shape, tensor.dtype)

    def fresh(self, stem: str) -> str:
        """A name that is free: the stem, with the first free counter where it is taken."""
        name, counter = stem, 0
        while name in self._by_name:
            counter += 1
            name = f"{stem}_{counter}"
        return name

    def check_free(self, name: str, what: str) -> None:
        """Refuse a name that is taken or empty."""
        if not isinstance(name, str) or not name:
            raise RequestError(f"{what}: expected a name")
        if name in self._by_name:
            raise RequestError(f"{what}: graph '{self._name}' has that name already; names must differ")

    def check_ours(self, where: str, tensor: Tensor) -> TensorInfo:
        """The tensor of a handle; refuse what is no tensor of this graph."""
        if not isinstance(tensor, Tensor):
            raise RequestError(f"{where}: expected a tensor of graph '{self._name}', got {type(tensor).__name__}")
        if tensor.graph is not self._graph:
            raise RequestError(
                f"{where}: tensor '{tensor.name}' belongs to another graph; expected one of '{self._name}'"
            )
        return self.tensors[tensor.id]
