"""Profile files: published per-layer measurements, read into graphs of costs."""

from __future__ import annotations

import os
from pathlib import Path

from maniple.process.error import RequestError
from maniple.strategies.pipeline import pipedream_profile, placement_profile
from maniple.strategies.pipeline.cost_graph import CostGraph

__all__: list[str] = []


def read_profile(path: str | os.PathLike[str], *, inputs: bool = False) -> CostGraph:
    """The graph of costs in a profile file: PipeDream's text, or dnn-partitioning's JSON.

    Args:
        path: the file.
        inputs: whether PipeDream's ``Input`` nodes, which hold the time of loading data, stay in the graph.

    Raises:
        RequestError: the file cannot be read, is of another format, or holds a wrong entry; names the line or place.
    """
    name = os.fspath(path)
    text = _text(name)
    start = text.lstrip()
    if not start:
        raise RequestError(f"{name}: line 1: expected a profile, got an empty file; {_FORMATS}")
    if start.startswith("{"):
        return placement_profile.read(name)
    if " -- " in start.split("\n", 1)[0]:
        return pipedream_profile.parse(name, text, inputs=inputs)
    line = text[: len(text) - len(start)].count("\n") + 1
    raise RequestError(f"{name}: line {line}: this is no profile that can be read; {_FORMATS}")


_FORMATS = (
    "expected PipeDream's text (lines 'id -- description -- forward_compute_time=..., ...') or dnn-partitioning's JSON "
    "(an object with nodes and edges)"
)


def _text(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{name}: cannot be read ({error.strerror}); give the path of a profile file") from error
    except ValueError as error:
        raise RequestError(f"{name}: not a text file in UTF-8 ({error}); {_FORMATS}") from error
