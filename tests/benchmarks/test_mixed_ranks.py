"""Ranks of two kinds, processes and threads, under the real coordinator, in a small form of the benchmark of 64."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "mixed_ranks.py"


def lines_of(*arguments: str) -> list[list[str]]:
    """The words of each line that the benchmark says, without units."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stderr
    return [[word for word in line.split() if word not in {"ms", "KiB"}] for line in done.stdout.splitlines()]


@pytest.mark.ranks
@pytest.mark.timeout(180)
def test_they_join_within_twenty_seconds_and_take_their_steps() -> None:
    """What they exchange is looked at by every rank; how long steps take is not asserted."""
    said = lines_of("--ranks", "8", "--per-host", "2", "--workers", "2", "--processes", "2", "--steps", "3")
    ranks, agents, processes, joined, alone, step, coordinator, exchange, its_part, _, status = said[-1]
    assert (ranks, agents, processes, status) == ("8", "4", "2", "0")
    assert float(joined.removesuffix("s")) < 20
    assert float(alone) > float(coordinator) > 0
    assert float(step) > float(coordinator)
    assert float(exchange) > float(its_part) > 0


@pytest.mark.ranks
@pytest.mark.timeout(180)
def test_what_a_rank_runs_in_a_step_does_not_depend_on_how_many_there_are() -> None:
    """Calls of Python and from Python in all threads of the ranks: 285 and 311 for 4 and for 16 ranks, with beats."""
    said = lines_of("--ranks", "4", "16", "--workers", "2", "--processes", "0", "--steps", "5", "--count")
    (few,), (many,) = ([line for line in said if line[0] == ranks] for ranks in ("4", "16"))
    assert 100 < float(many[5]) < 1.2 * float(few[5])
