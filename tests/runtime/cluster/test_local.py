"""Processes of this host: their ends are seen without giving their numbers away, and secrets go through a pipe."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest

from maniple.process.error import RequestError, RunError
from maniple.runtime.cluster.children.child_process import LocalProcess
from maniple.runtime.cluster.launcher import Launcher, LaunchRequest, RankCommand, Streams
from maniple.runtime.cluster.local import LocalLauncher
from maniple.runtime.cluster.registry import LAUNCHERS, make_launcher
from maniple.runtime.cluster.run import command, ways
from maniple.runtime.devices.host_device import HostDevice
from maniple.runtime.devices.registry import DEVICES

TIMEOUT_S = 20.0


@pytest.fixture
def streams(tmp_path: Path) -> Streams:
    """What a process prints goes into a file."""
    file = os.open(tmp_path / "out", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    return Streams(subprocess.DEVNULL, file, file)


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text("pass\n", encoding="utf-8")
    return str(path)


def ended(process: LocalProcess) -> int:
    end = monotonic() + TIMEOUT_S
    while (code := process.poll()) is None:
        assert monotonic() < end
        sleep(0.01)
    return code


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="this system cannot look at an end without reaping it")
@pytest.mark.parametrize("code", [0, 3, -signal.SIGKILL])
def test_an_end_is_seen_without_giving_the_number_away(code: int, streams: Streams) -> None:
    end = f"sys.exit({code})" if code >= 0 else f"os.kill(os.getpid(), {-code})"
    process = LocalProcess([sys.executable, "-c", f"import os, sys; {end}"], streams)
    assert ended(process) == code
    os.killpg(process.pid, 0)  # the number is still this group's, so nobody else's
    assert process.wait(TIMEOUT_S)
    assert process.poll() == code
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_a_process_is_waited_for_no_longer_than_said(streams: Streams) -> None:
    process = LocalProcess([sys.executable, "-c", "import time; time.sleep(60)"], streams)
    assert not process.wait(0.01)
    process.kill()
    assert process.wait(TIMEOUT_S)
    assert process.poll() == -signal.SIGKILL


def test_what_a_process_is_told_comes_through_its_input(streams: Streams, tmp_path: Path) -> None:
    process = LocalProcess(["sh", "-s"], streams, told=b"echo told $SECRET\n")
    assert ended(process) == 0
    process.wait(TIMEOUT_S)
    assert (tmp_path / "out").read_text() == "told\n"


def test_a_process_that_ends_before_it_is_told_is_no_failure_here(streams: Streams) -> None:
    process = LocalProcess([sys.executable, "-S", "-c", "raise SystemExit(7)"], streams, told=b"x" * 200)
    assert ended(process) == 7
    process.wait(TIMEOUT_S)


def test_a_command_that_is_not_there_is_named(streams: Streams) -> None:
    with pytest.raises(RunError, match="no-such-shell cannot be started: No such file"):
        LocalProcess(["no-such-shell", "host"], streams)


def test_a_rank_has_its_own_variables_and_not_those_of_another_run(
    streams: Streams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MANIPLE_DEVICE", "null")
    monkeypatch.setenv("ELSE", "kept")
    shown = "import os; print(*map(os.environ.get, ('MANIPLE_DEVICE', 'ELSE', 'RANK')))"
    argv = (sys.executable, "-S", "-c", shown)
    process = LocalLauncher().start(RankCommand(1, 1, argv, {"RANK": "1"}, frozenset({"MANIPLE_DEVICE"})), streams)
    assert isinstance(process, LocalProcess)
    assert ended(process) == 0
    process.wait(TIMEOUT_S)
    assert (tmp_path / "out").read_text() == "None kept 1\n"


def test_a_command_does_not_show_its_variables() -> None:
    assert "hunter2" not in repr(RankCommand(0, 0, ("python",), {"MANIPLE_TOKEN": "hunter2"}))


class Far(Launcher):
    """Starts nothing; its nodes have addresses."""

    def address(self, node: int) -> str:
        return f"10.0.0.{node + 1}"

    def start(self, command: RankCommand, streams: Streams) -> LocalProcess:
        raise NotImplementedError


def test_a_launcher_of_the_programs_own_is_asked_by_name(script: str) -> None:
    with pytest.raises(RequestError, match="launcher 'far': there is no such launcher; choices: local"):
        make_launcher(LaunchRequest((script,), launcher="far"))
    LAUNCHERS.register("far", Far)
    try:
        made = make_launcher(LaunchRequest((script,), launcher="far:alpha,beta"))
        assert (type(made), made.argument) == (Far, "alpha,beta")
        with pytest.raises(RequestError, match="--bind: the cores are those of this host"):
            make_launcher(LaunchRequest((script,), cores=1, bind=True, launcher="far"))
        with pytest.raises(RequestError, match="--report: ranks write it to a file of this host"):
            make_launcher(LaunchRequest((script,), report=True, launcher="far"))
    finally:
        del LAUNCHERS._registered["far"]


class Nowhere(HostDevice):
    """A device that this host has not."""

    kind = "gpu"

    @classmethod
    def check(cls) -> None:
        raise RequestError("there is none here")


def test_a_device_is_looked_for_where_the_ranks_are(script: str) -> None:
    LAUNCHERS.register("far", Far)
    DEVICES.register("nowhere", Nowhere)
    try:
        make_launcher(LaunchRequest((script,), device="nowhere", launcher="far"))
        with pytest.raises(RequestError, match="there is none here"):
            make_launcher(LaunchRequest((script,), device="nowhere"))
        with pytest.raises(RequestError, match="device 'nowere': there is no such device"):
            LaunchRequest((script,), device="nowere", launcher="far")
    finally:
        del LAUNCHERS._registered["far"], DEVICES._registered["nowhere"]


def test_ranks_that_may_be_elsewhere_are_told_nothing_of_this_host(script: str, tmp_path: Path) -> None:
    request = LaunchRequest((script,), nodes=2)
    for rank in range(2):
        _, here = command(request, rank, logs=tmp_path, launcher=LocalLauncher())
        _, far = command(request, rank, logs=tmp_path, launcher=Far())
        assert here["MANIPLE_LOG"] == str(tmp_path / f"rank-{rank}.log")
        assert "MANIPLE_INTERFACE" not in here
        assert not {"MANIPLE_LOG", "MANIPLE_BOUND", "MANIPLE_SHARED"} & set(far)
        assert far["MANIPLE_INTERFACE"] == f"10.0.0.{rank + 1}"


def test_the_local_launcher_takes_no_argument() -> None:
    with pytest.raises(RequestError, match="takes no argument, got 'alpha'; write --launcher local"):
        LocalLauncher("alpha")


@pytest.mark.parametrize(
    ("transport", "device", "launcher", "found"),
    [
        ("shared", "cpu", LocalLauncher(), ("shared memory", "ZeroMQ")),
        ("shared", "null", LocalLauncher(), ("memory of their GPUs or ZeroMQ, as rank 0 says", "ZeroMQ")),
        ("zmq", "null", LocalLauncher(), ("ZeroMQ", "ZeroMQ")),
        ("shared", "cpu", Far(), ("ZeroMQ", "ZeroMQ")),
        ("zmq", "cpu", LocalLauncher(), ("ZeroMQ", "ZeroMQ")),
        ("shared-gloo", "cpu", LocalLauncher(), ("shared memory", "Gloo")),
    ],
)
def test_the_way_of_tiles_depends_on_all_three(
    script: str, transport: str, device: str, launcher: Launcher, found: tuple[str, str]
) -> None:
    assert ways(LaunchRequest((script,), transport=transport, device=device), launcher) == found
