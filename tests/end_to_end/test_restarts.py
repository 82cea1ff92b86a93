"""Runs that go on after a failure: the losses are those of a run in which nothing failed, and the cost is told."""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from namespaces import IP, Host, hosts, reason, switched

WHY = reason()
pytestmark = [pytest.mark.ranks, pytest.mark.timeout(240)]

SCRIPT = Path(__file__).resolve().parent / "scripts" / "persistent.py"

STEPS = 11
BEYOND_IMPORTS_S = 20.0


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


def check_cost(said: str) -> int:
    """The steps that the failure cost; its parts are told, and what is not waiting for imports is under 20 seconds.

    Until all have joined again they import, for the most part; the join itself has a test of its own with 64 ranks.
    """
    told = re.search(
        r"cost: (\d+) steps to be done again, ([\d.]+) s until all ranks had ended, "
        r"([\d.]+) s until all had joined again, "
        r"([\d.]+) s from there to the first step done, ([\d.]+) s in all",
        said,
    )
    assert told is not None, said
    ending, joining, lowering, whole = map(float, told.groups()[1:])
    assert ending + joining + lowering <= whole + 0.2  # the parts, each rounded, of the whole
    assert whole - joining < BEYOND_IMPORTS_S
    return int(told[1])


def check_killed(losses: list[tuple[int, float]], said: str, expected: dict[int, float]) -> None:
    """The second attempt goes on from the checkpoint of step 5, with the same losses to the bit."""
    first = losses[: [step for step, _ in losses].index(6, 7)]
    again = losses[len(first) :]
    assert [step for step, _ in first][:7] == list(range(7))
    assert again == [(step, expected[step]) for step in range(6, STEPS)]  # no sample is lost or repeated
    assert said.count("the run begins again, for the 1st time of at most 2") == 1
    assert "was killed by signal 9 (SIGKILL)" in said
    assert check_cost(said) <= 2
    assert re.search(rf"  2: 2 ranks, .* s, steps 6 to {STEPS}; done", said)


@pytest.mark.parametrize("transport", ["shared", "gloo-collectives"])
@pytest.mark.usefixtures("forked_launches")  # of those on one host
def test_a_run_that_failed_goes_on_with_the_losses_of_one_that_did_not(
    tmp_path: Path, expected: dict[int, float], transport: str
) -> None:
    """Also where it fails in the midst of calls of Gloo's; the sum of two is the same in any order."""
    status, losses, said = run(tmp_path, "kill", "--max-restarts", "2", "--transport", transport)
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


def cut_short(
    among: tuple[Host, ...], folder: Path, *options: str, frontier: Path | None = None
) -> tuple[list[tuple[int, float]], list[str], str]:
    """Run on the first two of some hosts, the second of which is cut off in the midst of a step.

    Gives steps and losses, what else the program printed, and what was said; the run has ended well.
    """
    programs = folder / "bin"
    programs.mkdir()
    (programs / "ssh").write_text(f"#!{sys.executable}\n" + (SCRIPT.parent.parent / "fake_starter.py").read_text())
    (programs / "ssh").chmod(0o755)
    where = ["--hosts", ",".join(host.address for host in among), "--nnodes", "2", "--max-restarts", "1", *options]
    program = [str(SCRIPT), str(folder / "saved"), str(STEPS), "wait", *([] if frontier is None else [str(frontier)])]
    process = among[0].start(
        *(sys.executable, "-m", "maniple.cli", "run", *where, "--cores", "1", "--log-dir", str(folder / "logs")),
        *program,
        PATH=f"{programs}:{os.environ['PATH']}:{Path(IP).parent}",
        FAKE_HOSTS=" ".join(f"{host.address}={host.name}" for host in among),
        FAKE_WORDS=str(folder / "words"),
    )
    losses: list[tuple[int, float]] = []
    others: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith("["):
                others.append(line.strip())
                continue
            losses.append(tuple(json.loads(line)))
            if len(losses) == 8:
                among[1].cut()
        _, said = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said
    assert [step for step, _ in losses] == [*range(8), *range(6, STEPS)]
    assert "host beta (node 1, ranks 1) has not answered" in said
    assert re.search(r"  1: 2 ranks, .*, steps 0 to 8; host beta", said)
    return losses, others, said


@pytest.mark.skipif(WHY is not None, reason=str(WHY))
def test_a_run_whose_host_is_lost_goes_on_with_those_that_are_left_by_a_plan_for_them(
    tmp_path: Path, expected: dict[int, float]
) -> None:
    """The interface of a host goes down in the middle of a step; the other goes on alone, by another plan of it."""
    import maniple as mp

    network = runpy.run_path(str(SCRIPT))["network"]
    frontiers = [
        mp.search(network(), mp.Machine.preset(f"cpu:{ranks}x1"), strategy="pareto", objective="pareto")
        for ranks in (1, 2)
    ]
    (frontiers[0] | frontiers[1]).save(tmp_path / "frontier.json")
    with hosts("r") as pair:
        losses, plans, said = cut_short(pair, tmp_path, "--min-nodes", "1", frontier=tmp_path / "frontier.json")
    assert plans == ["plan for 2", "plan for 1"]
    assert dict(losses) == pytest.approx(expected, rel=1e-10)  # other plans sum in other orders
    assert re.search(rf"  2: 1 ranks, .*, steps 6 to {STEPS}; done", said)


@pytest.mark.skipif(WHY is not None, reason=str(WHY))
def test_a_spare_host_takes_the_place_of_one_that_is_lost(tmp_path: Path, expected: dict[int, float]) -> None:
    """With as many ranks as before the losses are those of the run in which nothing failed, bit for bit."""
    with switched("s", ("alpha", "beta", "gamma")) as made:
        losses, _, said = cut_short(made, tmp_path)
    assert losses == [(step, expected[step]) for step in (*range(8), *range(6, STEPS))]
    assert re.search(rf"  2: 2 ranks, .*, steps 6 to {STEPS}; done", said)
    assert check_cost(said) == 2
