"""A whole run, recorded: one file, from rank 0, with what every rank did."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(90), pytest.mark.usefixtures("forked_launches")]

PROGRAM = """
import maniple as mp

@mp.task
def double(x: mp.ReadWrite):
    x.mul_(2)

x = mp.region((4, 2))
x.fill(1.0)
mp.index_launch(double, (2, 1), x[mp.blocks((2, 1))])
"""


def recorded(folder: Path, target: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "maniple.cli", "run", "--nodes", "2", "--record", target, "program.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_recorded_run_leaves_one_timeline(tmp_path: Path) -> None:
    ended = recorded(tmp_path, "run.json")
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    ran = sorted((event["pid"], event["name"]) for event in events if event.get("cat") == "task")
    doubled = [(0, "__main__.double[0,0]@p0"), (1, "__main__.double[1,0]@p1")]
    assert ran == sorted([*doubled, (0, "fill[]@p0"), (1, "fill[]@p1'1")])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["program.py", "run.json"]


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    ended = recorded(tmp_path, "missing/run.json")
    assert ended.returncode == 2
    assert "--record missing/run.json" in ended.stderr
