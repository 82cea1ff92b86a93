"""Makes the modules of this folder that hold no tests importable by those that do, and a session to launch in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "laws"))  # thread_ranks

from launched import made

from maniple.runtime.control.world import World
from maniple.runtime.session.session import Session


@pytest.fixture
def session() -> Iterator[Session]:
    """One rank of two processors."""
    session = made(World.solo(processors=2, cores=1))
    yield session
    session.runtime.close()
