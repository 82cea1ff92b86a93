"""Runs on other machines than the one that is found: null devices, and one from a file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import maniple as mp

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(180), pytest.mark.usefixtures("forked_launches")]

SCRIPT = Path(__file__).resolve().parent / "scripts" / "digits.py"


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "maniple.cli", "run", "--nodes", "2", *options, str(SCRIPT)]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)


def told(*options: str) -> dict[str, Any]:
    found = run(*options)
    assert found.returncode == 0, found.stderr
    document: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return document


@pytest.fixture(scope="module")
def on_cpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two ranks tell whose machine is one from a file."""
    file = tmp_path_factory.mktemp("machine") / "two.toml"
    mp.Machine.cpu(1, ranks=2, name="as I say").save(file)
    return told("--machine", str(file))


def test_two_ranks_with_null_devices_compute_the_bits_of_two_ranks_with_cpus(on_cpus: dict[str, Any]) -> None:
    on_devices = told("--device", "null")
    assert on_devices["kinds"] == ["gpu", "gpu"]
    assert on_devices["predicted"] == on_devices["measured"] > 0
    for key in ("losses", "parameters", "predicted", "measured"):
        assert on_devices[key] == on_cpus[key], key


def test_a_run_is_the_machine_that_it_is_given(on_cpus: dict[str, Any]) -> None:
    assert on_cpus["machine"] == "as I say"
    assert on_cpus["kinds"] == ["cpu", "cpu"]


def test_a_machine_of_other_ranks_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "three.toml"
    mp.Machine.cpu(1, ranks=3).save(file)
    found = run("--machine", str(file))
    assert found.returncode == 2
    assert found.stderr.startswith(f"error: --machine {file}: it has 3 ranks, and 2 are launched"), found.stderr
    assert run("--machine", str(tmp_path / "none.toml")).returncode == 2
