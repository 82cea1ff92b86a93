"""What every test folder shares: how hypothesis draws, and where published measurements lie."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The same examples on every run (law 8), and no deadline: how fast a test machine is proves nothing.
settings.register_profile(
    "maniple",
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
# `HYPOTHESIS_PROFILE=search pytest ...` looks for new counterexamples instead.
settings.register_profile("search", deadline=None, print_blob=True, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "maniple"))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder that holds pyproject.toml."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def reference_data() -> Path:
    """The folder of published measurements, named by MANIPLE_REFERENCE_DATA; without it the test is skipped."""
    named = os.environ.get("MANIPLE_REFERENCE_DATA")
    if named is None:
        pytest.skip("MANIPLE_REFERENCE_DATA names no folder of published measurements")
    folder = Path(named)
    if not folder.is_dir():
        pytest.fail(f"MANIPLE_REFERENCE_DATA names {folder}, which is no folder")
    return folder
