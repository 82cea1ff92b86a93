"""`benchmarks/gpu_checks.py` runs whole on null devices, with no more packages than a machine with a GPU may have."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BARE = """
import runpy, sys

for absent in ("zmq", "click", "rich", "sklearn"):
    sys.modules[absent] = None

sys.path.insert(0, sys.argv[1])
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.timeout(900)
def test_every_check_runs_on_a_null_device_and_finds_nothing_wrong(tmp_path: Path) -> None:
    folder, trace = ROOT / "benchmarks", tmp_path / "trace.json"
    arguments = ["--device", "null", "--small", "--recording", str(trace)]
    found = subprocess.run(
        [sys.executable, "-c", BARE, str(folder), str(folder / "gpu_checks.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=840,
    )
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert [line for line in lines if "error" in line and isinstance(line["error"], str)] == [], found.stderr
    assert found.returncode == 0, found.stdout + found.stderr
    order = ["doctor", "law1", "ranks", "nccl", "digits", "kernels", "steps", "chain"]
    order += ["memory", "capture", "prediction", "recording"]
    assert list(dict.fromkeys(line["check"] for line in lines)) == order
    assert not lines[0]["wheels"]["zmq"]
    assert all(line["right"] for line in lines if "right" in line)
    assert "traceEvents" in json.loads(trace.read_text(encoding="utf-8"))
