"""What every test folder shares: how hypothesis draws, and where published measurements lie."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
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


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What must not run side by side on two workers is one worker's.

    Tests that start rank processes: their deadlines are for ranks that have the cores. Tests that simulate: the first
    of a new checkout compiles the simulator, which takes a minute and must not happen twice.
    """
    for item in items:
        for group in ("ranks", "simulator"):
            if item.get_closest_marker(group) is not None:
                item.add_marker(pytest.mark.xdist_group(group))
                break
        if item.get_closest_marker("simulator") is not None:
            item.add_marker(pytest.mark.timeout(900))


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


@pytest.fixture
def pythons_handler() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, whatever other tests, or a shell in whose background they run, have left."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
