"""Makes the modules of this folder that hold no tests importable by those that do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).resolve().parent))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A law that hangs is broken: no test of this folder may take as long as the suite's default."""
    here = Path(__file__).resolve().parent
    seconds = max(120.0, 1.2 * settings().max_examples)  # a search for counterexamples takes longer
    for item in items:
        if here in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(seconds))
