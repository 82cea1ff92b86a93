"""The benchmark as a program, of two ranks; no speed is asserted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "rank_start.py"


@pytest.mark.jobs
@pytest.mark.timeout(180)
def test_it_prints_what_each_job_took() -> None:
    command = [sys.executable, str(PROGRAM), "--ranks", "2", "--ways", "forked"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr
    ranks, way, joined, ended, processor, _ = done.stdout.splitlines()[-1].split()
    assert (ranks, way) == ("2", "forked")
    assert 0 < float(joined.removesuffix("s")) <= float(ended.removesuffix("s"))
    assert float(processor.removesuffix("s")) > 0
