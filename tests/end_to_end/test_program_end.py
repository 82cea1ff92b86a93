"""The end of a program: what it launched still runs, and a failure that nobody waited for is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(120)]

PROGRAM = """
import sys, time
import maniple as mp

@mp.task
def work(x: mp.ReadWrite, kind: str) -> None:
    if kind == "raise":
        raise ValueError("broken")
    if kind == "exit":
        sys.exit(0)
    if kind == "nested":
        mp.fence()
    time.sleep(0.05)
    open(sys.argv[2], "a").write("done\\n")

X = mp.region((4,))
X.fill(0.0)
for _ in range(5):
    mp.launch(work, X, sys.argv[1])
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def run(command: list[str], program: Path, kind: str) -> subprocess.CompletedProcess[str]:
    output = program.with_name("output")
    return subprocess.run(
        [*command, str(program), kind, str(output)], capture_output=True, text=True, check=False, timeout=60
    )


ALONE = [sys.executable]
LAUNCHED = [sys.executable, "-m", "maniple.cli", "run", "--nodes", "2"]


@pytest.mark.parametrize("command", [ALONE, LAUNCHED])
def test_a_program_without_a_fence_still_runs_what_it_launched(command: list[str], program: Path) -> None:
    ended = run(command, program, "work")
    assert ended.returncode == 0, ended.stderr
    assert program.with_name("output").read_text().count("done") == 5


@pytest.mark.parametrize("command", [ALONE, LAUNCHED])
@pytest.mark.parametrize(("kind", "cause"), [("raise", "broken"), ("exit", "SystemExit"), ("nested", "inside a task")])
def test_a_task_that_failed_unseen_fails_the_program(command: list[str], program: Path, kind: str, cause: str) -> None:
    ended = run(command, program, kind)
    assert ended.returncode == 1
    assert cause in ended.stderr
    assert "work[]@p0" in ended.stderr
