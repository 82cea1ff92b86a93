"""The file form of a plan: JSON with one operator, weight or stage per line, every key present."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from maniple.process.error import RequestError
from maniple.process.file_entry import Entry, parse_json, read_json, write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__: list[str] = []

VERSION = 4
"""The version of the file that this code reads and writes."""

Term = str | int | float | bool | None
"""One value of an explanation."""

_KEYS = (
    "version",
    "graph",
    "machine",
    "strategy",
    "seed",
    "semantics",
    "operators",
    "weights",
    "stages",
    "pipeline",
    "explanation",
    "predicted",
)


def read(path: str | os.PathLike[str]) -> dict[str, Entry]:
    """The entries of a plan file by key.

    Raises:
        RequestError: the file cannot be read, is truncated, of a newer version, or has a key too many or too few.
    """
    return _table(read_json(path))


def parse(name: str, text: str) -> dict[str, Entry]:
    """The entries of a plan's text by key; see ``read``."""
    return _table(parse_json(name, text))


def _table(root: Entry) -> dict[str, Entry]:
    version = dict(root.items()).get("version")
    if version is not None and version.integer(1) != VERSION:
        other = "a newer" if version.integer(1) > VERSION else "an older"
        raise RequestError(
            f"{root.file}: version: expected {VERSION}, got {version.integer(1)}; "
            f"this plan was written by {other} maniple: use that one, or search again"
        )
    return root.table(_KEYS)


def write(path: str | os.PathLike[str], document: Mapping[str, object]) -> None:
    """Write a plan's plain data, whole or not at all.

    Raises:
        RequestError: the place cannot be written, or a number of the plan is NaN or infinite.
    """
    try:
        written = text(document)
    except ValueError as error:
        raise RequestError(f"{os.fspath(path)}: this plan cannot be written ({error})") from error
    write_atomically(path, written)


def text(document: Mapping[str, object]) -> str:
    """The plan's plain data as text: keys in the order given, one entry of a table or list per line.

    So a changed operator is one changed line of a diff.
    """
    lines = [f"  {json.dumps(key)}: {_value(value)}" for key, value in document.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def explanation(entry: Entry) -> tuple[tuple[str, tuple[tuple[str, Term], ...]], ...]:
    """The explanation: a table of terms for each operator, and under the empty name for the whole plan.

    Raises:
        RequestError: the entry is wrong.
    """
    return tuple((name, tuple((term, _term(value)) for term, value in terms.items())) for name, terms in entry.items())


def _term(entry: Entry) -> Term:
    value = entry.value
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise entry.problem("a string, a number, true, false or null")


def _value(value: object) -> str:
    if isinstance(value, dict) and value:
        rows = [f"    {json.dumps(key, ensure_ascii=False)}: {_line(entry)}" for key, entry in value.items()]
        return "{\n" + ",\n".join(rows) + "\n  }"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"    {_line(entry)}" for entry in value) + "\n  ]"
    return _line(value)


def _line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
