"""Runs that go on after a failure: the losses are those of a run in which nothing failed, and the cost is told."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from namespaces import IP, hosts, reason

WHY = reason()
pytestmark = [pytest.mark.ranks, pytest.mark.timeout(240)]

SCRIPT = Path(__file__).resolve().parent / "scripts" / "persistent.py"
STEPS = 11


def run(folder: Path, fault: str, *options: str) -> tuple[int, list[tuple[int, float]], str]:
    """The exit status of a run, the steps and losses that it printed, and what it said."""
    command = [sys.executable, "-m", "maniple.cli", "run", "--nodes", "2", "--log-dir", str(folder / "logs"), *options]
    program = [str(SCRIPT), str(folder / "saved"), str(STEPS), fault]
    ended = subprocess.run([*command, *program], capture_output=True, text=True, timeout=200, check=False)
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("[")]
    return ended.returncode, [(step, loss) for step, loss in lines], ended.stderr


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    status, losses, said = run(tmp_path_factory.mktemp("whole"), "none")
    assert (status, [step for step, _ in losses]) == (0, list(range(STEPS))), said
    return dict(losses)


def check_killed(losses: list[tuple[int, float]], said: str, expected: dict[int, float]) -> None:
    """The second attempt goes on from the checkpoint of step 5, with the same losses to the bit."""
    first = losses[: [step for step, _ in losses].index(6, 7)]
    again = losses[len(first) :]
    assert [step for step, _ in first][:7] == list(range(7))
    assert again == [(step, expected[step]) for step in range(6, STEPS)]  # no sample is lost or repeated
    assert said.count("the run begins again, for the 1st time of at most 2") == 1
    assert "was killed by signal 9 (SIGKILL)" in said
    cost = re.search(r"cost: (\d) steps to be done again, .* until all ranks had ended, .* in all", said)
    assert cost is not None, said
    assert int(cost[1]) <= 2
    assert re.search(rf"  2: 2 ranks, .* s, steps 6 to {STEPS}; done", said)


def test_a_run_that_failed_goes_on_with_the_losses_of_one_that_did_not(
    tmp_path: Path, expected: dict[int, float]
) -> None:
    status, losses, said = run(tmp_path, "kill", "--max-restarts", "2")
    assert status == 0, said
    check_killed(losses, said, expected)
    assert (tmp_path / "logs" / "attempt-1" / "rank-0.log").exists()


@pytest.mark.skipif(WHY is not None, reason=str(WHY))
def test_so_does_one_whose_agents_users_start(tmp_path: Path, expected: dict[int, float]) -> None:
    """Agents come again by themselves, as long as whoever leads says so."""
    with hosts("u") as pair:
        agents = []
        for node, host in enumerate(pair):
            place = ["--nnodes", "2", "--node-rank", str(node), "--head", "10.77.0.1:29400", "--cores", "1"]
            more = ["--key", str(tmp_path / "key"), "--log-dir", str(tmp_path / "logs")]
            again = ["--max-restarts", "2"] if node == 0 else []
            program = [str(SCRIPT), str(tmp_path / "saved"), str(STEPS), "kill"]
            command = [sys.executable, "-m", "maniple.cli", "run", *place, *more, *again, *program]
            agents.append(host.start(*command))
        try:
            (out, said), _ = [agent.communicate(timeout=120) for agent in agents]
        finally:
            for agent in agents:
                if agent.poll() is None:
                    os.killpg(agent.pid, signal.SIGKILL)
    assert [agent.returncode for agent in agents] == [0, 0], said
    check_killed([tuple(json.loads(line)) for line in out.splitlines() if line.startswith("[")], said, expected)


@pytest.mark.skipif(WHY is not None, reason=str(WHY))
def test_a_run_whose_host_is_lost_goes_on_with_those_that_are_left(tmp_path: Path, expected: dict[int, float]) -> None:
    """The interface of a host goes down in the middle of a step; the other goes on alone."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "ssh").write_text(f"#!{sys.executable}\n" + (SCRIPT.parent.parent / "fake_starter.py").read_text())
    (programs / "ssh").chmod(0o755)
    with hosts("r") as pair:
        known = " ".join(f"{host.address}={host.name}" for host in pair)
        where = ["--hosts", ",".join(host.address for host in pair), "--nnodes", "2", "--min-nodes", "1"]
        again = ["--max-restarts", "1", "--cores", "1", "--log-dir", str(tmp_path / "logs")]
        program = [str(SCRIPT), str(tmp_path / "saved"), str(STEPS), "wait"]
        process = pair[0].start(
            *(sys.executable, "-m", "maniple.cli", "run", *where, *again, *program),
            PATH=f"{programs}:{os.environ['PATH']}:{Path(IP).parent}",
            FAKE_HOSTS=known,
            FAKE_WORDS=str(tmp_path / "words"),
        )
        try:
            losses = []
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("["):
                    losses.append(tuple(json.loads(line)))
                    if len(losses) == 8:
                        pair[1].cut()
            _, said = process.communicate(timeout=60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said
    assert [step for step, _ in losses] == [*range(8), *range(6, STEPS)]
    assert dict(losses) == pytest.approx(expected, rel=1e-10)  # one rank sums in another order than two
    assert "host beta (node 1, ranks 1) has not answered" in said
    assert re.search(r"  1: 2 ranks, .*, steps 0 to 8; host beta", said)
    assert re.search(rf"  2: 1 ranks, .*, steps 6 to {STEPS}; done", said)
