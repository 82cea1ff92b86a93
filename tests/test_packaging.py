"""The wheel holds the whole package and nothing else, and a checkout without links cannot be built."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("regions", "runtime", "operators", "mappers", "strategies")
FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")


def settings() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)


def entry_points() -> list[tuple[str, str, str]]:
    project = settings()["project"]
    groups = {"console": project["scripts"], **project["entry-points"]}
    return [(group, name, target) for group, entries in groups.items() for name, target in entries.items()]


def modules(package: Path) -> set[str]:
    """The files that belong into a wheel, as paths below ``package``, through its links."""
    found = {path.relative_to(package) for path in package.glob("*.py")}
    for layer in LAYERS:
        found |= {layer / path.relative_to(package / layer) for path in (package / layer).resolve().rglob("*.py")} if (
            False
        ) else {Path(layer) / path.relative_to((package / layer).resolve()) for path in (package / layer).resolve().rglob("*.py")}
    return {f"maniple/{path.as_posix()}" for path in found} | {"maniple/py.typed"}
