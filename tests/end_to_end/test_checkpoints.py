"""Checkpoints of whole runs: ranks killed as they save or as they adopt a plan, and runs that go on elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from maniple.checkpoint import find, read_manifest

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(240), pytest.mark.usefixtures("forked_launches")]

SCRIPT = Path(__file__).resolve().parent / "scripts" / "checkpointed.py"


def run(logs: Path, nodes: int, what: str, folder: Path) -> tuple[int, dict[int, float], str]:
    """The exit status of a run, the losses that it printed by step, and what it said."""
    command = [sys.executable, "-m", "maniple.cli", "run", "--nodes", str(nodes), "--log-dir", str(logs), str(SCRIPT)]
    ended = subprocess.run([*command, what, str(folder)], capture_output=True, text=True, timeout=200, check=False)
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("[")]
    return ended.returncode, dict(lines), ended.stderr


def test_a_run_whose_rank_is_killed_goes_on_from_its_last_checkpoint_here_and_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    status, expected, said = run(tmp_path, 2, "whole", folder)
    assert (status, len(expected)) == (0, 8), said
    status, _, said = run(tmp_path, 2, "kill", folder)
    assert status == 1
    assert "node 1 (rank 1) was killed by signal 9 (SIGKILL)" in said
    begun = read_manifest(find(folder)[0]).step
    assert begun >= 5, "the save of step 4 had returned"
    status, losses, said = run(tmp_path, 2, "resume", folder)
    assert (status, losses) == (0, {step: expected[step] for step in range(begun, 8)}), said  # bit for bit
    status, losses, said = run(tmp_path, 3, "resume", folder)
    assert status == 0, said
    assert losses == pytest.approx({step: expected[step] for step in range(begun, 8)}, rel=1e-10)
    status, losses, said = run(tmp_path, 2, "other", folder)
    assert (status, losses) == (2, {})
    assert "another fingerprint than graph 'small'" in said
    assert len([line for line in said.splitlines() if line.startswith("error: ")]) == 1


def test_a_rank_that_is_killed_while_a_plan_is_adopted_stops_all_and_is_named(tmp_path: Path) -> None:
    status, losses, said = run(tmp_path, 2, "adopt", tmp_path / "saved")
    assert (status, sorted(losses)) == (1, [0, 1, 2, 3])
    assert "node 1 (rank 1) was killed by signal 9 (SIGKILL)" in said
    assert "trainer.adopt" in said
