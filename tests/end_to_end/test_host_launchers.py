"""Runs whose agents a launcher starts: each against a program of its name on PATH that starts them in namespaces."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from namespaces import IP, Host, hosts, reason

WHY = reason()
HERE = Path(__file__).resolve().parent
STEPS = str(HERE / "scripts" / "steps.py")
HOSTS = "10.77.0.1,10.77.0.2"

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.timeout(90),
    pytest.mark.skipif(WHY is not None, reason=str(WHY)),
]


@pytest.fixture
def pair() -> Iterator[tuple[Host, Host]]:
    with hosts("l") as made:
        yield made


def becomes_real(folder: Path, program: str) -> Path:
    """Give a folder for PATH whose ssh knows the hosts of a test; skip where there are no such programs."""
    for need, package in {"sshd": "openssh-server", program: f"{program}, as Debian's openmpi-bin has it"}.items():
        if shutil.which(need, path=f"{os.environ['PATH']}:/usr/sbin") is None:
            pytest.skip(f"needs {package}")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    key = (folder / "host.pub").read_text()
    (folder / "known").write_text("".join(f"{address} {key}" for address in HOSTS.split(",")))
    programs = folder / "real"
    programs.mkdir()
    options = f"-i {folder}/user -o UserKnownHostsFile={folder}/known -o IdentitiesOnly=yes"
    (programs / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} {options} "$@"\n')
    (programs / "ssh").chmod(0o755)
    Path("/run/sshd").mkdir(exist_ok=True)  # sshd drops its rights there
    return programs


@contextmanager
def servers(pair: tuple[Host, Host], folder: Path) -> Iterator[None]:
    """Run a server of ssh on each host."""
    options = [f"AuthorizedKeysFile={folder}/user.pub", "PidFile=none", "StrictModes=no", "PermitRootLogin=yes"]
    words = [word for option in options for word in ("-o", option)]
    sshd = shutil.which("sshd", path="/usr/sbin:/sbin") or "sshd"
    running = [host.start(sshd, "-D", "-e", "-h", str(folder / "host"), *words) for host in pair]
    try:
        for server in running:
            assert server.stderr is not None
            assert "listening" in server.stderr.readline().lower()
        yield
    finally:
        for server in running:
            os.killpg(server.pid, signal.SIGKILL)
            server.communicate()


@pytest.mark.parametrize(
    ("program", "options"), [("ssh", ("--hosts", HOSTS)), ("mpirun", ("--launcher", f"mpi:{HOSTS}"))]
)
def test_the_real_program_starts_agents(
    pair: tuple[Host, Host], tmp_path: Path, program: str, options: tuple[str, ...]
) -> None:
    programs = becomes_real(tmp_path, program)
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    told = {"PATH": f"{programs}:{os.environ['PATH']}", **root, "MANIPLE_CACHE": str(tmp_path / "kept")}
    run = [sys.executable, "-m", "maniple.cli", "run", "--cores", "1", "--log-dir", str(tmp_path / "logs"), *options]
    with servers(pair, tmp_path):
        done = ended(pair[0].start(*run, STEPS, **told))
        assert done[0] == 0, done
        assert done[1].splitlines()[-1] == "rank 0 of 2 done"
        status, _, err = ended(pair[0].start(*run, STEPS, "raise", **told))
    assert status == 1
    assert "error: node 1 (rank 1) on host beta raised ValueError: the batch is sour" in err
    assert list((tmp_path / "kept").rglob("*.key")) == []


def check_look(status: int, out: str, err: str) -> None:
    """What doctor says of two hosts that one link joins."""
    assert status == 0, out + err
    told = {one["name"]: one for one in json.loads(out)["findings"]}
    assert told["alpha - beta"]["ok"]
    assert {"alpha", "beta"} <= told.keys()


def test_doctor_looks_at_hosts_that_the_real_ssh_reaches(pair: tuple[Host, Host], tmp_path: Path) -> None:
    programs = becomes_real(tmp_path, "ssh")
    look = [sys.executable, "-m", "maniple.cli", "doctor", "--hosts", HOSTS, "--json"]
    with servers(pair, tmp_path):
        check_look(*ended(pair[0].start(*look, PATH=f"{programs}:{os.environ['PATH']}")))


def started(
    pair: tuple[Host, Host], folder: Path, *arguments: str, looks: bool = False, **variables: str
) -> subprocess.Popen[str]:
    """Start a launcher, or a look, on the first host, with programs that stand for those that reach hosts."""
    programs = folder / "bin"
    programs.mkdir()
    for name in ("ssh", "srun", "mpirun"):
        file = programs / name
        file.write_text(f"#!{sys.executable}\n" + (HERE / "fake_starter.py").read_text())
        file.chmod(0o755)
    package = folder / "python" / "ray"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text((HERE / "fake_ray.py").read_text())
    known = " ".join(f"{host.address}={host.name}" for host in pair)
    path = f"{programs}:{os.environ['PATH']}:{Path(IP).parent}"
    run = [sys.executable, "-m", "maniple.cli"]
    run += ["doctor"] if looks else ["run", "--cores", "1", "--log-dir", str(folder / "logs")]
    told = {"PATH": path, "FAKE_HOSTS": known, "FAKE_WORDS": str(folder / "words"), **variables}
    told["PYTHONPATH"] = ":".join([str(package.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    return pair[0].start(*run, *arguments, **told)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, err


LAUNCHERS = {
    "ssh": (("--hosts", HOSTS), {}),
    "slurm": (("--launcher", "slurm"), {"SLURM_JOB_NODELIST": "10.77.0.[1-2]"}),
    "mpi": (("--launcher", f"mpi:{HOSTS}"), {}),
    "ray": (("--launcher", "ray"), {}),
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_starts_one_agent_on_each_host(pair: tuple[Host, Host], tmp_path: Path, launcher: str) -> None:
    options, variables = LAUNCHERS[launcher]
    status, out, err = ended(started(pair, tmp_path, *options, STEPS, **variables))
    assert status == 0, err
    assert out.splitlines()[-1] == "rank 0 of 2 done"
    words = (tmp_path / "words").read_text().splitlines()
    assert len(words) == (2 if launcher == "ssh" else 1)
    assert not re.search(r"[0-9a-f]{32}", "".join(words))  # the key is on no command line


def test_doctor_looks_at_hosts_through_a_launcher(pair: tuple[Host, Host], tmp_path: Path) -> None:
    check_look(*ended(started(pair, tmp_path, "--hosts", HOSTS, "--json", looks=True)))


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_what_a_rank_elsewhere_raises_is_the_status_of_the_run(
    pair: tuple[Host, Host], tmp_path: Path, launcher: str
) -> None:
    options, variables = LAUNCHERS[launcher]
    status, _, err = ended(started(pair, tmp_path, *options, STEPS, "raise", **variables))
    assert status == 1
    assert "error: node 1 (rank 1) on host beta raised ValueError: the batch is sour" in err
    assert "ValueError: the batch is sour" in err.partition("last lines of node 1 (rank 1) on host beta:")[2]


def test_a_host_that_cannot_be_reached_is_named(pair: tuple[Host, Host], tmp_path: Path) -> None:
    start = time.monotonic()
    status, _, err = ended(started(pair, tmp_path, "--hosts", "10.77.0.1,10.77.0.9", STEPS))
    assert status == 1
    assert time.monotonic() - start < 20
    assert re.search(r"error: host 10.77.0.9 \(node 1, ranks 1\) has no agent: ssh ended with exit status 255", err)
    assert "ssh: connect to host 10.77.0.9 port 22: No route to host" in err


@pytest.mark.parametrize("launcher", ["slurm", "mpi", "ray"])
def test_an_agent_that_ends_before_it_comes_is_named_at_once(
    pair: tuple[Host, Host], tmp_path: Path, launcher: str
) -> None:
    """The program that started all agents goes on, as srun does; nobody waits for the join timeout."""
    (options, variables), start = LAUNCHERS[launcher], time.monotonic()
    run = started(pair, tmp_path, "--join-timeout", "80", *options, STEPS, FAKE_BROKEN="10.77.0.2", **variables)
    status, _, err = ended(run)
    assert status == 1
    assert time.monotonic() - start < 60
    assert re.search(r"error: host 10.77.0.2 \(node 1, ranks 1\) has no agent: it ended with exit status 1 before", err)


def test_hosts_that_ray_does_not_give_end_the_run_with_what_was_asked_for(
    pair: tuple[Host, Host], tmp_path: Path
) -> None:
    run = started(pair, tmp_path, "--join-timeout", "60", "--launcher", "ray", STEPS, FAKE_TAKEN="1")
    status, _, err = ended(run)
    assert status == 1
    assert "error: host 10.77.0.1 (node 0, ranks 0) has no agent" in err
    assert re.search(r"Ray gave no placement group of .*node:10.77.0.2.* within 60 s", err)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_an_interrupt_of_the_launcher_ends_all_hosts(pair: tuple[Host, Host], tmp_path: Path, launcher: str) -> None:
    options, variables = LAUNCHERS[launcher]
    run = started(pair, tmp_path, *options, STEPS, "wait", **variables)
    assert run.stdout is not None
    pids = [int(word) for word in run.stdout.readline().split()[1:]]
    assert len(pids) == 2
    os.kill(run.pid, signal.SIGINT)
    status, _, err = ended(run)
    assert status == 130, err
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
