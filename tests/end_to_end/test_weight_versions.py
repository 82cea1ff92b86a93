"""Pipelines without a flush over real processes: they train as lists of weights do, and who is killed is named."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from chained_stages import apart, batches, listed, pairs

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(120), pytest.mark.usefixtures("forked_launches")]

SCRIPT = Path(__file__).resolve().parent / "scripts" / "flowing.py"
STEPS, STOP_S = 30, 10.0


def launch(
    *arguments: str, transport: str, script: Path = SCRIPT, options: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    hosts = ("--ranks-per-node", "3") if transport == "shared" else ("--nodes", "3")
    run = [sys.executable, "-m", "maniple.cli", "run", *hosts, "--transport", transport, *options]
    command = [*run, str(script), *arguments]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize(("rule", "transport"), [("stash", "shared"), ("spectrain", "zmq")])
def test_processes_train_as_lists_of_weights_do(tmp_path: Path, rule: str, transport: str) -> None:
    run = launch(str(tmp_path / "out.json"), rule, transport=transport)
    _, errors = run.communicate(timeout=100)
    assert run.returncode == 0, errors
    out = json.loads((tmp_path / "out.json").read_text())
    first, last = (
        {name: torch.tensor(value, dtype=torch.float64) for name, value in out[when].items()}
        for when in ("first", "last")
    )
    losses, had = listed(first, batches(STEPS), rule, "momentum")
    assert out["losses"] == pytest.approx(losses, abs=1e-10)
    assert apart(pairs(last), [own[-1] for own in had]) < 1e-10


@pytest.mark.parametrize(
    ("rank", "batch", "transport"),
    [(2, 1, "shared"), (0, 15, "zmq"), (1, STEPS, "shared")],
    ids=["ramp", "steady", "drain"],
)
def test_a_rank_that_is_killed_without_a_flush_is_named(tmp_path: Path, rank: int, batch: int, transport: str) -> None:
    run = launch(str(tmp_path / "out.json"), "stash", str(rank), str(batch), transport=transport)
    assert run.stdout is not None
    pids = next(([int(word) for word in line.split()[1:]] for line in run.stdout if line.startswith("pids ")), [])
    assert len(pids) == 3, run.communicate()[1]
    begun = time.monotonic()
    try:
        _, errors = run.communicate(timeout=60)
    finally:
        run.kill()
    assert time.monotonic() - begun < STOP_S
    assert run.returncode == 1
    assert Counter(re.findall(r"^error: ", errors, re.MULTILINE))["error: "] == 1, errors
    assert f"rank {rank}" in errors
    assert "SIGKILL" in errors or "killed" in errors
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_run_that_was_killed_goes_on_from_its_checkpoint_with_a_new_ramp(tmp_path: Path) -> None:
    """The losses and weights after the checkpoint are those of a pipeline that was empty there: stages read its."""
    out, folder = tmp_path / "out.json", tmp_path / "saved"
    again = SCRIPT.with_name("flowing_again.py")
    run = launch(str(out), "stash", str(folder), transport="shared", script=again, options=("--max-restarts", "1"))
    _, errors = run.communicate(timeout=100)
    assert run.returncode == 0, errors
    assert "SIGKILL" in errors
    told = json.loads(out.read_text())
    assert told["attempt"] == 1
    begun, last = (
        {name: torch.tensor(value, dtype=torch.float64) for name, value in told[when].items()}
        for when in ("first", "last")
    )
    losses, had = listed(begun, batches(22)[10:], "stash", "descent")
    assert told["losses"] == pytest.approx(losses, abs=1e-10)
    assert apart(pairs(last), [own[-1] for own in had]) < 1e-10
