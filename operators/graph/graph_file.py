"""Graph files: a graph as JSON, version 2.

    {"version": 2, "name": "mlp",
     "inputs": [{"name": "x", "shape": [64, 784], "dtype": "float32"}, ...],
     "parameters": [], "buffers": [],
     "nodes": [{"name": "linear", "operator": "linear", "attributes": {"in_features": 784, ...},
                "operands": ["x", "linear.weight", "linear.bias"]}, ...],
     "assignments": {}, "ties": {}, "outputs": {"logits": "linear_1"}, "loss": "cross_entropy"}

A parameter exists where it is listed, or else where its own operator names it; any other operator that names it shares
it. An absent operand is null. The order of nodes is the file's where their operands allow. Every key is required and
unknown keys are refused, but ``"autocast": {"linear": "bfloat16"}``, which is there where a module enters autocast.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from math import inf, isfinite
from typing import TYPE_CHECKING, cast, final

from maniple.operators.library.catalogue import OPERATORS
from maniple.operators.library.norms.normalization import BatchNorm
from maniple.operators.library.norms.rectified_batch_norm import RectifiedBatchNorm
from maniple.operators.operator.operator import HALF_DTYPES, AbstractOperator, Initial
from maniple.operators.precision.mixed_precision import MixedPrecision
from maniple.process.error import RequestError, nearest
from maniple.process.file_entry import Entry, read_json, write_atomically

if TYPE_CHECKING:
    from typing import Literal

    from maniple.operators.graph.graph import Graph
    from maniple.operators.graph.node import TensorInfo
    from maniple.operators.operator.builder import Tensor

VERSION = 2
MIXED = "mixed_precision"
"""What a file calls an operator of a graph that was rewritten for a precision."""
LOCAL = "local_batch_norm"
"""What it calls one of a graph that was rewritten for statistics of parts of a batch."""

RECTIFIED = "rectified_batch_norm"
"""What it calls a batch norm that an import found a ReLU behind."""

_KEYS = ("version", "name", "inputs", "parameters", "buffers", "nodes", "assignments", "ties", "outputs", "loss")


def to_json(graph: Graph) -> dict[str, object]:
    """The graph as plain data."""
    return {
        "version": VERSION,
        "name": graph.name,
        "inputs": _inputs(graph),
        "parameters": [_lasting(tensor, "requires_grad") for tensor in graph.parameters if tensor.owner is None],
        "buffers": [_lasting(tensor, "persistent") for tensor in graph.lasting if tensor.kind == "buffer"],
        "nodes": _nodes(graph),
        "assignments": {
            graph.tensors[buffer].name: graph.tensors[value].name for buffer, value in graph.assignments.items()
        },
        "ties": dict(graph.ties),
        "outputs": {name: graph.tensors[tensor].name for name, tensor in graph.outputs.items()},
        "loss": None if graph.loss_tensor is None else graph.tensors[graph.loss_tensor].name,
        **({"autocast": dict(graph.autocast)} if graph.autocast else {}),
    }


def to_text(graph: Graph) -> str:
    """The graph as JSON text: the same for equal graphs, one node per line."""
    lines = []
    for key, value in to_json(graph).items():
        if isinstance(value, list) and value:
            items = ",\n    ".join(json.dumps(item) for item in value)
            lines.append(f"  {json.dumps(key)}: [\n    {items}\n  ]")
        else:
            lines.append(f"  {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def from_json(data: object, make: Callable[[str], Graph], file: str = "graph") -> Graph:
    """The graph that plain data describes.

    Args:
        data: What a JSON parser returns.
        make: Makes an empty graph of a name.
        file: What messages call it.

    Raises:
        RequestError: Says which entry, what was expected and what came.
    """
    document = Entry(file, "", data)
    version = dict(document.items()).get("version")
    if version is not None and version.integer(1) > VERSION:
        raise version.problem(f"at most {VERSION}", "; a newer maniple wrote this graph: use that one")
    top = document.table(_KEYS, ("autocast",))
    graph = make(top["name"].string())
    for entry in top["inputs"].elements():
        item = entry.table(("name", "shape", "dtype"))
        shape = tuple(extent.integer(1) for extent in item["shape"].elements())
        with _Located(entry):
            graph.input(item["name"].string(), shape, item["dtype"].string())
    for entry in top["parameters"].elements():
        with _Located(entry):
            item = entry.table(("name", "shape", "dtype", "initial", "requires_grad"))
            graph.parameter(*_describe(item), requires_grad=item["requires_grad"].boolean())
    for entry in top["buffers"].elements():
        with _Located(entry):
            item = entry.table(("name", "shape", "dtype", "initial", "persistent"))
            graph.buffer(*_describe(item), persistent=item["persistent"].boolean())
    declared = {tensor.name for tensor in graph.tensors}
    for written in _order([_Written.read(entry, declared) for entry in top["nodes"].elements()], file):
        _apply(graph, written)
    for name, entry in top["assignments"].items():
        with _Located(entry):
            graph.assign(_handle(graph, name), _handle(graph, entry.string()))
    for name, entry in top["ties"].items():
        with _Located(entry):
            graph.tie(name, entry.string())
    for name, entry in top["outputs"].items():
        with _Located(entry):
            graph.output(name, graph.handle(entry.string()))
    if not top["loss"].is_null:
        with _Located(top["loss"]):
            graph.loss(graph.handle(top["loss"].string()))
    if "autocast" in top:
        with _Located(top["autocast"]):
            graph.enter_autocast({name: _half(entry) for name, entry in top["autocast"].items()})
    return graph


def save(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write the graph to a file, all of it or nothing.

    Raises:
        RequestError: The file cannot be written.
    """
    write_atomically(path, to_text(graph))


def load(path: str | os.PathLike[str], make: Callable[[str], Graph]) -> Graph:
    """Read a graph from a file.

    Args:
        path: The file.
        make: Makes an empty graph of a name.

    Raises:
        RequestError: The file cannot be read or is no graph; names the file and the entry.
    """
    document = read_json(path)
    return from_json(document.value, make, document.file)


@final
class _Located:
    """Adds the file and the entry to what a builder's method refuses."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        prefix = f"{self._entry.file}: "
        if isinstance(error, RequestError) and not str(error).startswith(prefix):
            raise RequestError(f"{prefix}{self._entry.path}: {error}") from error


@final
@dataclass(frozen=True)
class _Written:
    """A node as a file writes it.

    Args:
        entry: The node's.
        name: The node's.
        operator: What it computes.
        operands: The entries of its operands.
        names: The operands; None for an absent one.
        declared: The names of the inputs, and of the parameters and buffers that are listed.
    """

    entry: Entry
    name: str
    operator: AbstractOperator
    operands: tuple[Entry, ...]
    names: tuple[str | None, ...]
    declared: set[str]

    @staticmethod
    def read(entry: Entry, declared: set[str]) -> _Written:
        """The node that an entry writes."""
        item = entry.table(("name", "operator", "attributes", "operands"))
        operands = item["operands"].elements()
        names = tuple(None if operand.is_null else operand.string() for operand in operands)
        operator = _operator(item["operator"], item["attributes"])
        return _Written(entry, item["name"].string(), operator, operands, names, declared)

    def is_own(self, place: int) -> bool:
        """Whether an operand is a parameter that this node brings along."""
        specs, name = self.operator.parameters(), self.names[place]
        number = place - (len(self.names) - len(specs))
        return number >= 0 and name == f"{self.name}.{specs[number].name}" and name not in self.declared

    def needs(self, names: set[str]) -> set[str]:
        """The nodes among ``names`` whose results or parameters this one uses."""
        used = [name for place, name in enumerate(self.names) if name is not None and not self.is_own(place)]
        return {
            name if name in names else name.rpartition(".")[0] for name in used if name not in self.declared
        } & names


def _operator(name: Entry, entry: Entry) -> AbstractOperator:
    """The operator of a name and some attributes."""
    if name.string() == LOCAL:
        exact = entry.table(("exact",))["exact"].table(("operator", "attributes"))
        return _operator(exact["operator"], exact["attributes"]).under({"batch_norm": "local_stats"})
    if name.string() == RECTIFIED:
        norm = entry.table(("norm",))["norm"].table(("operator", "attributes"))
        found = _operator(norm["operator"], norm["attributes"])
        if not isinstance(found, BatchNorm):
            raise norm["operator"].problem("batch_norm")
        return RectifiedBatchNorm(found)
    if name.string() == MIXED:
        item = entry.table(tuple(field.name for field in fields(MixedPrecision)))
        inner = item["inner"].table(("operator", "attributes"))
        found = _operator(inner["operator"], inner["attributes"])
        rounds, gives, folds = (
            tuple(each.string() for each in item[name].elements()) for name in ("rounds", "gives", "folds")
        )
        return MixedPrecision(found, rounds, gives, folds, item["back"].string(), tf32=item["tf32"].boolean())
    with _Located(name):
        kind = OPERATORS.lookup(name.string())
    known = {field.name: str(field.type) for field in fields(kind)}  # type: ignore[arg-type]
    table = entry.table(tuple(known))
    values = {name: _attribute(table[name], written) for name, written in known.items()}
    with _Located(entry):
        return kind.of_attributes(values)


def _inputs(graph: Graph) -> list[dict[str, object]]:
    """The inputs as plain data."""
    return [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype} for t in graph.inputs]


def _lasting(tensor: TensorInfo, trait: str) -> dict[str, object]:
    """A parameter or buffer as plain data, with the trait that only its kind has."""
    initial = tensor.initial or Initial("constant", 0.0)
    return {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "dtype": tensor.dtype,
        "initial": [initial.kind, initial.scale],
        trait: getattr(tensor, trait),
    }


def _describe(item: dict[str, Entry]) -> tuple[str, tuple[int, ...], str, Initial]:
    """Name, shape, dtype and initial values of a parameter or buffer."""
    shape = tuple(extent.integer(1) for extent in item["shape"].elements())
    kind, scale = item["initial"].elements()
    chosen = cast("Literal['uniform', 'normal', 'constant']", kind.choice(("constant", "normal", "uniform")))
    return item["name"].string(), shape, item["dtype"].string(), Initial(chosen, scale.number(-inf))


def _half(entry: Entry) -> str:
    """A half that a file names."""
    if entry.string() not in HALF_DTYPES:
        raise entry.problem(f"one of {', '.join(HALF_DTYPES)}")
    return entry.string()


def _nodes(graph: Graph) -> list[dict[str, object]]:
    """The nodes as plain data."""
    written: list[dict[str, object]] = []
    tensors = graph.tensors
    for node in graph.nodes:
        operands = [None if operand is None else tensors[operand].name for operand in (*node.given, *node.own)]
        written.append({"name": node.name, **_described(node.operator), "operands": operands})
    return written


def _described(operator: AbstractOperator) -> dict[str, object]:
    """An operator's name and attributes as plain data."""
    attributes = {name: _plain(value) for name, value in operator.attributes().items()}
    if isinstance(operator, MixedPrecision):
        return {"operator": MIXED, "attributes": {**attributes, "inner": _described(operator.inner)}}
    return {"operator": operator.name, "attributes": attributes}


def _plain(value: object) -> object:
    """An attribute's value as JSON has it."""
    if isinstance(value, AbstractOperator):
        return _described(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return {"float": str(value)}
    return value


def _attribute(entry: Entry, kind: str = "") -> object:
    """An attribute's value; ``kind`` is how the operator's class writes its type."""
    value = entry.value
    if kind == "bool":
        return entry.boolean()
    if kind == "int":
        if isinstance(value, bool) or not isinstance(value, int):
            raise entry.problem("an integer")
        return value
    if kind == "float" and isinstance(value, int | float):
        return entry.number(-inf)
    if isinstance(value, list):
        inner = "int" if kind.startswith("tuple[int") else ""
        return tuple(_attribute(item, inner) for item in entry.elements())
    if isinstance(value, dict):
        return float(entry.table(("float",))["float"].choice(("inf", "-inf", "nan")))
    return value


def _order(nodes: list[_Written], file: str) -> list[_Written]:
    """The nodes in a topological order, in the file's order where there is a choice."""
    names = {node.name for node in nodes}
    placed: set[str] = set()
    ordered: list[_Written] = []
    waiting = list(nodes)
    while waiting:
        ready = next((node for node in waiting if node.needs(names) <= placed), None)
        if ready is None:
            raise RequestError(f"{file}: nodes: operators {' -> '.join(_cycle(waiting, names, placed))} form a cycle")
        waiting.remove(ready)
        ordered.append(ready)
        placed.add(ready.name)
    return ordered


def _cycle(waiting: list[_Written], names: set[str], placed: set[str]) -> list[str]:
    """The names along one cycle in the direction of data, the first repeated at the end."""
    needs = {node.name: sorted(node.needs(names) - placed) for node in waiting}
    path = [waiting[0].name]
    while path.count(path[-1]) == 1:
        path.append(needs[path[-1]][0])
    return path[path.index(path[-1]) :][::-1]


def _apply(graph: Graph, node: _Written) -> None:
    """Add a node to the graph."""
    specs = node.operator.parameters()
    first = len(node.names) - len(specs)
    if first < 1:
        listed = ", ".join(f"'{node.name}.{spec.name}'" for spec in specs)
        raise node.entry.child("operands", list(node.names)).problem(f"inputs, then parameters such as {listed}")
    handles: list[Tensor | None] = []
    for place, (name, entry) in enumerate(zip(node.names, node.operands, strict=True)):
        with _Located(entry):
            handles.append(None if name is None or node.is_own(place) else _handle(graph, name))
    with _Located(node.entry):
        graph.apply(node.operator, handles[:first], handles[first:], node.name)


def _handle(graph: Graph, name: str) -> Tensor:
    """The handle of a tensor that an entry names."""
    known = [tensor.name for tensor in graph.tensors]
    if name not in known:
        raise RequestError(f"unknown tensor '{name}'{nearest(name, known)}")
    return graph.handle(name)
