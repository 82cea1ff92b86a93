"""A whole run that is reported: the launcher's last lines, once, whether trainers were closed or not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(180), pytest.mark.usefixtures("forked_launches")]

PROGRAM = """
import sys
import torch
import maniple as mp

def network(name):
    g = mp.Graph(name)
    x, y = g.input("x", (8, 5)), g.input("y", (8,), dtype="int64")
    g.loss(g.cross_entropy(g.linear(g.relu(g.linear(x, 6)), 3), y))
    return g

def trained(name, steps):
    graph = network(name)
    plan = mp.search(graph, mp.Machine.preset("cpu:2x1"))
    trainer = mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.1))
    for _ in range(steps):
        trainer.step(torch.ones(8, 5), torch.ones(8, dtype=torch.int64))
    return trainer

if "trains" in sys.argv:
    with trained("closed", 3):
        pass
    left_open = trained("open", 2)
    idle = trained("idle", 0)
mp.world()
print("the program's last words")
if "fails" in sys.argv:
    raise ValueError("no more")
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "maniple.cli", "run", "--nodes", "2", "--report", "program.py", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.simulator
def test_the_launcher_prints_every_trainers_report_last_and_once(tmp_path: Path) -> None:
    ended = run(tmp_path, "trains")
    assert ended.returncode == 0, ended.stderr
    words, _, reports = ended.stdout.partition("the program's last words\n")
    assert words == ""
    heads = [line for line in reports.splitlines() if "report of" in line]
    assert heads == [
        "report of closed under data_parallel, 3 steps, costs analytic",
        "report of open under data_parallel, 2 steps, costs analytic",
        "no report of idle: no step has run yet; call step first",
    ]
    for moved in re.findall(r"^bytes +([\d,]+) +([\d,]+) ", reports, re.MULTILINE):
        assert moved[0] == moved[1] != "0"
    assert len(re.findall(r"^memory .* bytes at rank ", reports, re.MULTILINE)) >= 2


def test_a_run_without_a_step_says_so(tmp_path: Path) -> None:
    ended = run(tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "the program's last words\nno trainer of this run took a step\n"


def test_a_run_that_fails_ends_with_its_error(tmp_path: Path) -> None:
    ended = run(tmp_path, "fails")
    assert ended.returncode == 1
    assert ended.stdout == "the program's last words\n"
