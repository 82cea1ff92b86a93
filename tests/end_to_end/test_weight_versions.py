"""Pipelines without a flush over real processes: they train as lists of weights do, and who is killed is named."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
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


@pytest.mark.parametrize(("rules", "transport"), [("stash,2bw", "shared"), ("spectrain,2bw", "zmq")])
def test_processes_train_as_lists_of_weights_do(tmp_path: Path, rules: str, transport: str) -> None:
    run = launch(str(tmp_path / "out.json"), rules, transport=transport)
    _, errors = run.communicate(timeout=100)
    assert run.returncode == 0, errors
    told = json.loads((tmp_path / "out.json").read_text())
    assert list(told) == rules.split(",")
    for rule, out in told.items():
        first, last = (
            {name: torch.tensor(value, dtype=torch.float64) for name, value in out[when].items()}
            for when in ("first", "last")
        )
        losses, had = listed(first, batches(STEPS), rule, "momentum")
        assert out["losses"] == pytest.approx(losses, abs=1e-10)
        assert apart(pairs(last), [own[-1] for own in had]) < 1e-10


def bodies(place: Path, count: int) -> list[list[list[tuple[float, float]]]]:
    """By rank and run the beginnings and ends of the bodies of a recording, of runs in which all ranks have so many.

    In ramp and drain rows that have nothing to do take no time.
    """
    events = json.loads(place.read_text())["traceEvents"]
    found: dict[int, dict[int, list[tuple[float, float]]]] = {}
    for event in events:
        lasted = event["name"].startswith("lasting") and event.get("dur", 0) > 5e3
        if lasted and event["cat"] == "task" and event["pid"] < 3:
            own = found.setdefault(event["args"]["run"], {}).setdefault(event["pid"], [])
            own.append((event["ts"], event["ts"] + event["dur"]))
    full = [run for run, own in sorted(found.items()) if [len(own.get(rank, ())) for rank in range(3)] == [count] * 3]
    assert len(full) >= 6
    assert full == list(range(full[0], full[-1] + 1))
    return [[sorted(found[run][rank]) for run in full] for rank in range(3)]


@pytest.mark.parametrize(
    ("rule", "parts", "transport", "ahead"),
    [("stash", 1, "shared", -1), ("stash", 1, "zmq", -1), ("2bw", 3, "shared", 1)],
)
def test_lanes_of_balanced_stages_never_wait_for_a_pass(
    tmp_path: Path, rule: str, parts: int, transport: str, ahead: int
) -> None:
    """In the steady state each rank begins a body before those that others have at the same time have ended.

    Counted by place in a run: who must wait for a pass waits in every run, who was held up does not. Of a mini-batch
    that is not cut a stage is a body behind the one before it, under 2BW a body ahead:

        stash     rank 0    F3 B1 F4 B2 F5        2bw     rank 0    b0 F0 b1 F1 b2 F2
                  rank 1    B1 F3 B2 F4 B3                rank 1    f2 b1 F0 b2 F1 b0
    """
    place = tmp_path / "run.json"
    script = SCRIPT.with_name("lockstep.py")
    run = launch(rule, str(parts), transport=transport, script=script, options=("--record", str(place)))
    _, errors = run.communicate(timeout=100)
    assert run.returncode == 0, errors
    lanes = [[body for run in own for body in run] for own in bodies(place, 2 * parts)]
    for one, other in pairwise(lanes):
        first, second = one[max(0, -ahead) :], other[max(0, ahead) :]
        together = [a[0] < b[1] and b[0] < a[1] for a, b in zip(first, second, strict=False)]
        for turn in range(2 * parts):
            found = together[turn :: 2 * parts]
            assert sum(found) > len(found) / 2, f"body {turn} of a run waited in {found.count(False)} of {len(found)}"


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
