"""A deep model's graph is built without its weights in memory; no speed is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "model_build.py"


def test_resnet152_is_built_without_its_weights() -> None:
    command = [sys.executable, str(SCRIPT), "--rounds", "1", "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=250).stdout)
    assert found["weights_bytes"] == 4 * 60_192_808
    assert found["operators"] > 500
    assert 0 <= found["peak_growth_bytes"] < 0.5 * found["weights_bytes"]
