"""Faults while two nodes train: every rank stops within seconds, with one message that names the rank at fault."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from levelled import levelled

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(120), pytest.mark.usefixtures("forked_launches")]

SCRIPTS = Path(__file__).resolve().parent / "scripts"
SCRIPT = SCRIPTS / "train.py"
STOP_S = 10.0
FOR_EVER = "1000000"


def launch(logs: Path, *arguments: str, script: Path = SCRIPT, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "maniple.cli",
        "run",
        "--nodes",
        "2",
        "--log-dir",
        str(logs),
        *options,
        str(script),
        *arguments,
    ]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def pids_of(run: subprocess.Popen[str]) -> list[int]:
    """Wait until the ranks train, and give their processes."""
    assert run.stdout is not None
    for line in run.stdout:
        if line.startswith("pids "):
            return [int(word) for word in line.split()[1:]]
    raise AssertionError(f"the ranks never trained: {run.communicate()[1]}")


def assert_gone(pids: list[int]) -> None:
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def finish(run: subprocess.Popen[str]) -> tuple[int, str, float]:
    begun = time.monotonic()
    try:
        _, errors = run.communicate(timeout=60)
    finally:
        run.kill()
    return run.returncode, errors, time.monotonic() - begun


# Of `evaluate`, `other-batch` and `bad-label` the same is told whichever rank it was.
@pytest.mark.parametrize(
    ("kind", "rank"),
    [("raise", 0), ("raise", 1), ("leave", 0), ("leave", 1), ("evaluate", 0), ("bad-label", 1), ("other-batch", 1)],
)
def test_a_rank_that_misbehaves_stops_all(tmp_path: Path, rank: int, kind: str) -> None:
    run = launch(tmp_path, FOR_EVER, str(rank), kind)
    pids = [] if kind == "other-batch" else pids_of(run)
    status, errors, seconds = finish(run)
    assert status == 1, errors
    assert seconds < (60 if kind == "other-batch" else STOP_S)  # the former includes the start
    assert len(re.findall(r"^error: ", errors, re.MULTILINE)) == 1, errors
    message = next(line for line in errors.splitlines() if line.startswith("error: "))
    # With two ranks nobody can tell which of the two diverged; rank 0's calls are the reference.
    blamed = 1 if kind in {"evaluate", "other-batch"} else rank
    assert f"node {blamed} (rank {blamed})" in message or kind == "bad-label"
    assert re.search(r"node [01] \(rank [01]\)", message)
    expected = {
        "raise": "a bug in the user's program",
        "evaluate": "trainer.evaluate",
        "bad-label": "cross_entropy.forward",
        "other-batch": "inputs",
        "leave": "trainer.step 5",
    }
    assert expected[kind] in errors
    assert_gone(pids)


# What stops another rank than the reference is also seen in test_launch.py, between calls.
@pytest.mark.parametrize(("rank", "number"), [(0, signal.SIGKILL), (0, signal.SIGSTOP), (1, signal.SIGKILL)])
def test_a_rank_that_is_killed_or_frozen_stops_all(tmp_path: Path, rank: int, number: int) -> None:
    run = launch(tmp_path, FOR_EVER, "-1", "none")
    pids = pids_of(run)
    os.kill(pids[rank], number)
    status, errors, seconds = finish(run)
    assert status == 1
    assert seconds < STOP_S
    assert f"node {rank} (rank {rank})" in errors
    assert "trainer.step" in errors
    assert_gone(pids)


@pytest.mark.parametrize(("rank", "transport"), [(2, "shared"), (1, "zmq")])
def test_a_rank_that_is_killed_while_collectives_go_in_levels_stops_all(
    tmp_path: Path, rank: int, transport: str
) -> None:
    """Every rank leads in its host for somebody, so others wait for what it would send on."""
    levelled(2, 2).save(file := tmp_path / "levels.toml")
    options = ("--ranks-per-node", "2", "--machine", str(file), "--transport", transport)
    run = launch(tmp_path, FOR_EVER, "-1", "none", options=options)
    pids = pids_of(run)
    os.kill(pids[rank], signal.SIGKILL)
    status, errors, seconds = finish(run)
    assert status == 1
    assert seconds < STOP_S
    assert f"node {rank // 2} (rank {rank}) was killed by signal 9 (SIGKILL)" in errors
    assert_gone(pids)


@pytest.mark.parametrize(("rank", "transport"), [(0, "shared"), (1, "shared"), (1, "zmq")])
def test_a_rank_that_is_killed_between_launches_that_are_not_traced_stops_all(
    tmp_path: Path, rank: int, transport: str
) -> None:
    run = launch(tmp_path, script=SCRIPTS / "untraced.py", options=("--transport", transport))
    pids = pids_of(run)
    if transport == "shared" and sys.platform == "linux":
        maps = Path(f"/proc/{pids[rank]}/maps").read_text(encoding="utf-8")
        assert f"memfd:maniple-{1 - rank}" in maps, "tiles go through the other rank's memory"
    os.kill(pids[rank], signal.SIGKILL)
    status, errors, seconds = finish(run)
    assert status == 1
    assert seconds < STOP_S
    messages = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert len(messages) == 1, errors
    assert f"node {rank} (rank {rank}) was killed by signal 9 (SIGKILL)" in messages[0]
    assert "Traceback" not in errors
    assert_gone(pids)  # and with them their memory, which has no name
    assert [path for path in Path("/dev/shm").glob("*") if "maniple" in path.name] == []
