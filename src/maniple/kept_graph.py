"""Graphs of the zoo as an import made them, kept for searches: an import needs torch, and seconds.

A search needs no values, so a graph file has all that it asks for. The name of a kept graph has a digest of all that
made it: the model and its batch, torch, and the sources that an import runs. It is a copy: whatever is wrong with it,
the module is imported again.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from maniple.operators.graph import graph_file
from maniple.operators.graph.graph import Graph
from maniple.process import environment
from maniple.process.error import RequestError
from maniple.process.file_entry import write_atomically
from maniple.request import model_of

__all__: list[str] = []

SOURCES = ("models.py", "regions", "runtime", "operators", "zoo")
"""What the import of a model of the zoo runs, in the package."""
PREFIX = "graph-"
UNUSED_S = 30 * 24 * 3600.0
"""A graph that nobody has read for so long is removed."""


def planning_graph(source: str, batch: int | None) -> Graph:
    """Give the graph that `model_of` gives, but maybe without values: for planning alone.

    Args:
        source: a name, or ``file.py:callable``.
        batch: samples of a step.

    Raises:
        RequestError: see `model_of`.
    """
    if ":" in source:  # what a file makes may depend on anything
        return model_of(source, batch)
    path = environment.cache_folder() / f"{PREFIX}{digest(source, batch)}.json"
    found = _read(path)
    if found is None:
        found = model_of(source, batch)
        _keep(found, path)
    return found


def digest(name: str, batch: int | None) -> str:
    """Say what a graph is made of."""
    package = Path(__file__).parent
    found = hashlib.sha256(f"{name}\0{batch}\0{version('torch')}\0".encode())
    for part in SOURCES:
        files = [package / part] if part.endswith(".py") else sorted((package / part).rglob("*.py"))
        for file in files:
            found.update(hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()[:16]


def _read(path: Path) -> Graph | None:
    """The graph of a file, if it is there and is what it says."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        graph = graph_file.from_json(document["graph"], Graph)
    except (OSError, ValueError, KeyError, TypeError, RequestError):
        return None
    if graph.fingerprint() != document.get("fingerprint"):
        return None
    with suppress(OSError):  # another user's
        os.utime(path)
    return graph


def _keep(graph: Graph, path: Path) -> None:
    """Keep a graph if a file says all of it; of one with opaque operators an import has something to print."""
    data = graph_file.to_json(graph)
    again = graph_file.from_json(json.loads(json.dumps(data)), Graph)
    if graph.opaque or again.fingerprint() != graph.fingerprint():
        return
    with suppress(OSError, RequestError):  # no place to write: the next search imports it again
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"fingerprint": graph.fingerprint(), "graph": data}))
        for other in path.parent.glob(f"{PREFIX}*.json"):
            if path.stat().st_mtime - other.stat().st_mtime > UNUSED_S:
                other.unlink(missing_ok=True)
