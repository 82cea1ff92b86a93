"""`maniple run` over several hosts: what is wrong with a request is one line with the host and the next step."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from maniple.cli import main
from maniple.runtime.cluster.hosts import key


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text("pass\n", encoding="utf-8")
    return str(path)


def status_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["run", *arguments])
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--node-rank", "0"], 2, "expected --node-rank and --head together, got one"),
        (["--head", "127.0.0.1:5"], 2, "expected --node-rank and --head together, got one"),
        (["--nnodes", "2", "--node-rank", "2", "--head", "127.0.0.1:5"], 2, "--node-rank: expected 0 to 1"),
        (["--nnodes", "2", "--node-rank", "1", "--head", "127.0.0.1"], 2, "--head: expected HOST:PORT"),
        (["--nnodes", "2", "--node-rank", "0", "--head", "192.0.2.1:5"], 2, "192.0.2.1 is no address of this host"),
        (
            ["--nnodes", "2", "--node-rank", "1", "--head", "no.such.invalid:5"],
            1,
            "host 'no.such.invalid' has no known",
        ),
        (["--interface", "lo"], 2, "--interface: this run is on one host"),
        (["--key", "file"], 2, "--key: this run is on one host"),
        (["--hosts", "a,b", "--hostfile", "f"], 2, "--hosts and --hostfile: expected one of them, got both"),
        (["--hosts", "a,b:22"], 2, "got 'b:22' with a port"),
        (["--hosts", "a,a"], 2, "host a stands there twice"),
        (["--hosts", "a", "--nnodes", "2"], 2, "expected 2 hosts for --nnodes 2, got 1: a"),
        (["--hosts", "a,b", "--node-rank", "0"], 2, "a launcher of hosts says these itself"),
        (["--hosts", "a,no.such.invalid"], 1, "host 'no.such.invalid' has no known address"),
        (["--hosts", "127.0.0.1", "--interface", "nosuch0"], 2, "--interface nosuch0: this host has no such interface"),
    ],
)
def test_a_wrong_request_is_one_line_with_what_to_do(
    script: str, arguments: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(*arguments, script) == status
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert said in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize("place", [["--node-rank", "0", "--head", "localhost:5"], ["--hosts", "10.9.8.7,localhost"]])
def test_a_head_that_other_hosts_do_not_reach_is_refused(
    script: str, capsys: pytest.CaptureFixture[str], place: list[str]
) -> None:
    assert status_of("--nnodes", "2", *place, script) == 2
    assert "127.0.0.1 is a loopback address, which other hosts do not reach; give" in capsys.readouterr().err


def test_a_host_where_nobody_leads_is_named(script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "key").touch(0o600)
    (tmp_path / "key").write_text(key.mint())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    place = ["--nnodes", "2", "--node-rank", "1", "--head", f"127.0.0.1:{port}", "--key", str(tmp_path / "key")]
    assert status_of(*place, "--join-timeout", "0.5", script) == 1
    said = capsys.readouterr().err
    assert f"cannot reach the coordinator at 127.0.0.1:{port} (Connection refused); start the run there" in said


def test_a_key_that_is_not_there_is_named(script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--nnodes", "2", "--node-rank", "1", "--head", "127.0.0.1:5", "--key", str(tmp_path / "none")]
    assert status_of(*place, "--join-timeout", "0.2", script) == 1
    assert f"no key of the run at 127.0.0.1:5: {tmp_path}/none is not there" in capsys.readouterr().err


def test_a_dry_run_prints_the_command_of_each_host_and_no_key(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("--hosts", "alpha,beta", "--dry-run", script) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:5] for line in lines] == [
        ["ssh", "-o", "BatchMode=yes", "--", host] for host in ("alpha", "beta")
    ]
    assert all("--key - " in line and script in line for line in lines)


def test_a_dry_run_of_one_host_prints_its_ranks(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--nnodes", "2", "--nproc-per-node", "2", "--node-rank", "1", "--head", "127.0.0.1:5"]
    assert status_of(*place, "--dry-run", script) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["node 1 (rank 2)", "node 1 (rank 3)"]
    assert all("MANIPLE_HEAD=tcp://127.0.0.1:5" in line and "MANIPLE_TOKEN='(secret)'" in line for line in lines)


def test_a_batch_script_is_printed_whole(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("--launcher", "slurm:batch", "--nnodes", "3", script) == 0
    assert capsys.readouterr().out.startswith("#!/bin/sh\n#SBATCH --nodes=3\n")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--max-restarts", "-1"), "--max-restarts: expected 0 or more, got -1"),
        (("--nodes", "2", "--min-nodes", "1"), "--min-nodes: only a run that may begin again goes on with fewer"),
        (
            ("--nodes", "2", "--max-restarts", "1", "--min-nodes", "3"),
            "expected 1 to 2 of --nnodes 2, got 3",
        ),
        (
            ("--nodes", "2", "--max-restarts", "1", "--min-nodes", "1"),
            "only a launcher that knows the hosts",
        ),
    ],
)
def test_restarts_that_mean_nothing_are_refused(
    script: str, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    assert status_of(*options, "--cores", "1", script) == 2
    assert said in capsys.readouterr().err
