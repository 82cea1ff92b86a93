"""Wrong requests to whole programs: one clear error, the design's exit status, nothing left running."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import maniple as mp
from maniple.models import digits_cnn

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(120), pytest.mark.usefixtures("forked_launches")]

ROOT = Path(__file__).resolve().parents[2]
DIGITS = str(ROOT / "examples" / "digits.py")
FLOWING = str(Path(__file__).resolve().parent / "scripts" / "flow_refused.py")
ONE = ("--cores", "1")
"""A rank of as many threads as what is forked."""


def maniple(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "maniple.cli", *arguments]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, timeout=100, stdin=subprocess.DEVNULL
    )


def changed_plan(folder: Path, processors: int, **changes: object) -> str:
    """Save a plan of the digits network, with top-level entries replaced."""
    plan = mp.search(digits_cnn(64), mp.Machine.preset(f"cpu:{processors}"), strategy="data_parallel")
    path = folder / "plan.json"
    plan.save(path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, **changes}))
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [  # What several ranks refuse is told once: the misspelt strategy, and tests/end_to_end/test_launch.py.
        (("run", "missing.py"), "missing.py"),
        (("run", "--nodes", "0", DIGITS), "--nodes"),
        (("run", "--launcher", "srun", DIGITS), "local"),
        (("run", "--nodes", "2", DIGITS, "--strategy", "expret"), "did you mean 'expert'"),
        (("run", *ONE, "--mapper", "defalt", DIGITS), "did you mean 'default'"),
        (("run", *ONE, DIGITS, "--timeline", "no/such/folder/step.json"), "no/such/folder"),
        (("run", DIGITS, "--plan", "missing.json"), "missing.json"),  # nothing is forked: interpreters of their own
        (("runn",), "run"),
    ],
)
def test_a_wrong_request_ends_with_status_2(tmp_path: Path, arguments: tuple[str, ...], expected: str) -> None:
    ended = maniple(*arguments, cwd=tmp_path)
    assert ended.returncode == 2, ended.stderr
    assert expected in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("processors", "changes", "expected"),
    [
        (4, {}, "processor"),
        (2, {"wish": 1}, "wish"),  # what else may be wrong in a file: tests/operators/plan/test_plan.py
    ],
)
def test_a_plan_that_cannot_run_is_refused_before_the_first_step(
    tmp_path: Path, processors: int, changes: dict[str, object], expected: str
) -> None:
    plan = changed_plan(tmp_path, processors, **changes)
    ended = maniple("run", *ONE, DIGITS, "--plan", plan, cwd=tmp_path)
    assert ended.returncode == 2, ended.stderr
    assert expected in ended.stderr
    assert "epoch" not in ended.stdout


def test_a_truncated_plan_is_refused(tmp_path: Path) -> None:
    path = Path(changed_plan(tmp_path, 2))
    path.write_text(path.read_text()[:100])
    ended = maniple("run", *ONE, DIGITS, "--plan", str(path), cwd=tmp_path)
    assert ended.returncode == 2
    assert "plan.json" in ended.stderr


def test_an_unwritable_timeline_is_refused(tmp_path: Path) -> None:
    ended = maniple("run", *ONE, DIGITS, "--epochs", "1", "--timeline", str(tmp_path), cwd=tmp_path)
    assert ended.returncode == 2, ended.stderr
    assert f"cannot write the timeline to {tmp_path}" in ended.stderr


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("batch_norm", "semantics.batch_norm: expected local_stats beside semantics.weights"),
        ("optimizer", "semantics.weights: expected an optimizer that gathers gradients"),
        ("stage", "semantics.weights: expected at least 2 stages, for one stage has no versions"),
    ],
)
def test_a_pipeline_without_a_flush_that_cannot_be_is_refused(tmp_path: Path, what: str, expected: str) -> None:
    ended = maniple("run", *ONE, "--processors", "2", FLOWING, what, cwd=tmp_path)
    assert ended.returncode == 2, ended.stderr
    assert expected in ended.stderr
    assert "loss" not in ended.stdout


def test_steps_where_a_run_was_meant_are_told_and_a_batch_of_another_size_drains(tmp_path: Path) -> None:
    ended = maniple("run", *ONE, "--processors", "2", FLOWING, "size", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("loss") == 4
    assert ended.stderr.count("trainer.run(batches) keeps them at work, trainer.step(batch) cannot") == 1
