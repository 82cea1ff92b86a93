"""The graph: the operators and tensors of one training step, free of any framework and any placement."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import final

from maniple.operators import graph_file
from maniple.operators.builder import AbstractBuilder, Tensor
from maniple.operators.graph_table import table
from maniple.operators.node import Node, TensorInfo, TensorKind
from maniple.operators.operator import FLOAT_DTYPES, AbstractOperator
from maniple.operators.rule import BoundRule, Shape
from maniple.regions.error import RequestError, nearest

__all__ = ["Graph", "Node", "Tensor", "TensorInfo", "TensorKind"]

_INPUT_DTYPES = (*FLOAT_DTYPES, "int64")


@final
class Graph(AbstractBuilder):
    """A model as a task graph: nodes in the order of their creation, which is a topological order.

    Dimension 0 of every input is the sample dimension.

    Args:
        name: Shown in tables.
    """

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self._tensors: list[TensorInfo] = []
        self._nodes: list[Node] = []
        self._bound: list[BoundRule] = []
        self._names: set[str] = set()
        self._outputs: dict[str, int] = {}
        self._loss: int | None = None

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes, topologically ordered."""
        return tuple(self._nodes)

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """The tensors, by id."""
        return tuple(self._tensors)

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The inputs in order of creation."""
        return tuple(tensor for tensor in self._tensors if tensor.kind == "input")

    @property
    def parameters(self) -> tuple[TensorInfo, ...]:
        """The parameters in order of creation: of one operator, weight before bias."""
        return tuple(tensor for tensor in self._tensors if tensor.kind == "parameter")

    @property
    def outputs(self) -> dict[str, int]:
        """The named outputs' tensor ids, in order of creation."""
        return dict(self._outputs)

    @property
    def loss_tensor(self) -> int | None:
        """The loss's tensor id."""
        return self._loss

    @property
    def batch(self) -> int:
        """The extent of the sample dimension.

        Raises:
            RequestError: The graph has no input.
        """
        for tensor in self._tensors:
            if tensor.kind == "input":
                return tensor.shape[0]
        raise RequestError(f"graph '{self.name}' has no input; add one with input(name, shape)")

    def node(self, name: str) -> Node:
        """The node of that name.

        Raises:
            RequestError: There is none; names the nearest.
        """
        for node in self._nodes:
            if node.name == name:
                return node
        raise RequestError(
            f"graph '{self.name}' has no operator '{name}'{nearest(name, [n.name for n in self._nodes])}"
        )

    def tensor(self, name: str) -> TensorInfo:
        """The tensor of that name.

        Raises:
            RequestError: There is none; names the nearest.
        """
        for tensor in self._tensors:
            if tensor.name == name:
                return tensor
        raise RequestError(
            f"graph '{self.name}' has no tensor '{name}'{nearest(name, [t.name for t in self._tensors])}"
        )

    def bound(self, node: Node) -> BoundRule:
        """The node's factor rule with its extents."""
        return self._bound[node.id]

    def producer(self, tensor: int) -> Node | None:
        """The node that writes a tensor; None for inputs and parameters."""
        return next((node for node in self._nodes if node.result == tensor), None)

    def consumers(self, tensor: int) -> tuple[Node, ...]:
        """The nodes that read a tensor."""
        return tuple(node for node in self._nodes if tensor in node.operands)

    def differentiated(self) -> frozenset[int]:
        """The tensors whose gradient a training step computes: on a path from a parameter to the loss."""
        if self._loss is None:
            return frozenset()
        grows: set[int] = {tensor.id for tensor in self._tensors if tensor.kind == "parameter"}
        for node in self._nodes:
            if any(node.operands[place] in grows for place in self._differentiable(node)):
                grows.add(node.result)
        matters: set[int] = {self._loss}
        for node in reversed(self._nodes):
            if node.result in matters:
                matters.update(
                    i for i in (node.operands[place] for place in self._differentiable(node)) if i is not None
                )
        return frozenset(grows & matters)

    @staticmethod
    def _differentiable(node: Node) -> tuple[int, ...]:
        """The places of the node's operands that have gradients."""
        return tuple(place for place in node.operator.differentiable if place < len(node.operands))

    # -- building -------------------------------------------------------------------------------------------------

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32") -> Tensor:
        """Declare an input.

        Args:
            name: The keyword by which a step takes it.
            shape: Dimension 0 is the sample dimension.
            dtype: float32, float64 or int64 (labels).

        Raises:
            RequestError: A duplicate name, a bad shape or dtype, or another sample dimension than the other inputs.
        """
        extents = tuple(shape)
        if not extents:
            raise RequestError(f"input '{name}': expected at least one dimension (the samples), got shape ()")
        if any(isinstance(extent, bool) or not isinstance(extent, int) or extent < 1 for extent in extents):
            raise RequestError(f"input '{name}': expected extents >= 1, got shape {extents}")
        if dtype not in _INPUT_DTYPES:
            raise RequestError(f"input '{name}': dtype {dtype!r} is not supported{nearest(str(dtype), _INPUT_DTYPES)}")
        return self._handle(self._declare(name, extents, dtype, "input"))

    def append(
        self,
        operator: AbstractOperator,
        operands: Sequence[Tensor],
        parameters: Sequence[Tensor | None],
        name: str | None = None,
    ) -> Tensor:
        """Apply an operator; see ``AbstractBuilder.append``."""
        label = self._fresh(operator.name) if name is None else name
        self._check_free(label, f"operator '{label}'")
        for tensor in (*operands, *(t for t in parameters if t is not None)):
            self._check_ours(label, tensor)
        specs = operator.parameters()
        given = [self._tensors[tensor.id] for tensor in operands]
        shared = self._shared(label, operator, parameters)
        for info in given:
            if info.kind == "parameter":
                raise RequestError(f"{label}: expected an input or a result, got parameter '{info.name}'")
        dtypes = [info.dtype for info in (*given, *shared) if info is not None]
        dtype = operator.result_dtype(tuple(dtypes), label)
        shapes: tuple[Shape | None, ...] = (*(info.shape for info in given), *(spec.shape for spec in specs))
        rule = operator.rule(shapes)
        absent = (None,) * (len(rule.operands) - len(shapes))
        bound = rule.bind(shapes + absent, label)
        places = []
        for spec, existing in zip(specs, shared, strict=True):
            own = existing or self._declare(f"{label}.{spec.name}", spec.shape, dtype, "parameter", spec.fan_in)
            places.append(own.id)
        ids = (*(info.id for info in given), *places, *absent)
        result = self._declare(label, bound.result_shape, dtype, "activation")
        self._nodes.append(Node(len(self._nodes), label, operator, ids, result.id))
        self._bound.append(bound)
        return self._handle(result)

    def _shared(
        self, label: str, operator: AbstractOperator, parameters: Sequence[Tensor | None]
    ) -> list[TensorInfo | None]:
        """The parameter to share at each of an operator's parameter places; None: create one."""
        specs = operator.parameters()
        shared = [None if tensor is None else self._tensors[tensor.id] for tensor in parameters]
        shared += [None] * (len(specs) - len(shared))
        for spec, info in zip(specs, shared, strict=True):
            if info is not None and (info.kind != "parameter" or info.shape != spec.shape):
                raise RequestError(
                    f"{label}.{spec.name}: expected a parameter of shape {spec.shape}, "
                    f"got {info.kind} '{info.name}' of shape {info.shape}"
                )
        return shared

    def loss(self, t: Tensor) -> None:
        """Name the loss: the scalar that a training step lowers.

        Raises:
            RequestError: There is one already, or the tensor is no scalar result.
        """
        self._check_ours("loss", t)
        if t.shape != ():
            raise RequestError(
                f"loss: expected a scalar such as cross_entropy's result, got '{t.name}' of shape {t.shape}"
            )
        if self._loss is not None:
            raise RequestError(
                f"graph '{self.name}' has a loss already, '{self._tensors[self._loss].name}'; expected one"
            )
        self._loss = t.id

    def output(self, name: str, t: Tensor) -> None:
        """Name a tensor that evaluation returns.

        Raises:
            RequestError: The name is taken, or the tensor is another graph's.
        """
        self._check_ours(f"output '{name}'", t)
        if name in self._outputs:
            raise RequestError(f"graph '{self.name}' has an output '{name}' already; names must differ")
        if self._tensors[t.id].kind != "activation":
            raise RequestError(
                f"output '{name}': expected an operator's result, got {self._tensors[t.id].kind} '{t.name}'"
            )
        self._outputs[name] = t.id

    def handle(self, name: str) -> Tensor:
        """A handle of the tensor of that name, to build on.

        Raises:
            RequestError: There is none.
        """
        return self._handle(self.tensor(name))

    def _declare(self, name: str, shape: Shape, dtype: str, kind: TensorKind, fan_in: int = 0) -> TensorInfo:
        """Add a tensor."""
        self._check_free(name, f"{kind} '{name}'")
        tensor = TensorInfo(len(self._tensors), name, shape, dtype, kind, fan_in)
        self._tensors.append(tensor)
        self._names.add(name)
        return tensor

    def _handle(self, tensor: TensorInfo) -> Tensor:
        """The handle of a tensor."""
        return Tensor(self, tensor.id, tensor.name, tensor.shape, tensor.dtype)

    def _fresh(self, stem: str) -> str:
        """The operator's name, with the first free counter where it is taken."""
        name, counter = stem, 0
        while name in self._names:
            counter += 1
            name = f"{stem}_{counter}"
        return name

    def _check_free(self, name: str, what: str) -> None:
        """Refuse a name that is taken or empty."""
        if not isinstance(name, str) or not name:
            raise RequestError(f"{what}: expected a name")
        if name in self._names:
            raise RequestError(f"{what}: graph '{self.name}' has that name already; names must differ")

    def _check_ours(self, where: str, tensor: Tensor) -> None:
        """Refuse what is no tensor of this graph."""
        if not isinstance(tensor, Tensor):
            raise RequestError(f"{where}: expected a tensor of graph '{self.name}', got {type(tensor).__name__}")
        if tensor.graph is not self:
            raise RequestError(
                f"{where}: tensor '{tensor.name}' belongs to another graph; expected one of '{self.name}'"
            )

    # -- the whole ------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Raise unless the graph can be trained.

        Raises:
            RequestError: No input, no loss, inputs of different sample extents, or operators that reach neither the
                loss nor an output.
        """
        inputs = self.inputs
        if self._loss is None:
            raise RequestError(f"graph '{self.name}' has no loss; name one with loss(tensor)")
        for tensor in inputs:
            if tensor.shape[0] != self.batch:
                raise RequestError(
                    f"graph '{self.name}': the inputs share no sample dimension: dimension 0 of '{inputs[0].name}' is "
                    f"{self.batch}, of '{tensor.name}' {tensor.shape[0]}"
                )
        reaches = {self._loss, *self._outputs.values()}
        for node in reversed(self._nodes):
            if node.result in reaches:
                reaches.update(operand for operand in node.operands if operand is not None)
        if dead := [node.name for node in self._nodes if node.result not in reaches]:
            raise RequestError(
                f"graph '{self.name}': operators {', '.join(dead)} reach neither the loss nor an output; "
                "remove them or name an output"
            )

    def fingerprint(self) -> str:
        """A digest of everything in the graph, shapes included: the same in every process."""
        return hashlib.sha256(graph_file.to_text(self).encode()).hexdigest()[:32]

    def with_batch(self, n: int) -> Graph:
        """The same graph with ``n`` samples.

        Raises:
            RequestError: ``n`` is below 1.
        """
        if n < 1:
            raise RequestError(f"graph '{self.name}': expected a batch of at least 1 sample, got {n}")
        shapes = {tensor.name: (n, *tensor.shape[1:]) for tensor in self.inputs}
        return self._rebuilt(shapes)

    def _rebuilt(self, shapes: Mapping[str, Shape]) -> Graph:
        """The same graph with other input shapes: every id stays."""
        graph = Graph(self.name)
        producers = {node.result: node for node in self._nodes}
        for tensor in self._tensors:
            if tensor.kind == "input":
                graph.input(tensor.name, shapes[tensor.name], tensor.dtype)
            elif (node := producers.get(tensor.id)) is not None:
                graph._reapply(node)
        graph._loss, graph._outputs = self._loss, dict(self._outputs)
        return graph

    def _reapply(self, node: Node) -> None:
        """Apply a node of a graph whose tensors have the same ids as this one's."""
        present = [operand for operand in node.operands if operand is not None]
        first = len(present) - len(node.operator.parameters())
        known = [self._handle(self._tensors[i]) if i < len(self._tensors) else None for i in present]
        self.append(node.operator, [handle for handle in known[:first] if handle], known[first:], node.name)

    def __str__(self) -> str:
        return table(self)

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, {len(self._nodes)} operators, {len(self.parameters)} parameters)"

    def save(self, path: str | Path) -> None:
        """Write the graph as JSON; see ``maniple.operators.graph_file``."""
        graph_file.save(self, path)

    @staticmethod
    def load(path: str | Path) -> Graph:
        """Read a graph from JSON.

        Raises:
            RequestError: The file is no graph; names the entry.
        """
        return graph_file.load(path, Graph)
