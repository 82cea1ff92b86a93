"""The importer: `from_torch`, which makes a graph of a module."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast, final

import msgpack
from torch import Tensor as Values
from torch import nn
from torch.export.graph_signature import InputKind, OutputKind

from maniple.operators.graph.graph import Graph
from maniple.operators.graph.graph_file import to_json
from maniple.operators.operator.builder import Tensor
from maniple.operators.rewriting.rectified_norms import rectify_norms
from maniple.operators.torch_import.autocast_region import widen
from maniple.operators.torch_import.capture import capture
from maniple.operators.torch_import.closure import attributes, in_modes, preserve
from maniple.operators.torch_import.constants import Constants, is_written
from maniple.operators.torch_import.exported_call import Known
from maniple.operators.torch_import.found_graph import FoundGraph
from maniple.operators.torch_import.handler_table import handler
from maniple.operators.torch_import.handlers import (  # noqa: F401 (fill the table)
    arithmetic,
    bags,
    distances,
    draws,
    indexing,
    layers,
    layout,
    losses,
    pools,
)
from maniple.operators.torch_import.import_request import Examples, Loss, Request, Step
from maniple.operators.torch_import.mutation import functional
from maniple.operators.torch_import.names import Names
from maniple.operators.torch_import.passing_process import can_pass, made_in_passing
from maniple.operators.torch_import.pruning import prune
from maniple.operators.torch_import.recount import Recount
from maniple.operators.torch_import.translation import Translation
from maniple.process.error import RequestError
from maniple.process.gc_pause import pause_gc

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

__all__ = ["from_torch"]

Shapes = tuple[tuple[int, ...], ...]
_ONE_AT_A_TIME = threading.Lock()  # while a module is exported its parameters are others, and torch uses globals


def from_torch(
    module: nn.Module,
    example_inputs: Examples,
    *,
    loss: Loss | None = None,
    targets: Examples | None = None,
    name: str | None = None,
    fuse: bool = True,
) -> Graph:
    """Make a task graph of an unmodified module.

    The module is run once, on tensors without values. Its forward gives the loss: a scalar, an output whose ``.loss``
    or first element is one; or ``loss`` gives it. Other tensors of the output become outputs of the graph. Inputs have
    the names of forward's arguments, parameters and buffers those of the module, and their values become the graph's
    initial ones, unless they are on the meta device. The mode of the module (train or eval) is kept.

    Args:
        module: Not changed.
        example_inputs: What forward takes, as a tuple, or as a dict of its arguments by name. Tensors, also those in
            dictionaries, lists, tuples and dataclasses, become inputs, each by itself even where it is given twice;
            their dimension 0 is the sample dimension. Anything else is fixed.
        loss: ``loss(output, *targets)``.
        targets: What only ``loss`` takes.
        name: Of the graph; the module's class by default.
        fuse: Whether a batch norm, what is added to it and the ReLU behind both are one operator. Models that are
            compared with what others published have one operator for each layer.

    Raises:
        RequestError: The module cannot be imported; names the line and what can be done.
    """
    request = Request.of(module, example_inputs, loss, targets)
    examples = tuple(request.tensors.values())
    importer = _Import(request, name or request.name, fuse=fuse)
    graph, constants = importer.graph(tuple(tuple(value.shape) for value in examples))

    def shapes(batch: int) -> Shapes:
        return tuple((batch, *value.shape[1:]) for value in examples)

    recount = Recount(
        *(graph, constants),
        lambda batch: importer.graph(shapes(batch)),
        lambda batches: importer.foresee([shapes(batch) for batch in batches]),
    )
    graph.recount_by(recount, recount.foresee)
    for what, lines in (
        (f"{len(graph.opaque)} operators run whole on one processor", graph.opaque),
        ("tensors that are no inputs, parameters or buffers stay as they are now", importer.closed),
        ("attributes that forward changes are not seen by the next step", request.changed),
        ("nothing reads these inputs, and a step does without them", sorted(graph.arguments.unread)),
        (
            "these arguments have the names of parameters or buffers, and are inputs of other names",
            [f"{theirs}: {ours}" for theirs, ours in request.renamed.items()],
        ),
    ):
        if lines:
            shown = "".join(f"\n  {line}" for line in lines)
            sys.stderr.write(f"from_torch: {request.name}: {what}:{shown}\n")
    return graph


@final
@dataclass
class _Import:
    """The imports of a module.

    Args:
        request: What is imported.
        name: Of the graph.
        fuse: See `from_torch`.
        closed: The constants that the module takes from elsewhere, as messages say it.
        ready: What was exported for examples of some shapes, until it is asked for.
        modes: In which the module and those inside are imported, whatever became of them since the first time.
    """

    request: Request
    name: str
    fuse: bool
    closed: tuple[str, ...] = ()
    ready: dict[Shapes, bytes] = field(default_factory=dict)
    modes: tuple[tuple[nn.Module, bool], ...] = field(init=False)

    def __post_init__(self) -> None:
        self.modes = tuple((part, part.training) for part in self.request.module.modules())

    def graph(self, shapes: Shapes) -> tuple[Graph, dict[str, Values]]:
        """The graph for examples of some shapes, and the constants in it."""
        module = self.request.module
        with _ONE_AT_A_TIME, in_modes(self.modes), pause_gc():
            sent = self.ready.pop(shapes, b"") or next(iter(self._sent([shapes])), b"")
            found = FoundGraph.of_bytes(sent) if sent else self._export(self._examples(shapes))
            # Here, too: while another rank's thread exports the module, its parameters are others.
            state = {**dict(module.named_parameters()), **dict(module.named_buffers(remove_duplicate=False))}
            held = {key: state[key].detach() for key in found.held}
        graph, self.closed = found.graph(), found.closed
        self.request.changed[:] = found.changed
        kept = {tensor.name for tensor in graph.lasting}
        values = {key: value for key, value in held.items() if key in kept}
        graph.load_state_dict({**values, **found.constants}, strict=False)
        graph.imports(module)
        self._check_inputs(graph)
        return graph, found.constants

    def foresee(self, several: Sequence[Shapes]) -> None:
        """Export the module for examples of several shapes in one process, which loads what it needs for that once."""
        with _ONE_AT_A_TIME, in_modes(self.modes), pause_gc():
            self.ready.update(zip(several, self._sent(several), strict=False))

    def _examples(self, shapes: Shapes) -> tuple[Values, ...]:
        """Examples of some shapes.

        They are tensors of their own: one that was given twice would be one input, and a view of another's storage
        would see what is written there.
        """
        return tuple(value.new_empty(shape) for value, shape in zip(self.request.tensors.values(), shapes, strict=True))

    def _sent(self, several: Sequence[Shapes]) -> list[bytes]:
        """What a process that passes exports, for examples of several shapes; nothing where there is none."""
        module, made = self.request.module, [self._examples(shapes) for shapes in several]
        examples = [value for each in made for value in each]
        if not can_pass([*examples, *module.parameters(), *module.buffers(), *(v for _, v in attributes(module))]):
            return []
        sent = made_in_passing(lambda: cast("bytes", msgpack.packb([self._export(each).to_bytes() for each in made])))
        return cast("list[bytes]", msgpack.unpackb(sent)) if sent else []

    def _export(self, examples: tuple[Values, ...]) -> FoundGraph:
        step = Step(self.request)
        with preserve(value for _, value in attributes(self.request.module)):
            program = functional(capture(step, examples))
        widen(program.graph_module, self.request.name)
        graph = Graph(self.name)
        names = Names(set())
        values, held, handles = self._declare(graph, program, step, names, examples)
        into = Translation(graph, names, handler)
        results = into.translate(program.graph, values)
        into.assigned |= self._finish(graph, program, results, into, handles)
        graph.enter_autocast(into.autocast)
        for buffer, value in into.assigned.items():
            graph.assign(graph.handle(buffer), into.tensor(value))
        graph = prune(graph)
        graph = rectify_norms(graph) if self.fuse else graph
        kept = {tensor.name for tensor in graph.lasting}
        known = {key: value for key, value in into.constants.items() if key in kept}
        return FoundGraph(to_json(graph), tuple(held), known, self.closed, tuple(self.request.changed))

    def _declare(
        self, graph: Graph, program: ExportedProgram, step: Step, names: Names, examples: tuple[Values, ...]
    ) -> tuple[dict[Node, Any], list[str], dict[str, Tensor]]:
        """Declare inputs, parameters and buffers: the values of the program's placeholders, and who has values."""
        handles: dict[str, Tensor] = {}
        held: list[str] = []
        for key, value in zip(self.request.tensors, examples, strict=True):
            handles[key] = graph.input(names.free(key), tuple(value.shape), _dtype(value))
        first: dict[int, str] = {}
        for key, value in self.request.module.named_parameters():
            first[id(value)] = key
            handles[key] = graph.parameter(
                names.free(key), tuple(value.shape), _dtype(value), requires_grad=value.requires_grad
            )
            if not value.is_meta:
                held.append(key)
        for key, value in self.request.module.named_parameters(remove_duplicate=False):
            if first[id(value)] != key:
                graph.tie(names.free(key), first[id(value)])
        placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
        given = iter(handles[key] for key in self.request.tensors)
        values: dict[Node, Any] = {}
        constants = Constants(self.request, program)
        for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
            target = str(spec.target).removeprefix("module.")
            match spec.kind:
                case InputKind.USER_INPUT:
                    values[node] = next(given)
                case InputKind.PARAMETER:
                    values[node] = handles[first[id(step.get_parameter(str(spec.target)))]]
                case InputKind.BUFFER:
                    values[node] = self._buffer(graph, target, node, names, held, persistent=bool(spec.persistent))
                case InputKind.CONSTANT_TENSOR:
                    values[node] = constants.values_of(node, str(spec.target))
                case _:
                    raise RequestError(
                        f"from_torch: {self.request.name} uses '{target}', a {spec.kind.name}, which is no tensor (a "
                        "torch.Generator is one); do without it, or compute what it gives before the step"
                    )
        self.closed = tuple(constants.closed)
        return values, held, handles

    def _check_inputs(self, graph: Graph) -> None:
        """Tell the graph how a step's arguments become its inputs; refuse one without any."""
        kept = {tensor.name for tensor in graph.inputs}
        if not kept:
            raise RequestError(
                f"from_torch: {self.request.name}: the loss and the outputs read none of the example inputs "
                f"({', '.join(self.request.tensors)}); use them in forward or in loss="
            )
        graph.takes(self.request.arguments(graph.name, self.request.tensors.keys() - kept))

    def _buffer(
        self, graph: Graph, key: str, node: Node, names: Names, held: list[str], *, persistent: bool
    ) -> Tensor | Known:
        """A buffer of the module; one that is no part of its state dict and never changes is known."""
        value = self.request.module.get_buffer(key)
        if not persistent and not value.is_meta and not is_written(node):
            return Known(value.detach().cpu(), names.free(key))
        if not value.is_meta:
            held.append(key)
        return graph.buffer(names.free(key), tuple(value.shape), _dtype(value), persistent=persistent)

    def _finish(
        self, graph: Graph, program: ExportedProgram, results: list[Any], into: Translation, handles: dict[str, Tensor]
    ) -> dict[str, Any]:
        """Name the loss and the outputs; give the buffers' next values."""
        assigned: dict[str, Any] = {}
        outputs = iter(["", *self.request.outputs])
        for value, spec in zip(results, program.graph_signature.output_specs, strict=True):
            target = str(spec.target).removeprefix("module.")
            match spec.kind:
                case OutputKind.USER_OUTPUT:
                    key = next(outputs)
                    if not isinstance(value, Tensor | Known):
                        continue
                    if key:
                        graph.output(key, into.result(value))
                    else:
                        graph.loss(into.result(value))
                case OutputKind.BUFFER_MUTATION:
                    assigned[target] = value
                case _:
                    raise RequestError(
                        f"from_torch: {self.request.name} writes to its input '{spec.target}'; clone it first"
                    )
        return assigned


def _dtype(value: Values) -> str:
    return str(value.dtype).removeprefix("torch.")
