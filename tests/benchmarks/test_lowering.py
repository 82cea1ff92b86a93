"""The lowering benchmark as a program, at tiny sizes; no speed is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "lowering.py"


def test_it_prints_what_was_asked_for() -> None:
    sizes = ["--model", "lenet", "--image", "32", "--ranks", "2", "--tasks", "40", "--json"]
    ran = subprocess.run([sys.executable, str(SCRIPT), *sizes], capture_output=True, text=True, check=True)
    found = json.loads(ran.stdout)["results"]
    steps = ["lenet, data_parallel", "lenet, random"]
    assert [entry["what"] for entry in found] == [*steps, "trace, chain", "trace, stencil"]
    assert [entry["rows"] for entry in found[2:]] == [40, 40]
    assert min(entry["us_per_row"] for entry in found) > 0
