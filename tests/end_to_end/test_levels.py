"""Runs of several hosts whose collectives go in levels: the bytes that were predicted, the same bits over both ways."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from levelled import levelled

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(180)]

SCRIPT = Path(__file__).resolve().parent / "scripts" / "digits.py"


def told(file: Path, *options: str) -> dict[str, Any]:
    """What rank 0 of four tells, of two hosts that one host emulates."""
    command = [sys.executable, "-m", "maniple.cli", "run", "--nodes", "2", "--ranks-per-node", "2"]
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


def test_processes_move_what_was_predicted_and_fold_the_same_bits_over_both_transports(tmp_path: Path) -> None:
    levelled(2, 2).save(file := tmp_path / "levels.toml")
    shared, messages = told(file, "--transport", "shared"), told(file, "--transport", "zmq")
    assert shared["plans"] == ["levels"]
    assert shared["predicted"] == shared["measured"] > 0
    assert shared == messages
