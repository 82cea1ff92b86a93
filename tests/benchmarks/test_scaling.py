"""The scaling benchmark as a program, at tiny sizes; no speed is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "scaling.py"


@pytest.mark.usefixtures("forked_files")
@pytest.mark.jobs
@pytest.mark.timeout(120)
def test_it_prints_what_was_asked_for() -> None:
    sizes = [
        "--tasks",
        "20",
        "--tasks",
        "40",
        "--memory-tasks",
        "20",
        "--memory-tasks",
        "30",
        "--ranks",
        "2",
        "--ranks",
        "3",
    ]
    command = [sys.executable, str(SCRIPT), *sizes, "--steps", "3", "--rounds", "1", "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert [entry["tasks"] for entry in found["replay"]] == [20, 40]
    assert [entry["ranks"] for entry in found["ranks"]] == [2, 3]
    assert [entry["tasks"] for entry in found["memory"]] == [20, 30]
    figures = [entry["us_per_task"] for entry in found["replay"]]
    figures += [entry["bytes_per_task"] for entry in found["memory"]]
    assert min(figures + [entry["us_per_rank_and_step"] for entry in found["ranks"]]) > 0
