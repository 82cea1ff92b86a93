"""An entry of a file that a person can edit: a value together with the file and the path that lead to it.

Machine files (TOML) and plan files (JSON) are both read through entries, so that every complaint about a file names
the file and the place: ``my-plan.json: operators.conv2d.degrees.b: expected an integer >= 1, got 'two'``.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import final

from maniple.process.error import RequestError, nearest

_SHOWN = 60


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """One value of a file, with the file's name and the path of the value inside it.

    Args:
        file: the file as messages name it.
        path: keys joined by dots and indices in brackets; empty for the whole document.
        value: what the file's parser returned (dict, list, str, int, float, bool or None).
    """

    file: str
    path: str
    value: object

    def problem(self, expected: str, hint: str = "") -> RequestError:
        """The error for a value that is not what was expected; the caller raises it."""
        shown = repr(self.value)
        if len(shown) > _SHOWN:
            shown = shown[: _SHOWN - 3] + "..."
        return RequestError(f"{self.file}: {self.path or 'the document'}: expected {expected}, got {shown}{hint}")

    def child(self, key: str | int, value: object) -> Entry:
        """The entry below this one under a key (of a table) or an index (of a list)."""
        if isinstance(key, int):
            return Entry(self.file, f"{self.path}[{key}]", value)
        return Entry(self.file, f"{self.path}.{key}" if self.path else key, value)

    def items(self) -> tuple[tuple[str, Entry], ...]:
        """The entries of a table whose keys are free, in the order of the file."""
        if not isinstance(self.value, dict):
            raise self.problem("a table of named entries")
        return tuple((str(key), self.child(str(key), value)) for key, value in self.value.items())

    def table(self, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Entry]:
        """The entries of a table whose keys are fixed.

        Raises:
            RequestError: the value is no table, a required key is missing, or a key is unknown.
        """
        entries = dict(self.items())
        known = required + optional
        for key, entry in entries.items():
            if key not in known:
                raise RequestError(f"{self.file}: {entry.path}: unknown key{nearest(key, known)}")
        for key in required:
            if key not in entries:
                raise RequestError(f"{self.file}: {self.child(key, None).path}: this key is missing")
        return entries

    def elements(self) -> tuple[Entry, ...]:
        """The entries of a list."""
        if not isinstance(self.value, list):
            raise self.problem("a list")
        return tuple(self.child(index, value) for index, value in enumerate(self.value))

    def integer(self, minimum: int) -> int:
        """The value as an integer that is at least ``minimum`` (a bool is no integer)."""
        if not isinstance(self.value, int) or isinstance(self.value, bool) or self.value < minimum:
            raise self.problem(f"an integer >= {minimum}")
        return self.value

    def number(self, minimum: float) -> float:
        """The value as a finite number that is at least ``minimum``."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.problem(f"a number >= {minimum:g}")
        number = float(value)
        if not math.isfinite(number) or number < minimum:
            raise self.problem(f"a finite number >= {minimum:g}")
        return number

    def string(self) -> str:
        """The value as a string."""
        if not isinstance(self.value, str):
            raise self.problem("a string")
        return self.value

    def boolean(self) -> bool:
        """The value as true or false."""
        if not isinstance(self.value, bool):
            raise self.problem("true or false")
        return self.value

    def choice(self, choices: tuple[str, ...]) -> str:
        """The value as one of some strings."""
        name = self.string()
        if name not in choices:
            raise self.problem("one of the choices", nearest(name, choices))
        return name

    @property
    def is_null(self) -> bool:
        """Whether the file says null here."""
        return self.value is None


def read_json(path: str | os.PathLike[str]) -> Entry:
    """The whole document of a JSON file.

    Raises:
        RequestError: the file cannot be read, is not whole JSON, names a key twice or holds NaN or infinity.
    """
    return parse_json(*_text(path))


def parse_json(name: str, text: str) -> Entry:
    """The whole of a JSON document.

    Args:
        name: what messages call it.
        text: the document.

    Raises:
        RequestError: the text is not whole JSON, names a key twice or holds NaN or infinity.
    """
    try:
        document = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise RequestError(
            f"{name}: line {error.lineno}, column {error.colno}: not a whole JSON document ({error.msg}); "
            "the file may be truncated: save it again"
        ) from error
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{name}: not an acceptable JSON document ({error}); save it again") from error
    return Entry(name, "", document)


def read_toml(path: str | os.PathLike[str]) -> Entry:
    """The whole document of a TOML file.

    Raises:
        RequestError: the file cannot be read or is not TOML.
    """
    name, text = _text(path)
    try:
        return Entry(name, "", tomllib.loads(text))
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{name}: not a TOML document: {error}") from error


def write_atomically(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file so that a reader sees either the old file or the whole new one.

    Raises:
        RequestError: the place cannot be written.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
        temporary.replace(target)
    except OSError as error:
        absent = isinstance(error, FileNotFoundError | NotADirectoryError)
        advice = "choose a folder that exists" if absent else "choose another place, or make room there"
        raise RequestError(f"{target}: cannot be written ({error.strerror}); {advice}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _text(path: str | os.PathLike[str]) -> tuple[str, str]:
    name = os.fspath(path)
    try:
        return name, Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{name}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise RequestError(f"{name}: not a text file in UTF-8 ({error})") from error


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table: dict[str, object] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"the key {key!r} appears twice in one table")
        table[key] = value
    return table


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no number here")
