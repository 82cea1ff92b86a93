"""Scripts that torchrun starts as they stand: the real program, on this host and over two network namespaces."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from namespaces import Host, hosts, named, reason

WHY = reason()
SCRIPTS = Path(__file__).resolve().parent / "scripts"
SCRIPT = str(SCRIPTS / "hosts.py")
STEPS = str(SCRIPTS / "steps.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
COMPANION = "maniple.runtime.cluster.adoption.companion"

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.timeout(150),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="descriptors of processes are Linux's"),
]


@pytest.fixture
def pair() -> Iterator[tuple[Host, Host]]:
    if WHY is not None:
        pytest.skip(WHY)
    with hosts("r") as made, named(made):
        yield made


def companions() -> set[int]:
    """The companions that run on this computer."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if COMPANION.encode() in (entry / "cmdline").read_bytes():
                found.add(int(entry.name))
        except OSError:
            continue
    return found


def nothing_is_left(before: set[int], ranks: list[int], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not (companions() - before) and not any(Path(f"/proc/{number}").exists() for number in ranks):
            return True
        time.sleep(0.05)
    return False


def on_this_host(*program: str, ranks: int = 2, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", str(ranks), *program]
    told = {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=told)


def pids(text: str) -> list[int]:
    """What ranks that have met say of all."""
    found = re.search(r"pids (\d+) (\d+)", text)
    assert found is not None, text
    return [int(word) for word in found.groups()]


def training(text: str) -> dict[str, object]:
    """What rank 0 says of its training."""
    found: dict[str, object] = json.loads(next(line for line in text.splitlines() if line.startswith('{"losses"')))
    return found


@pytest.mark.usefixtures("forked_launches")  # of those on one host
def test_a_script_gives_the_losses_and_bytes_that_our_launcher_gives() -> None:
    before = companions()
    done = on_this_host(SCRIPT, "data_parallel", "3")
    assert done.returncode == 0, done.stderr
    assert "maniple: 2 ranks of this host exchange tiles through shared memory" in done.stderr
    ours = [sys.executable, "-m", "maniple.cli", "run", "--nproc-per-node", "2", SCRIPT, "data_parallel", "3"]
    run = subprocess.run(ours, capture_output=True, text=True, timeout=120, check=False)
    found, expected = training(done.stdout), training(run.stdout)
    for what in ("losses", "bytes", "sent"):
        assert found[what] == expected[what]
    assert nothing_is_left(before, [])


def test_a_rank_that_is_killed_is_named_and_nothing_is_left() -> None:
    before = companions()
    done = on_this_host(STEPS, "kill")
    assert done.returncode == 1
    assert re.search(r"error: node 0 \(rank 1\) was killed by signal 9 \(SIGKILL\) during `step \d`", done.stderr)
    assert nothing_is_left(before, pids(done.stdout))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_all_and_nothing_is_left(number: int) -> None:
    before = companions()
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", STEPS, "wait"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout is not None
    ranks = pids(run.stdout.readline())
    run.send_signal(number)
    run.communicate(timeout=60)
    assert run.returncode != 0
    assert nothing_is_left(before, ranks)


def test_a_rank_that_is_stopped_is_named_and_nothing_is_left() -> None:
    before = companions()
    done = on_this_host(STEPS, "stop")
    assert done.returncode == 1
    stopped = r"error: node 0 \(rank 1\) has not answered for 5 s \(stopped or unreachable\)"
    assert re.search(stopped, done.stderr), done.stderr
    assert nothing_is_left(before, pids(done.stdout))


def test_another_way_of_tiles_is_asked_for_by_a_variable_and_a_wrong_one_is_refused() -> None:
    done = on_this_host("-m", "maniple", MANIPLE_TRANSPORT="zmp", ranks=1)
    assert done.returncode == 1
    done = on_this_host(STEPS, ranks=1, MANIPLE_TRANSPORT="zmp")
    assert done.returncode == 1
    assert "error: transport 'zmp': there is no such transport; did you mean 'zmq'?" in done.stderr


def begin(pair: tuple[Host, Host], *program: str) -> list[subprocess.Popen[str]]:
    place = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "10.77.0.1", "--master-port", "29511"]
    return [
        host.start(*TORCHRUN, *place, "--node-rank", str(node), *program, OMP_NUM_THREADS="1")
        for node, host in enumerate(pair)
    ]


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=90)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, err


@pytest.mark.usefixtures("forked_launches")  # of those on one host
def test_two_hosts_of_torchrun_train_as_one_and_what_is_killed_there_is_named(pair: tuple[Host, Host]) -> None:
    before = companions()
    (first, out, err), (second, _, heard) = [ended(process) for process in begin(pair, SCRIPT, "data_parallel", "3")]
    assert (first, second) == (0, 0), err + heard
    assert "maniple: 2 ranks of 2 hosts exchange tiles through ZeroMQ" in err
    found = training(out)
    assert found["hosts"] == ["alpha", "beta"]
    emulated = [sys.executable, "-m", "maniple.cli", "run", "--nodes", "2", "--cores", "2", "--transport", "zmq"]
    run = subprocess.run([*emulated, SCRIPT, "data_parallel", "3"], capture_output=True, text=True, check=False)
    assert (found["losses"], found["bytes"]) == (training(run.stdout)["losses"], training(run.stdout)["bytes"])
    (first, out, err), (second, _, heard) = [ended(process) for process in begin(pair, STEPS, "kill")]
    assert (first, second) == (1, 1)
    assert "error: node 1 (rank 1) on host beta was killed by signal 9 (SIGKILL)" in err
    assert nothing_is_left(before, pids(out))
