"""The hosts that are left: the table of the module, for each launcher that knows hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from maniple.runtime.cluster.host_launcher import HostLauncher
from maniple.runtime.cluster.launcher import LaunchRequest
from maniple.runtime.cluster.launchers.mpi import MpiLauncher
from maniple.runtime.cluster.launchers.slurm import SlurmLauncher
from maniple.runtime.cluster.launchers.ssh import SshLauncher
from maniple.runtime.cluster.restarts.hosts_left import HostsLeft


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "program.py").touch()
    return str(tmp_path / "program.py")


@pytest.mark.parametrize("make", [SshLauncher, MpiLauncher, SlurmLauncher])
def test_lost_hosts_are_replaced_by_spare_ones_and_then_done_without(
    make: type[HostLauncher], script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "alpha,beta,gamma")
    launcher = make("" if make is SlurmLauncher else "alpha,beta,gamma")
    left = HostsLeft(LaunchRequest((script,), nodes=2, cores=1, spread=True, max_restarts=3, min_nodes=1), launcher)
    steps: list[tuple[tuple[int, ...], list[str]]] = [
        ((), ["alpha", "beta"]),
        ((1,), ["alpha", "gamma"]),
        ((1,), ["alpha"]),
    ]
    for lost, hosts in steps:
        assert left.lose(lost)
        assert left.launcher is not None
        assert list(left.launcher.hosts(left.request)) == hosts
        assert left.request.nodes == len(hosts)
    assert not left.lose((0,))
    assert "without alpha 0 hosts are left, and it needs 1" in capsys.readouterr().err


def test_all_hosts_are_needed_where_nothing_else_was_said(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    left = HostsLeft(LaunchRequest((script,), nodes=2, cores=1, spread=True), SshLauncher("alpha,beta"))
    assert left.lose(())
    assert not left.lose((0,))
    assert "--min-nodes" in capsys.readouterr().err


def test_whoever_users_start_may_come_again(script: str) -> None:
    left = HostsLeft(LaunchRequest((script,), nodes=2, cores=1, spread=True), None)
    assert left.lose((1,))
    assert left.request.nodes == 2
