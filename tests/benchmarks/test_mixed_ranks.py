"""Ranks of two kinds, processes and threads, under the real coordinator, in a small form of the benchmark of 64."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "mixed_ranks.py"


@pytest.mark.ranks
@pytest.mark.timeout(180)
def test_they_join_within_twenty_seconds_and_take_their_steps() -> None:
    """What they exchange is looked at by every rank; how long steps take is not asserted."""
    sizes = ["--ranks", "8", "--per-host", "2", "--workers", "2", "--processes", "2", "--steps", "3"]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *sizes], capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stderr
    ranks, agents, processes, joined, *times, status = done.stdout.splitlines()[-1].split()
    assert (ranks, agents, processes, status) == ("8", "4", "2", "0")
    assert float(joined.removesuffix("s")) < 20
    step, _, coordinator, _, exchange, _, its_part, *_ = times
    assert float(step) > float(coordinator) > 0
    assert float(exchange) > float(its_part) > 0
