"""Runs on a cluster of the real Ray, whose nodes are two network namespaces. Needs `ray` beside torch."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from namespaces import Host, hosts, reason

WHY = reason() or (None if importlib.util.find_spec("ray") else "needs ray, as the package index has it")
STEPS = str(Path(__file__).resolve().parent / "scripts" / "steps.py")
RUN = [sys.executable, "-m", "maniple.cli", "run", "--launcher", "ray:10.77.0.1:6379", "--cores", "1"]
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(240), pytest.mark.skipif(WHY is not None, reason=str(WHY))]


@contextmanager
def node(host: Host, folder: Path, *words: str) -> Iterator[None]:
    """Run a node of the cluster on a host; all its processes end with the context."""
    small = ["--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats", "--block"]
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--node-ip-address={host.address}", *small, *words]
    process = host.start(*start, **QUIET)
    try:
        assert process.stdout is not None
        said = ""
        while "--block" not in said:  # it says last that it goes on until it is ended
            line = process.stdout.readline()
            assert line, said + process.communicate()[1]
            said += line
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Host, Host]]:
    # Ray's sockets lie in its folder, whose path must be short.
    folder = Path(tempfile.mkdtemp(prefix="mplr", dir="/tmp"))
    try:
        with hosts("y") as made:
            head = ["--head", "--port=6379", f"--temp-dir={folder}", "--include-dashboard=false"]
            with node(made[0], folder, *head), node(made[1], folder, "--address=10.77.0.1:6379"):
                yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, err


def test_agents_are_actors_of_a_placement_group(pair: tuple[Host, Host], tmp_path: Path) -> None:
    run = [*RUN, "--log-dir", str(tmp_path / "logs")]
    shown = ended(pair[0].start(*run, "--dry-run", STEPS, **QUIET))
    assert "--hosts 10.77.0.1,10.77.0.2 --cpus 1,1 --gpus 0" in shown[1], shown
    assert not re.search(r"[0-9a-f]{32}", shown[1])
    status, out, err = ended(pair[0].start(*run, STEPS, **QUIET))
    assert status == 0, err
    assert out.splitlines()[-1] == "rank 0 of 2 done"
    status, _, err = ended(pair[0].start(*run, STEPS, "raise", **QUIET))
    assert status == 1
    assert "error: node 1 (rank 1) on host beta raised ValueError: the batch is sour" in err


def test_more_than_the_cluster_has_is_refused(pair: tuple[Host, Host]) -> None:
    status, _, err = ended(pair[0].start(*RUN, "--nnodes", "3", STEPS, **QUIET))
    assert status == 2
    assert "expected 3 nodes of 1 cores and 0 GPUs for --nnodes 3, and the cluster has 2 of: 10.77.0.1 (1 cores" in err


def test_an_interrupt_leaves_no_rank(pair: tuple[Host, Host], tmp_path: Path) -> None:
    launcher = pair[0].start(*RUN, "--log-dir", str(tmp_path / "logs"), STEPS, "wait", **QUIET)
    assert launcher.stdout is not None
    pids = [int(word) for word in launcher.stdout.readline().split()[1:]]
    assert len(pids) == 2
    os.kill(launcher.pid, signal.SIGINT)
    status, _, err = ended(launcher)
    assert status == 130, err
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
