"""Whole runs of real processes: how they begin, how every fault ends them, and that nothing is left."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from maniple.runtime.cluster.log_folder import STACKS

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(90)]

SCRIPTS = Path(__file__).resolve().parent / "scripts"
STOP_S = 10.0
# What ranks share here: most of these programs need no torch.
IMPORTS = "maniple.runtime.control.coordinator_client"


# What the launcher says first where there are several ranks.
TRANSPORT = re.compile(
    r"^maniple: \d+ ranks of this host exchange tiles through (shared memory|ZeroMQ)"
    r"(; \d+ nodes are emulated on this host)?\n"
)


@dataclass(frozen=True)
class Ended:
    status: int
    out: str
    err: str

    @property
    def pids(self) -> list[int]:
        """The process of every rank, as the program itself told them."""
        found = re.search(r"^pids (.*)$", self.out, re.MULTILINE)
        assert found, f"the ranks never met:\n{self.out}\n{self.err}"
        return [int(word) for word in found[1].split()]


def started(*arguments: str, logs: Path, **options: object) -> subprocess.Popen[str]:
    # A shell that starts tests in the background has children ignore SIGINT, which they would hand on to theirs.
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-m", "maniple.cli", "run", "--imports", IMPORTS, "--log-dir", str(logs), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=options.get("stdout", subprocess.PIPE),
        stderr=options.get("stderr", subprocess.PIPE),
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads here
    )


def ended(launcher: subprocess.Popen[str], seconds: float = 60) -> Ended:
    try:
        out, err = launcher.communicate(timeout=seconds)
        err = TRANSPORT.sub("", err or "")
    finally:
        launcher.kill()
    return Ended(launcher.returncode, out, err)


def run(*arguments: str, logs: Path, seconds: float = 60) -> Ended:
    return ended(started(*arguments, logs=logs), seconds)


def until_they_met(launcher: subprocess.Popen[str]) -> list[int]:
    """Wait for the line that says that all ranks have joined."""
    assert launcher.stdout is not None
    for line in launcher.stdout:
        if line.startswith("pids "):
            return [int(word) for word in line.split()[1:]]
    raise AssertionError(f"the ranks never met: {launcher.communicate()[1]}")


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not collected yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except OSError:
        if Path("/proc/self").exists():
            return False
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True
    return state not in "ZX"


def are_gone(pids: list[int], within_s: float = 0.0) -> bool:
    deadline = time.monotonic() + within_s
    while any(map(is_alive, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_a_process_that_runs_is_seen() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert not are_gone([child.pid])
    child.communicate(b"\n")
    assert are_gone([child.pid])


CORES = """
import os
import maniple as mp

@mp.task
def lane() -> list:
    return sorted(os.sched_getaffinity(0))

mine = [mp.launch(lane).get(), len(os.sched_getaffinity(0))]
seen = mp.index_launch(lane, 2)
print(mine, seen[0], seen[1], mp.Machine.detect().processors[0].cores)
"""


@pytest.mark.skipif(len(getattr(os, "sched_getaffinity", lambda _: ())(0)) < 2, reason="one core, or no affinity")
def test_ranks_keep_to_cores_of_their_own_and_know_of_all(tmp_path: Path) -> None:
    script = tmp_path / "cores.py"
    script.write_text(CORES, encoding="utf-8")
    first, second = sorted(os.sched_getaffinity(0))[:2]
    result = run("--nodes", "2", "--cores", "1", "--bind", str(script), logs=tmp_path)
    assert (result.status, result.err) == (0, "")
    assert result.out == f"[[{first}], 1] [{first}] [{second}] 1\n"


LATE = """
import time
import maniple as mp

@mp.task
def put(value: float, x: mp.WriteDiscard) -> None:
    x.fill_(value)

x = mp.region((4,), name="x")
for run in range(3):
    with mp.trace("step"):
        mp.launch(put, float(run * mp.world().rank if run == 2 else 0), x)
mp.fence()
time.sleep(60)
"""


def test_a_run_of_a_trace_that_differs_is_told_though_nothing_else_is(tmp_path: Path) -> None:
    script = tmp_path / "late.py"
    script.write_text(LATE, encoding="utf-8")
    result = run("--nodes", "2", str(script), logs=tmp_path, seconds=30)
    assert result.status == 1
    assert "its inputs differ: it called `trace 'step': 1 launches again" in result.err


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Path]:
    """A folder where scripts leave their process ids; what a failed test left running is ended."""
    folder = tmp_path / "pids"
    folder.mkdir()
    yield folder
    for name in folder.iterdir():
        if is_alive(int(name.name)):
            os.kill(int(name.name), signal.SIGKILL)


def test_ranks_join_and_only_rank_0_is_heard(tmp_path: Path) -> None:
    result = run("--nodes", "2", str(SCRIPTS / "steps.py"), logs=tmp_path)
    assert (result.status, result.err) == (0, "")
    assert result.out.splitlines()[1:] == ["rank 0 of 2 done"]
    assert len(set(result.pids)) == 2
    assert are_gone(result.pids)
    logs = [(tmp_path / f"rank-{rank}.log").read_text(encoding="utf-8") for rank in range(2)]
    assert logs[0] == result.out
    assert logs[1].splitlines()[-1] == "rank 1 of 2 done"


# What a fault of rank 1 is called; `during` is the last call that it told.
FAULTS = {
    "kill": r"was killed by signal 9 \(SIGKILL\) during `step 2",
    "stop": r"has not answered for 5 s \(stopped or unreachable\), last call: `step 2",
    "raise": r"raised ValueError: the batch is sour at steps.py:\d+, after `step 2",
    "diverge": r"diverged at call 4: it called `evaluate`, node 0 \(rank 0\) called `step 3`",
    "inputs": r"diverged at call 4: its inputs differ: it called `step 3 inputs \w+`, node 0 \(rank 0\) called `step 3",
    "early": r"ended after call 3; node 0 \(rank 0\)",
}


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_fault_of_one_rank_ends_all_with_one_message(fault: str, tmp_path: Path) -> None:
    launcher = started("--nodes", "2", str(SCRIPTS / "steps.py"), fault, logs=tmp_path)
    ranks = until_they_met(launcher)
    begin = time.monotonic()
    result = ended(launcher)
    assert time.monotonic() - begin < STOP_S
    assert result.status == 1
    assert re.search(rf"^error: node 1 \(rank 1\) {FAULTS[fault]}", result.err, re.MULTILINE), result.err
    assert result.err.count("error: ") == 1
    assert are_gone(ranks)
    if fault == "stop":  # whoever could answer wrote where it was before anything was killed
        stacks = (tmp_path / "rank-0.log").read_text(encoding="utf-8")
        assert "most recent call first" in stacks
        assert 'steps.py", line' in stacks
        assert STACKS in stacks.partition("most recent call first")[0], "who reads it is told that it is no crash"
    else:
        assert "most recent call first" not in result.err
    if fault == "raise":  # the last lines of its log are shown, and where the rest is
        assert "ValueError: the batch is sour" in result.err.partition("error: ")[2].partition("\n")[2]
        assert str(tmp_path) in result.err


def test_a_rank_whose_interpreter_is_held_lives(tmp_path: Path) -> None:
    """A call that keeps the interpreter lock for longer than a process may be silent, while the other rank waits."""
    result = run("--nodes", "2", str(SCRIPTS / "steps.py"), "lock", logs=tmp_path)
    assert (result.status, result.err) == (0, "")
    assert "rank 0 of 2 done" in result.out


def test_a_rank_that_does_not_get_on_is_named_with_its_stack(tmp_path: Path) -> None:
    launcher = started("--nodes", "2", "--hang-timeout", "2", str(SCRIPTS / "steps.py"), "hang", logs=tmp_path)
    ranks = until_they_met(launcher)
    result = ended(launcher)
    assert result.status == 1
    waits = r"^error: node 1 \(rank 1\) has not got on for \d s while node 0 \(rank 0\) waits, last call: `step 2"
    assert re.search(waits, result.err, re.MULTILINE), result.err
    tail = result.err.partition("last lines of node 1 (rank 1)")[2]
    assert "steps.py" in tail, "its stack, which its log ends with"
    assert STACKS in tail
    assert are_gone(ranks)


def test_a_rank_that_asks_for_patience_gets_it(tmp_path: Path) -> None:
    result = run("--nodes", "2", "--hang-timeout", "1", str(SCRIPTS / "steps.py"), "patience", logs=tmp_path)
    assert (result.status, result.err) == (0, "")


def test_a_fault_of_rank_0_is_named_too(tmp_path: Path) -> None:
    result = run("--nodes", "2", str(SCRIPTS / "steps.py"), "raise", "0", logs=tmp_path)
    assert result.status == 1
    assert "error: node 0 (rank 0) raised ValueError: the batch is sour" in result.err
    assert "Traceback" in result.err
    assert are_gone(result.pids)


def test_the_minority_of_three_diverged(tmp_path: Path) -> None:
    result = run("--nodes", "3", str(SCRIPTS / "steps.py"), "diverge", "0", logs=tmp_path)
    assert result.status == 1
    assert (
        "error: node 0 (rank 0) diverged at call 4: it called `evaluate`, node 1 (rank 1) called `step 3`" in result.err
    )


def test_a_request_that_every_rank_refuses_is_told_once(tmp_path: Path) -> None:
    result = run("--nodes", "2", str(SCRIPTS / "steps.py"), "request", logs=tmp_path)
    assert (result.status, result.err) == (2, "error: batch: expected at least 1 sample, got 0\n")
    assert are_gone(result.pids)


def test_a_rank_that_never_joins_is_named(tmp_path: Path, pids: Path) -> None:
    begin = time.monotonic()
    arguments = ("--nodes", "3", "--join-timeout", "2", str(SCRIPTS / "straggler.py"), "2", str(pids))
    result = run(*arguments, logs=tmp_path / "logs")
    assert time.monotonic() - begin < 2 + STOP_S
    assert result.status == 1
    assert "error: node 2 (rank 2) did not join within 2 s (joined: node 0 (rank 0), node 1 (rank 1))" in result.err
    left = [int(name.name) for name in pids.iterdir()]
    assert len(left) == 3
    assert are_gone(left)


@pytest.mark.parametrize("status", [0, 3])
def test_a_program_need_not_join(status: int, tmp_path: Path, pids: Path) -> None:
    arguments = ("--nodes", "2", "--ranks-per-node", "2", str(SCRIPTS / "alone.py"), str(status), str(pids))
    result = run(*arguments, logs=tmp_path / "logs")
    assert result.status == (1 if status else 0)
    assert result.out == "out of 0 4 0 0\n"
    assert result.err.startswith("err of 0\n")
    log = (tmp_path / "logs" / "rank-3.log").read_text(encoding="utf-8")
    assert sorted(log.splitlines()) == ["err of 3", "out of 3 4 1 1"]
    left = [int(name.name) for name in pids.iterdir()]
    assert are_gone(left)  # the children that the ranks left behind among them


def test_a_taken_port_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = run("--port", str(port), str(SCRIPTS / "steps.py"), logs=tmp_path)
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith(f"error: port {port} is already in use")
    assert "leave --port out" in result.err


def test_two_runs_at_once_do_not_meet(tmp_path: Path) -> None:
    launchers = [started("--nodes", "2", str(SCRIPTS / "steps.py"), logs=tmp_path / name) for name in "ab"]
    results = [ended(launcher) for launcher in launchers]
    assert [(result.status, result.err) for result in results] == [(0, ""), (0, "")]
    assert len({pid for result in results for pid in result.pids}) == 4


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    launcher = started("--nodes", "2", str(SCRIPTS / "steps.py"), "wait", logs=tmp_path)
    ranks = until_they_met(launcher)
    begin = time.monotonic()
    os.killpg(launcher.pid, signal.SIGINT)
    assert ended(launcher).status == 130
    assert time.monotonic() - begin < STOP_S
    assert are_gone(ranks)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only ranks that joined notice, after some seconds")
def test_a_launcher_that_is_killed_leaves_nothing(tmp_path: Path, pids: Path) -> None:
    launcher = started("--nodes", "2", str(SCRIPTS / "straggler.py"), "1", str(pids), logs=tmp_path / "logs")
    deadline = time.monotonic() + 30
    while len(list(pids.iterdir())) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    launcher.kill()
    launcher.wait(timeout=10)
    assert are_gone([int(name.name) for name in pids.iterdir()], within_s=STOP_S)
    ended(launcher)


def test_a_killed_launcher_leaves_no_joined_rank(tmp_path: Path) -> None:
    launcher = started("--nodes", "2", str(SCRIPTS / "steps.py"), "wait", logs=tmp_path)
    ranks = until_they_met(launcher)
    launcher.kill()
    assert are_gone(ranks, within_s=STOP_S)
    ended(launcher)


def test_rank_0_sees_the_terminal_that_the_launcher_has(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    launcher = started(str(SCRIPTS / "terminal.py"), logs=tmp_path, stdout=theirs)
    os.close(theirs)
    shown = b""
    while b"\n" not in shown:
        shown += os.read(ours, 1000)
    ended(launcher)
    os.close(ours)
    assert shown.startswith(b"terminal True")


@pytest.mark.timeout(600)
def test_a_search_by_the_clock_runs_on_rank_0_and_reaches_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks differ: searches of their own would end at different plans. A new machine compiles the simulator first."""
    monkeypatch.setenv("MANIPLE_CACHE", str(tmp_path / "cache"))
    done = run("--nodes", "2", str(SCRIPTS / "search.py"), logs=tmp_path, seconds=560)
    assert done.status == 0, done.err
    of_a_budget, of_measured_costs = done.out.split("plans ")[1:]
    for told in (of_a_budget, of_measured_costs):
        first, searched, second, searched_too = told.split()[:4]
        assert first == second
        assert (searched, searched_too) == ("True", "False")
    assert len(list(tmp_path.glob("cache/costs-*.json"))) == 1
    assert "raced_s of data_parallel" in of_measured_costs  # on the ranks that are the machine
