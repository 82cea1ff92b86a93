"""The graph: the operators and tensors of one training step, free of any framework and any placement."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, final

from maniple.operators.graph import differentiation, graph_file
from maniple.operators.graph.convolution_methods import ConvolutionMethods
from maniple.operators.graph.graph_table import table
from maniple.operators.graph.layer_methods import LayerMethods
from maniple.operators.graph.layout_methods import LayoutMethods
from maniple.operators.graph.loss_methods import LossMethods
from maniple.operators.graph.node import Node, TensorInfo, TensorKind
from maniple.operators.graph.normalization_methods import NormalizationMethods
from maniple.operators.graph.pool_methods import PoolMethods
from maniple.operators.graph.sequence_methods import SequenceMethods
from maniple.operators.operator.builder import Tensor
from maniple.operators.operator.operator import AbstractOperator
from maniple.operators.rules.rule import BoundRule
from maniple.process.error import RequestError, nearest

if TYPE_CHECKING:
    import torch

    from maniple.operators.graph.arguments import Arguments

__all__ = ["Graph", "Node", "Tensor", "TensorInfo", "TensorKind", "checked_graph"]


@final
class Graph(
    LayerMethods, LayoutMethods, ConvolutionMethods, PoolMethods, NormalizationMethods, SequenceMethods, LossMethods
):
    """A model as a task graph: nodes in the order of their creation, which is a topological order.

    Dimension 0 of every input is the sample dimension.

    Args:
        name: Shown in tables.
    """

    def __init__(self, name: str = "graph") -> None:
        super().__init__(name)
        self._state: dict[str, torch.Tensor] = {}
        self._values: Callable[[], Mapping[str, torch.Tensor]] | None = None
        self._ties: dict[str, str] = {}
        self._recount: Callable[[int], Sequence[AbstractOperator]] | None = None
        self._foresee: Callable[[Sequence[int]], None] | None = None
        self._arguments: Arguments | None = None
        self._module: torch.nn.Module | None = None

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes, topologically ordered."""
        return tuple(self._nodes)

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """The tensors, by id."""
        return tuple(self._table.tensors)

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The inputs in order of creation."""
        return tuple(tensor for tensor in self._table.tensors if tensor.kind == "input")

    @property
    def arguments(self) -> Arguments:
        """How a call's arguments become the inputs: of an import as the module takes them, else each for itself."""
        from maniple.operators.graph.arguments import Arguments

        return self._arguments or Arguments(self.name, {tensor.name: (tensor.name,) for tensor in self.inputs})

    @property
    def module(self) -> torch.nn.Module | None:
        """The module that this is the import of, whose parameters and buffers have the same names; else None."""
        return self._module

    def imports(self, module: torch.nn.Module) -> None:
        """Say of which module this is the import."""
        self._module = module

    def takes(self, arguments: Arguments) -> None:
        """Say how a call's arguments become the inputs."""
        self._arguments = arguments

    @property
    def parameters(self) -> tuple[TensorInfo, ...]:
        """The parameters in order of creation: of one operator, weight before bias."""
        return tuple(tensor for tensor in self._table.tensors if tensor.kind == "parameter")

    @property
    def lasting(self) -> tuple[TensorInfo, ...]:
        """The tensors whose values outlive a step: parameters and buffers, in order of creation."""
        return tuple(tensor for tensor in self._table.tensors if tensor.lasting)

    @property
    def assignments(self) -> dict[int, int]:
        """For every buffer that a step changes, by id, the tensor that is its next value."""
        return dict(self._assignments)

    @property
    def state(self) -> Mapping[str, torch.Tensor]:
        """The initial values that were given, by name; no part of the fingerprint, and not needed to plan."""
        if self._values is not None:
            values, self._values = self._values, None
            self._state = self._check(values(), strict=False) | self._state
        return self._state

    @property
    def ties(self) -> Mapping[str, str]:
        """Further names of parameters and buffers in state dicts: the name of each in this graph."""
        return self._ties

    def tie(self, name: str, tensor: str) -> None:
        """Give a parameter or buffer another name in state dicts, as torch.nn.Module has for a tensor at two places.

        Raises:
            RequestError: There is no such tensor, or the name is taken.
        """
        self._table.check_free(name, f"tie of '{self._table.by_name(tensor).name}'")
        self._ties[name] = tensor

    @property
    def autocast(self) -> Mapping[str, str]:
        """By name, the nodes that a module runs in mixed precision by itself: the half, such as ``"bfloat16"``."""
        return self._autocast

    def enter_autocast(self, nodes: Mapping[str, str]) -> None:
        """Say which nodes run in mixed precision under any plan; the graph itself stays in float32.

        Raises:
            RequestError: There is no such node.
        """
        for name in nodes:
            self.node(name)
        self._autocast = dict(nodes)

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
        for tensor in self._table.tensors:
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
        return self._table.by_name(name)

    def bound(self, node: Node) -> BoundRule:
        """The node's factor rule with its extents."""
        return self._bound[node.id]

    def producer(self, tensor: int) -> Node | None:
        """The node that writes a tensor; None for inputs and parameters."""
        return self._producers.get(tensor)

    def differentiated_tensors(self) -> frozenset[int]:
        """The tensors whose gradient a training step computes: on a path from a trained parameter to the loss."""
        return differentiation.find_differentiated(self)

    @property
    def opaque(self) -> tuple[str, ...]:
        """The operators that run whole because nothing is known about them, with file and line."""
        return tuple(f"{node.name}: {source}" for node in self._nodes if (source := node.operator.opaque_source))

    # -- the whole ------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Raise unless the graph can be trained.

        Raises:
            RequestError: No input or one that nothing reads, no loss, inputs of different sample extents, or operators
                that reach neither the loss nor an output.
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
        read = {operand for node in self._nodes for operand in node.operands}
        if unread := [tensor.name for tensor in inputs if tensor.id not in read]:
            raise RequestError(
                f"graph '{self.name}': no operator reads input {', '.join(map(repr, unread))}; remove it, or use it"
            )
        reaches = {self._loss, *self._outputs.values(), *self._assignments.values()}
        for node in reversed(self._nodes):
            if reaches.intersection(node.results):
                reaches.update(operand for operand in node.operands if operand is not None)
        if dead := [node.name for node in self._nodes if not reaches.intersection(node.results)]:
            raise RequestError(
                f"graph '{self.name}': operators {', '.join(dead)} reach neither the loss nor an output nor a buffer; "
                "remove them or name an output"
            )
        if self._loss not in self.differentiated_tensors():
            raise RequestError(
                f"graph '{self.name}': the loss depends on no trained parameter; there is nothing to train"
            )

    def fingerprint(self) -> str:
        """A digest of everything in the graph, shapes included: the same in every process."""
        return hashlib.sha256(graph_file.to_text(self).encode()).hexdigest()[:32]

    def with_batch(self, n: int) -> Graph:
        """The same graph with ``n`` samples.

        Raises:
            RequestError: ``n`` is below 1, or it cannot be told which numbers of the graph count samples.
        """
        if n < 1:
            raise RequestError(f"graph '{self.name}': expected a batch of at least 1 sample, got {n}")
        if self._recount is None:
            operators = [node.operator.with_batch(self.batch, n) for node in self._nodes]
        else:
            operators = list(self._recount(n))
        return self._remade(operators, n)

    def foresee_batches(self, counts: Sequence[int]) -> None:
        """Prepare for `with_batch` of some numbers: a module is imported again for all of them at once."""
        if self._foresee is not None:
            self._foresee(counts)

    def with_operators(self, operators: Sequence[AbstractOperator]) -> Graph:
        """The same graph whose nodes compute something else.

        Args:
            operators: For every node; each has the rule of the one that it replaces, but may give other dtypes.
        """
        return self._remade(operators, self.batch)

    def _remade(self, operators: Sequence[AbstractOperator], n: int) -> Graph:
        """The same graph of other operators and ``n`` samples; its tensors and nodes have the same numbers."""
        graph = Graph(self.name)
        producers = {node.results[0]: node for node in self._nodes}
        for tensor in self.tensors:
            if tensor.kind == "input":
                graph.input(tensor.name, (n, *tensor.shape[1:]), tensor.dtype)
            elif tensor.lasting and tensor.owner is None:
                graph.adopt(tensor)
            elif (node := producers.get(tensor.id)) is not None:
                graph._reapply(node, operators[node.id])
        graph._loss, graph._outputs = self._loss, dict(self._outputs)
        graph._state, graph._values = self._state, self._values
        graph._assignments, graph._ties = dict(self._assignments), dict(self._ties)
        graph._recount, graph._foresee = self._recount, self._foresee
        graph._arguments, graph._module = self._arguments, self._module
        graph._autocast = dict(self._autocast)
        return graph

    def recount_by(
        self,
        operators: Callable[[int], Sequence[AbstractOperator]],
        foresee: Callable[[Sequence[int]], None] | None = None,
    ) -> None:
        """Say how operators whose attributes count samples are found for another batch.

        Args:
            operators: all operators for so many samples, in order.
            foresee: is told for which numbers that will be asked.
        """
        self._recount, self._foresee = operators, foresee

    def adopt_ends(self, other: Graph, handles: Mapping[int, Tensor]) -> None:
        """Have the outputs, buffers' next values, loss and ties of another graph, and what autocast has of its nodes.

        Args:
            other: that graph.
            handles: in this graph, of the other's tensors, by their ids there.
        """
        for alias, named in other.ties.items():
            self.tie(alias, named)
        for name, output in other.outputs.items():
            self.output(name, handles[output])
        for buffer, value in other.assignments.items():
            self.assign(handles[buffer], handles[value])
        if other.loss_tensor is not None:
            self.loss(handles[other.loss_tensor])
        kept = {node.name for node in self.nodes}
        self.enter_autocast({name: half for name, half in other.autocast.items() if name in kept})

    def _reapply(self, node: Node, operator: AbstractOperator) -> None:
        """Apply an operator as a node of a graph whose tensors have the same ids as this one's."""
        tensors = self._table.tensors
        known = [None if i is None else self._table.handle(tensors[i]) for i in node.given]
        shared = [None if i is None or i >= len(tensors) else self._table.handle(tensors[i]) for i in node.own]
        self.apply(operator, known, shared, node.name)

    def __str__(self) -> str:
        return table(self)

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, {len(self._nodes)} operators, {len(self.parameters)} parameters)"

    def save(self, path: str | Path) -> None:
        """Write the graph as JSON; see ``maniple.operators.graph.graph_file``."""
        graph_file.save(self, path)

    @staticmethod
    def load(path: str | Path) -> Graph:
        """Read a graph from JSON.

        Raises:
            RequestError: The file is no graph; names the entry.
        """
        return graph_file.load(path, Graph)

    def state_dict(self, seed: int = 0) -> dict[str, torch.Tensor]:
        """The initial values of all parameters and persistent buffers, by name, in order of creation.

        Args:
            seed: For what no state dict gave.
        """
        from maniple.operators.graph.state import initial_state

        return initial_state(self, seed)

    def load_state_dict(self, state: Mapping[str, torch.Tensor], *, strict: bool = True) -> None:
        """Give initial values, which trainers of this graph begin with.

        Args:
            state: By name. The tensors are kept, not copied.
            strict: Whether every parameter and persistent buffer must be there.

        Raises:
            RequestError: A missing, unknown or misshaped entry.
        """
        self._state.update(self._check(state, strict=strict))

    def initialise_by(self, values: Callable[[], Mapping[str, torch.Tensor]]) -> None:
        """Give initial values as a function, called when they are first needed.

        Args:
            values: Gives parameters and buffers by name; a state dict that was loaded goes before it.
        """
        self._values = values

    def _check(self, state: Mapping[str, torch.Tensor], *, strict: bool) -> dict[str, torch.Tensor]:
        from maniple.operators.graph.state import check_state

        return check_state(self, state, strict=strict)


def checked_graph(where: str, given: object) -> Graph:
    """A graph that can be trained.

    Args:
        where: What asks for one, as messages say it.
        given: What it was given.

    Raises:
        RequestError: It is no graph, or one that cannot be trained.
    """
    if not isinstance(given, Graph):
        raise RequestError(
            f"{where}: expected a graph, such as mp.from_torch(module, examples) gives, got {type(given).__name__}"
        )
    given.validate()
    return given
