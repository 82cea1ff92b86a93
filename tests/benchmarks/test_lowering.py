"""The lowering benchmark as a program, at tiny sizes; no speed is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "lowering.py"


@pytest.mark.usefixtures("forked_files")
def test_it_prints_what_was_asked_for() -> None:
    sizes = [
        "--model",
        "lenet",
        "--image",
        "32",
        "--ranks",
        "2",
        "--world",
        "2",
        "--world",
        "4",
        "--part",
        "2",
        "--tasks",
        "40",
        "--json",
    ]
    ran = subprocess.run([sys.executable, str(SCRIPT), *sizes], capture_output=True, text=True, check=True)
    found = json.loads(ran.stdout)["results"]
    steps = ["lenet, data_parallel", "lenet, random"]
    worlds = ["lenet, world of h100"] * 2
    assert [entry["what"] for entry in found] == [
        *steps,
        *worlds,
        "lenet, part of rank 1",
        "trace, chain",
        "trace, stencil",
    ]
    assert [entry["rows"] for entry in found[5:]] == [40, 40]
    assert 0 < found[4]["rows"] < found[2]["rows"]
    assert found[4]["lanes_s"] <= found[4]["seconds"]
    assert [entry["ranks"] for entry in found[2:4]] == [2, 4]
    assert found[2]["rows"] < found[3]["rows"] < 3 * found[2]["rows"]
    assert min(entry["us_per_row"] for entry in found) > 0
