"""Makes the modules of this folder that hold no tests importable by those that do, and launches that are forked."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))


@pytest.fixture(scope="session")
def forking() -> Iterator[type[subprocess.Popen[Any]]]:
    """A `Popen` whose launches are forked from one process of the session, where processes can be."""
    from forking import forked

    if sys.platform != "linux":
        yield subprocess.Popen
        return
    with forked() as popen:
        yield popen


@pytest.fixture
def forked_launches(forking: type[subprocess.Popen[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """`maniple run`, started through `subprocess`, is forked: what it does is real, and it imports nothing."""
    monkeypatch.setattr(subprocess, "Popen", forking)
