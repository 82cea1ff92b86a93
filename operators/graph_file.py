"""Graph files: a graph as JSON, version 1.

    {"version": 1, "name": "mlp",
     "inputs": [{"name": "x", "shape": [64, 784], "dtype": "float32"}, ...],
     "nodes": [{"name": "linear", "operator": "linear", "attributes": {"in_features": 784, ...},
                "operands": ["x", "linear.weight", "linear.bias"]}, ...],
     "outputs": {"logits": "linear_1"}, "loss": "cross_entropy"}

A parameter exists where it is first named; a name that an earlier operator created shares that parameter. Unknown keys
are refused.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from maniple.operators.builder import Tensor
from maniple.operators.library.catalogue import CATALOGUE
from maniple.operators.operator import AbstractOperator
from maniple.regions.error import ManipleError, RequestError, nearest

if TYPE_CHECKING:
    from maniple.operators.graph import Graph

VERSION = 1
Json = dict[str, object]


def to_json(graph: Graph) -> Json:
    """The graph as plain data."""
    names = [tensor.name for tensor in graph.tensors]
    return {
        "version": VERSION,
        "name": graph.name,
        "inputs": [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype} for t in graph.inputs],
        "nodes": [
            {
                "name": node.name,
                "operator": node.operator.name,
                "attributes": _attributes(node.operator),
                "operands": [names[i] for i in node.operands if i is not None],
            }
            for node in graph.nodes
        ],
        "outputs": {name: names[tensor] for name, tensor in graph.outputs.items()},
        "loss": None if graph.loss_tensor is None else names[graph.loss_tensor],
    }


def to_text(graph: Graph) -> str:
    """The graph as JSON text: the same for equal graphs, one node per line."""
    data = to_json(graph)
    nodes = ",\n    ".join(json.dumps(node) for node in cast("list[Json]", data["nodes"]))
    inputs = ",\n    ".join(json.dumps(item) for item in cast("list[Json]", data["inputs"]))
    return (
        f'{{\n  "version": {VERSION},\n  "name": {json.dumps(data["name"])},\n'
        f'  "inputs": [\n    {inputs}\n  ],\n  "nodes": [\n    {nodes}\n  ],\n'
        f'  "outputs": {json.dumps(data["outputs"])},\n  "loss": {json.dumps(data["loss"])}\n}}\n'
    )


def from_json(data: object) -> Graph:
    """The graph that plain data describes.

    Raises:
        RequestError: Says which entry, what was expected and what came.
    """
    from maniple.operators.graph import Graph

    top = _entries(data, "", {"version": int, "name": str, "inputs": list, "nodes": list, "outputs": dict}, ("loss",))
    if top["version"] != VERSION:
        raise RequestError(f"version: expected {VERSION}, got {top['version']}; a newer Maniple wrote this graph")
    graph = Graph(cast("str", top["name"]))
    for place, item in enumerate(cast("list[object]", top["inputs"])):
        path = f"inputs[{place}]"
        entry = _entries(item, path, {"name": str, "shape": list, "dtype": str})
        shape = _integers(entry["shape"], f"{path}.shape")
        graph.input(cast("str", entry["name"]), shape, cast("str", entry["dtype"]))
    nodes = [
        (f"nodes[{place}]", _entries(item, f"nodes[{place}]", {"name": str, "operator": str, "attributes": dict, "operands": list}))
        for place, item in enumerate(cast("list[object]", top["nodes"]))
    ]
    for path, entry in nodes:
        if not all(isinstance(name, str) for name in cast("list[object]", entry["operands"])):
            raise RequestError(f"{path}.operands: expected names of tensors, got {entry['operands']!r}")
    for path, entry in _ordered(nodes):
        _append(graph, path, entry)
    for name, tensor in cast("Json", top["outputs"]).items():
        graph.output(name, _lookup(graph, tensor, f"outputs.{name}"))
    if top["loss"] is not None:
        graph.loss(_lookup(graph, top["loss"], "loss"))
    return graph


def save(graph: Graph, path: str | Path) -> None:
    """Write the graph to a file, all of it or nothing.

    Raises:
        RequestError: The file cannot be written.
    """
    target = Path(path)
    try:
        with tempfile.NamedTemporaryFile("w", dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
            file.write(to_text(graph))
        os.replace(file.name, target)
    except OSError as error:
        raise RequestError(f"{target}: the graph cannot be written: {error}") from error


def load(path: str | Path) -> Graph:
    """Read a graph from a file.

    Raises:
        RequestError: The file cannot be read or is no graph; names the file and the entry.
    """
    try:
        return from_json(json.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path}: the graph cannot be read: {error}") from error
    except json.JSONDecodeError as error:
        raise RequestError(f"{path}: expected JSON, line {error.lineno}: {error.msg}; is the file truncated?") from error
    except ManipleError as error:
        raise RequestError(f"{path}: {error}") from error


def _attributes(operator: AbstractOperator) -> Json:
    """The operator's attributes as plain data."""
    if not is_dataclass(operator):
        raise RequestError(f"operator '{operator.name}' is no dataclass; its attributes cannot be written")
    values = {field.name: getattr(operator, field.name) for field in fields(operator)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _operator(name: str, attributes: Json, path: str) -> AbstractOperator:
    """The operator that an entry describes."""
    if name not in CATALOGUE:
        raise RequestError(f"{path}.operator: unknown operator '{name}'{nearest(name, sorted(CATALOGUE))}")
    kind = CATALOGUE[name]
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for key in attributes:
        if key not in known:
            raise RequestError(f"{path}.attributes.{key}: unknown key{nearest(key, sorted(known))}")
    values: dict[str, object] = {}
    for key, field in known.items():
        if key not in attributes:
            if field.default is MISSING:
                raise RequestError(f"{path}.attributes.{key}: expected a value, it is missing")
            continue
        values[key] = _attribute(attributes[key], str(field.type), f"{path}.attributes.{key}")
    try:
        return kind(**values)
    except RequestError as error:
        raise RequestError(f"{path}.attributes: {error}") from error


def _attribute(value: object, kind: str, path: str) -> object:
    """An attribute's value from plain data."""
    if kind == "bool":
        if not isinstance(value, bool):
            raise RequestError(f"{path}: expected true or false, got {value!r}")
        return value
    if kind == "int":
        return _integers([value], path)[0]
    return _integers(value, path)


def _integers(value: object, path: str) -> tuple[int, ...]:
    """A tuple of integers from plain data."""
    if not isinstance(value, list):
        raise RequestError(f"{path}: expected a list of integers, got {value!r}")
    for item in value:
        if isinstance(item, bool) or not isinstance(item, int):
            raise RequestError(f"{path}: expected an integer, got {item!r}")
    return tuple(value)


def _entries(data: object, path: str, kinds: dict[str, type], optional: tuple[str, ...] = ()) -> Json:
    """An object's entries, their types checked.

    Args:
        data: Plain data.
        path: Where it is in the file.
        kinds: The type of every key.
        optional: Keys of a string or null.
    """
    dot = f"{path}." if path else ""
    if not isinstance(data, dict):
        raise RequestError(f"{path or 'graph'}: expected an object, got {data!r}")
    for key in data:
        if key not in kinds and key not in optional:
            raise RequestError(f"{dot}{key}: unknown key{nearest(str(key), sorted((*kinds, *optional)))}")
    for key, kind in kinds.items():
        if key not in data:
            raise RequestError(f"{dot}{key}: expected {kind.__name__}, the key is missing")
        if not isinstance(data[key], kind) or (kind is int and isinstance(data[key], bool)):
            raise RequestError(f"{dot}{key}: expected {kind.__name__}, got {data[key]!r}")
    for key in optional:
        if not isinstance(data.setdefault(key, None), str | None):
            raise RequestError(f"{dot}{key}: expected a name or null, got {data[key]!r}")
    return data


def _ordered(nodes: list[tuple[str, Json]]) -> list[tuple[str, Json]]:
    """The nodes in a topological order, in the file's order where there is a choice."""
    names = {cast("str", entry["name"]) for _, entry in nodes}
    placed: set[str] = set()
    ordered: list[tuple[str, Json]] = []
    waiting = list(nodes)
    while waiting:
        ready = next((item for item in waiting if _needs(item[1], names) <= placed), None)
        if ready is None:
            raise RequestError(f"operators {' -> '.join(_cycle(waiting, names, placed))} form a cycle")
        waiting.remove(ready)
        ordered.append(ready)
        placed.add(cast("str", ready[1]["name"]))
    return ordered


def _needs(entry: Json, names: set[str]) -> set[str]:
    """The nodes that an entry reads or shares a parameter with."""
    own = cast("str", entry["name"])
    needs = set()
    for operand in cast("list[str]", entry["operands"]):
        creator = operand.rpartition(".")[0]
        if operand in names:
            needs.add(operand)
        elif creator in names and creator != own:
            needs.add(creator)
    return needs


def _cycle(waiting: list[tuple[str, Json]], names: set[str], placed: set[str]) -> list[str]:
    """The names along one cycle of the waiting nodes, the first repeated at the end."""
    needs = {cast("str", entry["name"]): sorted(_needs(entry, names) - placed) for _, entry in waiting}
    path = [next(iter(needs))]
    while path.count(path[-1]) == 1:
        path.append(needs[path[-1]][0])
    loop = path[path.index(path[-1]) :]
    return loop[::-1]


def _append(graph: Graph, path: str, entry: Json) -> None:
    """Add the node that an entry describes."""
    name = cast("str", entry["name"])
    operator = _operator(cast("str", entry["operator"]), cast("Json", entry["attributes"]), path)
    names = cast("list[str]", entry["operands"])
    specs = operator.parameters()
    first = len(names) - len(specs)
    if first < 1:
        raise RequestError(f"{path}.operands: expected inputs and {len(specs)} parameters, got {names}")
    operands = [_lookup(graph, operand, f"{path}.operands[{place}]") for place, operand in enumerate(names[:first])]
    parameters: list[Tensor | None] = []
    for place, (operand, spec) in enumerate(zip(names[first:], specs, strict=True), start=first):
        own = f"{name}.{spec.name}"
        parameters.append(None if operand == own else _lookup(graph, operand, f"{path}.operands[{place}]"))
    try:
        graph.append(operator, operands, parameters, name)
    except RequestError as error:
        raise RequestError(f"{path}: {error}") from error


def _lookup(graph: Graph, name: object, path: str) -> Tensor:
    """The handle of a tensor that an entry names."""
    if not isinstance(name, str):
        raise RequestError(f"{path}: expected the name of a tensor, got {name!r}")
    try:
        return graph.handle(name)
    except RequestError as error:
        raise RequestError(f"{path}: {error}") from error
