"""Graph files: a graph as JSON, version 1.

    {"version": 1, "name": "mlp",
     "inputs": [{"name": "x", "shape": [64, 784], "dtype": "float32"}, ...],
     "nodes": [{"name": "linear", "operator": "linear", "attributes": {"in_features": 784, ...},
                "operands": ["x", "linear.weight", "linear.bias"]}, ...],
     "outputs": {"logits": "linear_1"}, "loss": "cross_entropy"}

A parameter exists where its own operator names it; another operator that names it shares it. The order of nodes is the
file's where their operands allow. Every key is required and unknown keys are refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import Field, fields
from typing import TYPE_CHECKING, final

from maniple.operators.library.catalogue import CATALOGUE
from maniple.regions.error import RequestError, nearest
from maniple.runtime.entry import Entry, read_json, write_atomically

if TYPE_CHECKING:
    from maniple.operators.builder import Tensor
    from maniple.operators.graph import Graph
    from maniple.operators.operator import AbstractOperator

VERSION = 1


def to_json(graph: Graph) -> dict[str, object]:
    """The graph as plain data."""
    return {
        "version": VERSION,
        "name": graph.name,
        "inputs": _inputs(graph),
        "nodes": _nodes(graph),
        "outputs": {name: graph.tensors[tensor].name for name, tensor in graph.outputs.items()},
        "loss": None if graph.loss_tensor is None else graph.tensors[graph.loss_tensor].name,
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
    top = document.table(("version", "name", "inputs", "nodes", "outputs", "loss"))
    graph = make(top["name"].string())
    for entry in top["inputs"].elements():
        item = entry.table(("name", "shape", "dtype"))
        shape = tuple(extent.integer(1) for extent in item["shape"].elements())
        with _Located(entry):
            graph.input(item["name"].string(), shape, item["dtype"].string())
    for written in _ordered([_Written.read(entry) for entry in top["nodes"].elements()], file):
        _append(graph, written)
    for name, entry in top["outputs"].items():
        with _Located(entry):
            graph.output(name, graph.handle(entry.string()))
    if not top["loss"].is_null:
        with _Located(top["loss"]):
            graph.loss(graph.handle(top["loss"].string()))
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
class _Written:
    """A node as a file writes it."""

    def __init__(self, entry: Entry, name: str, operator: AbstractOperator, operands: tuple[Entry, ...]) -> None:
        self.entry = entry
        self.name = name
        self.operator = operator
        self.operands = operands
        self.names = tuple(operand.string() for operand in operands)

    @staticmethod
    def read(entry: Entry) -> _Written:
        """The node that an entry writes."""
        item = entry.table(("name", "operator", "attributes", "operands"))
        kind = CATALOGUE[item["operator"].choice(tuple(sorted(CATALOGUE)))]
        known = {field.name: field for field in _fields(kind)}
        table = item["attributes"].table(tuple(known))
        values = {name: _attribute(table[name], str(field.type)) for name, field in known.items()}
        with _Located(item["attributes"]):
            operator = kind(**values)
        return _Written(entry, item["name"].string(), operator, item["operands"].elements())

    def needs(self, names: set[str]) -> set[str]:
        """The nodes among ``names`` whose results or parameters this one uses."""
        owners = {name if name in names else name.rpartition(".")[0] for name in self.names}
        own = {f"{self.name}.{spec.name}" for spec in self.operator.parameters()}
        if own & set(self.names):
            owners.discard(self.name)
        if self.name in self.names:
            owners.add(self.name)
        return owners & names


def _fields(kind: type[AbstractOperator]) -> tuple[Field[object], ...]:
    """The attributes of a kind of operator: all of the library's are dataclasses."""
    return fields(kind)  # type: ignore[arg-type]


def _inputs(graph: Graph) -> list[dict[str, object]]:
    """The inputs as plain data."""
    return [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype} for t in graph.inputs]


def _nodes(graph: Graph) -> list[dict[str, object]]:
    """The nodes as plain data."""
    written: list[dict[str, object]] = []
    for node in graph.nodes:
        values = {field.name: getattr(node.operator, field.name) for field in _fields(type(node.operator))}
        attributes = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        operands = [graph.tensors[operand].name for operand in node.operands if operand is not None]
        written.append(
            {"name": node.name, "operator": node.operator.name, "attributes": attributes, "operands": operands}
        )
    return written


def _attribute(entry: Entry, kind: str) -> object:
    """An attribute's value; ``kind`` is how the operator's class writes its type."""
    if kind == "bool":
        return entry.boolean()
    if kind == "int":
        return entry.integer(0)
    return tuple(item.integer(0) for item in entry.elements())


def _ordered(nodes: list[_Written], file: str) -> list[_Written]:
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


def _append(graph: Graph, node: _Written) -> None:
    """Add a node to the graph."""
    specs = node.operator.parameters()
    first = len(node.names) - len(specs)
    if first < 1:
        listed = ", ".join(f"'{node.name}.{spec.name}'" for spec in specs)
        raise node.entry.child("operands", list(node.names)).problem(f"inputs, then parameters such as {listed}")
    handles: list[Tensor | None] = []
    for place, (name, entry) in enumerate(zip(node.names, node.operands, strict=True)):
        own = place >= first and name == f"{node.name}.{specs[place - first].name}"
        with _Located(entry):
            handles.append(None if own else _handle(graph, name))
    operands = [handle for handle in handles[:first] if handle is not None]
    with _Located(node.entry):
        graph.append(node.operator, operands, handles[first:], node.name)


def _handle(graph: Graph, name: str) -> Tensor:
    """The handle of a tensor that an entry names."""
    known = [tensor.name for tensor in graph.tensors]
    if name not in known:
        raise RequestError(f"unknown tensor '{name}'{nearest(name, known)}")
    return graph.handle(name)
