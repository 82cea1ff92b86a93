"""Runs whose collectives do not go direct: the bytes that were predicted, the same bits over both transports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from levelled import levelled, paired

from maniple.runtime.machine.machine import Machine

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(180), pytest.mark.usefixtures("forked_launches")]

SCRIPT = Path(__file__).resolve().parent / "scripts" / "digits.py"


def told(file: Path, *options: str) -> dict[str, Any]:
    """What rank 0 of four tells, of as many hosts as the machine has, which one host emulates."""
    hosts = len(Machine.load(file).hosts)
    command = [sys.executable, "-m", "maniple.cli", "run", "--nodes", str(hosts), "--ranks-per-node", str(4 // hosts)]
    found = subprocess.run(
        [*command, "--machine", str(file), *options, str(SCRIPT)],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    document: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return document


@pytest.mark.parametrize(("machine", "plan"), [(levelled(2, 2), "levels"), (paired(4), "tree")], ids=["levels", "tree"])
def test_processes_move_what_was_predicted_and_fold_the_same_bits_over_both_transports(
    tmp_path: Path, machine: Machine, plan: str
) -> None:
    machine.save(file := tmp_path / "machine.toml")
    shared, messages = told(file, "--transport", "shared"), told(file, "--transport", "zmq")
    assert any(name.startswith(plan) for name in shared["plans"])
    assert shared["predicted"] == shared["measured"] > 0
    assert shared == messages
