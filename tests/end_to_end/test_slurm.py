"""Runs inside allocations of the real Slurm, whose nodes are two network namespaces: `salloc`, `sbatch`, `srun`."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest
from namespaces import Host, hosts, named, reason

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "salloc", "sbatch")
WHERE = f"{os.environ['PATH']}:/usr/sbin:/sbin"
MISSING = [program for program in PROGRAMS if shutil.which(program, path=WHERE) is None]
WHY = reason() or (f"needs {', '.join(MISSING)}, as Debian's slurm-wlm and munge have them" if MISSING else None)
STEPS = str(Path(__file__).resolve().parent / "scripts" / "steps.py")
RUN = [sys.executable, "-m", "maniple.cli", "run", "--launcher", "slurm", "--cores", "1"]

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(120), pytest.mark.skipif(WHY is not None, reason=str(WHY))]

CONFIGURATION = """
ClusterName=maniple
SlurmctldHost=alpha(10.77.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SchedulerType=sched/builtin
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=2
NodeName=alpha NodeAddr=10.77.0.1 CPUs=2
NodeName=beta NodeAddr=10.77.0.2 CPUs=2
PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=UP
"""


def version() -> tuple[int, ...]:
    """The version of the Slurm that is installed."""
    said = subprocess.run([shutil.which("slurmd", path=WHERE) or "", "-V"], capture_output=True, text=True, check=True)
    return tuple(int(part) for part in re.findall(r"\d+", said.stdout)[:2])


class Cluster:
    """A cluster of Slurm on two hosts; a context that leaves no daemon behind."""

    def __init__(self, pair: tuple[Host, Host], folder: Path) -> None:
        self.pair, self.folder = pair, folder
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        folder = self.folder
        (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder))
        # No plugin needs control groups here; versions before 23.11 have no word for that.
        plugin = "disabled" if version() >= (23, 11) else "cgroup/v1"
        (folder / "cgroup.conf").write_text(f"CgroupPlugin={plugin}\n")
        for name in ("state", "spool-alpha", "spool-beta"):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(64))
        key.chmod(0o600)
        files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        told = [f"--{what}={folder}/munge.{end}" for what, end in files.items()]
        try:
            self._begin(self.pair[0], "munged", "--foreground", "--force", *told)
            self._await(folder / "munge.socket")
            self._begin(self.pair[0], "slurmctld", "-D", "-f", str(folder / "slurm.conf"))
            for host, name in zip(self.pair, ("alpha", "beta"), strict=True):
                self._begin(host, "slurmd", "-D", "-N", name, "-f", str(folder / "slurm.conf"))
            end = time.monotonic() + 30
            while "idle" not in (said := self.say("sinfo", "--noheader", "--format=%t")) or len(said.split()) != 1:
                assert time.monotonic() < end, self.logs()
                time.sleep(0.2)  # Slurm's own words are all that there is to wait for
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def start(self, *argv: str) -> subprocess.Popen[str]:
        return self.pair[0].start(*argv, SLURM_CONF=str(self.folder / "slurm.conf"), PATH=WHERE)

    def say(self, *argv: str) -> str:
        return "".join(self.start(*argv).communicate(timeout=20))

    def logs(self) -> str:
        return "\n".join(file.read_text()[-2000:] for file in self.folder.glob("*.log"))

    def _begin(self, host: Host, program: str, *words: str) -> None:
        daemon = host.start(shutil.which(program, path=WHERE) or program, *words)

        def end() -> None:
            try:
                os.killpg(daemon.pid, signal.SIGTERM)
                daemon.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(daemon.pid, signal.SIGKILL)
                daemon.communicate()

        self._stack.callback(end)

    def _await(self, path: Path) -> None:
        end = time.monotonic() + 10
        while not path.exists():
            assert time.monotonic() < end, self.logs()
            time.sleep(0.05)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # Not pytest's folder, whose path may be too long for a socket of munge.
    with (
        tempfile.TemporaryDirectory(prefix="mpl-slurm") as folder,
        hosts("s") as pair,
        named(pair),
        Cluster(pair, Path(folder)) as made,
    ):
        yield made


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=90)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, err


def test_a_run_in_an_allocation_has_a_rank_on_each_of_its_hosts(cluster: Cluster, tmp_path: Path) -> None:
    run = [*RUN, "--log-dir", str(tmp_path / "logs"), STEPS]
    status, out, err = ended(cluster.start("salloc", "--nodes=2", *run))
    assert status == 0, err + cluster.logs()
    assert out.splitlines()[-1] == "rank 0 of 2 done"
    status, _, err = ended(cluster.start("salloc", "--nodes=2", *run, "raise"))
    assert status == 1
    assert "error: node 1 (rank 1) on host beta raised ValueError: the batch is sour" in err


def test_the_batch_script_that_is_written_is_one(cluster: Cluster, tmp_path: Path) -> None:
    written = subprocess.run(
        [*RUN[:-4], "--launcher", "slurm:batch", "--nnodes", "2", "--cores", "1", STEPS],
        capture_output=True,
        text=True,
        check=True,
    )
    script = tmp_path / "job.sh"
    script.write_text(written.stdout)
    out = tmp_path / "out"
    status, _, err = ended(cluster.start("sbatch", "--wait", f"--output={out}", str(script)))
    assert status == 0, err + cluster.logs()
    assert out.read_text().splitlines()[-1] == "rank 0 of 2 done"


def test_an_interrupt_ends_the_step_and_the_allocation(cluster: Cluster, tmp_path: Path) -> None:
    run = [*RUN, "--log-dir", str(tmp_path / "logs"), STEPS, "wait"]
    process = cluster.start("salloc", "--nodes=2", *run)
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()[1:]]
    assert len(pids) == 2
    (launcher,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(launcher), signal.SIGINT)  # salloc has its command in the foreground, which the terminal tells
    status, _, err = ended(process)
    assert status == 130, err
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert cluster.say("squeue", "--noheader") == ""
