"""Launchers of hosts: the command lines that they build, which hold no secret, and what they refuse."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from maniple.process import environment
from maniple.process.error import RequestError
from maniple.runtime.cluster.host_launcher import HostLauncher, agent_command
from maniple.runtime.cluster.launcher import LaunchRequest
from maniple.runtime.cluster.launchers import ray as ray_launcher
from maniple.runtime.cluster.launchers.mpi import MpiLauncher
from maniple.runtime.cluster.launchers.ray import RayHost, RayLauncher
from maniple.runtime.cluster.launchers.slurm import SlurmLauncher, expand
from maniple.runtime.cluster.launchers.ssh import SshLauncher


@pytest.fixture
def request_of_two(tmp_path: Path) -> LaunchRequest:
    script = tmp_path / "a program.py"
    script.write_text("pass\n", encoding="utf-8")
    return LaunchRequest((str(script), "--rate", "0.1; x"), nodes=2, ranks_per_node=3, cores=1, spread=True)


def commands(launcher: HostLauncher, request: LaunchRequest) -> list[tuple[str, ...]]:
    return [command.argv for command in launcher.commands(request, agent_command(request, "10.0.0.1:5"))]


def check_agent(argv: list[str], request: LaunchRequest, node: int | None) -> None:
    """What every host is told: the same options, its node where that is known, and the program's own words whole."""
    place = [] if node is None else ["--node-rank", str(node)]
    tail = ["--join", "--head", "10.0.0.1:5", "--key", "-", *place, *request.target]
    assert argv[:4] == [sys.executable, "-m", "maniple.cli", "run"]
    assert argv[4:8] == ["--nnodes", "2", "--nproc-per-node", "3"]
    assert argv[-len(tail) :] == tail


def test_ssh_starts_a_shell_on_each_host(request_of_two: LaunchRequest) -> None:
    found = commands(SshLauncher("me@alpha,beta"), request_of_two)
    for node, (host, argv) in enumerate(zip(("me@alpha", "beta"), found, strict=True)):
        assert argv[:5] == ("ssh", "-o", "BatchMode=yes", "--", host)
        words = shlex.split(argv[5])
        assert words[:5] == ["cd", str(Path.cwd()), "&&", "exec", "env"]
        check_agent(words[words.index(sys.executable) :], request_of_two, node)


@pytest.mark.parametrize("cores", [None, "6"])
def test_srun_starts_a_step_with_one_task_on_each_host(
    request_of_two: LaunchRequest, monkeypatch: pytest.MonkeyPatch, cores: str | None
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[07-08]")
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    if cores is not None:
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", cores)
    (argv,) = commands(SlurmLauncher(), request_of_two)
    begin = argv.index(sys.executable)
    words = [word for word in argv[1:begin] if word != "--kill-on-bad-exit=0"]
    told = dict(zip(words[::2], words[1::2], strict=True))
    assert argv[0] == "srun"
    assert (told["--cpu-bind"], told.get("--cpus-per-task")) == ("none", cores)  # all that the allocation has
    assert (told["--nodes"], told["--ntasks"], told["--ntasks-per-node"]) == ("2", "2", "1")
    assert "n07,n08" in argv
    check_agent(list(argv[begin:]), request_of_two, None)


def test_mpirun_starts_one_process_on_each_host(request_of_two: LaunchRequest) -> None:
    (argv,) = commands(MpiLauncher("alpha,beta"), request_of_two)
    begin = argv.index(sys.executable)
    line = " ".join(argv[:begin])
    assert line.startswith("mpirun -n 2 --host alpha,beta --map-by node --bind-to none --wdir ")
    check_agent(list(argv[begin:]), request_of_two, None)


CLUSTER = [RayHost("10.0.0.1", 0, 0), RayHost("10.0.0.2", 8, 4), RayHost("10.0.0.3", 3, 0), RayHost("10.0.0.4", 16, 4)]


@pytest.fixture
def cluster_of_ray(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A cluster of four nodes, the first of which is to be left alone; gives the addresses that were asked."""
    asked: list[str] = []

    def ask(address: str) -> list[RayHost]:
        asked.append(address)
        return CLUSTER

    monkeypatch.setattr(ray_launcher, "ask_hosts", ask)
    return asked


def test_ray_starts_one_program_that_has_an_actor_on_each_host(
    request_of_two: LaunchRequest, cluster_of_ray: list[str]
) -> None:
    (argv,) = commands(RayLauncher("10.0.0.1:6379"), request_of_two)
    assert argv[:4] == (sys.executable, "-m", "maniple.runtime.cluster.launchers.ray_actors", "start")
    begin = argv.index("--")
    told = dict(zip(argv[4:begin:2], argv[5:begin:2], strict=True))
    assert (told["--address"], told["--hosts"], told["--cpus"]) == ("10.0.0.1:6379", "10.0.0.2,10.0.0.3", "3,3")
    agent, at = argv[begin + 1 :], int(told["--node-at"])
    check_agent([*agent[:at], "--node-rank", "1", *agent[at:]], request_of_two, 1)
    assert set(cluster_of_ray) == {"10.0.0.1:6379"}


def test_ray_gives_the_cores_that_are_asked_for_or_all_of_a_node(
    request_of_two: LaunchRequest, cluster_of_ray: list[str]
) -> None:
    (argv,) = commands(RayLauncher(), replace(request_of_two, cores=None, ranks_per_node=1))
    assert argv[argv.index("--cpus") + 1] == "8,3"
    (argv,) = commands(RayLauncher(), replace(request_of_two, device="cuda"))
    assert argv[argv.index("--hosts") + 1] == "10.0.0.2,10.0.0.4"
    assert argv[argv.index("--gpus") + 1] == "3"


def test_ray_is_asked_again_once_a_host_is_lost(request_of_two: LaunchRequest, cluster_of_ray: list[str]) -> None:
    launcher = RayLauncher()
    assert launcher.count() == 3
    assert launcher.without(["10.0.0.2"]).hosts(request_of_two) == ("10.0.0.3", "10.0.0.4")
    assert len(cluster_of_ray) == 2
    with pytest.raises(RequestError, match=r"expected 2 nodes of 3 cores and 0 GPUs .* has 1 of: 10\.0\.0\.1"):
        launcher.without(["10.0.0.2", "10.0.0.3"]).hosts(request_of_two)


def test_a_client_of_ray_is_refused() -> None:
    with pytest.raises(RequestError, match="launcher ray: expected HOST:PORT of the cluster's head, got 'ray://h:1'"):
        RayLauncher("ray://h:1")


def test_a_batch_script_allocates_the_hosts_and_runs_inside(request_of_two: LaunchRequest, tmp_path: Path) -> None:
    script = SlurmLauncher("batch").script(request_of_two)
    assert script is not None
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --cpus-per-task=3\n" in script
    last = shlex.split(script.splitlines()[-1])
    assert last[:5] == ["exec", sys.executable, "-m", "maniple.cli", "run"]
    assert last[-5:] == ["--launcher", "slurm", *request_of_two.target]
    again = SlurmLauncher("batch").script(replace(request_of_two, max_restarts=3, min_nodes=1))
    assert shlex.split(str(again).splitlines()[-1])[-9:-3] == [
        *("--launcher", "slurm", "--max-restarts", "3", "--min-nodes", "1")
    ]
    file = tmp_path / "job.sh"
    file.write_text(script)
    subprocess.run(["sh", "-n", str(file)], check=True)  # a shell can read it


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", ["a"]),
        ("a,b-x2", ["a", "b-x2"]),
        ("a[01-03,7],b-x2", ["a01", "a02", "a03", "a7", "b-x2"]),
        ("linux[1,2]", ["linux1", "linux2"]),
        ("r[1-2]n[08-09]", ["r1n08", "r1n09", "r2n08", "r2n09"]),
        ("10.77.0.[1-2]", ["10.77.0.1", "10.77.0.2"]),
        ("", []),
    ],
)
def test_a_list_of_hosts_is_read_as_slurm_writes_it(text: str, hosts: list[str]) -> None:
    assert expand(text) == hosts


@pytest.mark.parametrize("text", ["a[1", "a[1-]x", "a[3-1]", "a[x]", "a[0-99999999]"])
def test_a_list_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="SLURM_JOB_NODELIST: expected hosts"):
        expand(text)


def test_launchers_without_hosts_are_refused(request_of_two: LaunchRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    with pytest.raises(RequestError, match="launcher slurm: expected to run in an allocation"):
        SlurmLauncher().hosts(request_of_two)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "a")
    with pytest.raises(RequestError, match="expected 2 hosts for --nnodes 2, and the allocation has 1: a"):
        SlurmLauncher().hosts(request_of_two)
    with pytest.raises(RequestError, match="launcher ssh: expected hosts"):
        SshLauncher("")
    with pytest.raises(RequestError, match="launcher mpi: expected hosts"):
        MpiLauncher("")
    with pytest.raises(RequestError, match="launcher slurm: expected no argument or `batch`"):
        SlurmLauncher("now")


@pytest.mark.parametrize(
    ("variables", "node"),
    [
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"},
            1,
        ),
        ({"PMI_RANK": "2"}, 2),
        ({"SLURM_PROCID": "3", "SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "1(x4)"}, 3),
    ],
)
def test_the_environment_says_which_host_this_is(variables: dict[str, str], node: int) -> None:
    assert environment.node_of_host(variables) == node


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({}, "--node-rank: expected a number"),
        ({"SLURM_PROCID": "0"}, "--node-rank: expected a number"),  # the shell of an allocation
        ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}, "expected one process"),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "expected one process on each host, got 2"),
    ],
)
def test_an_environment_that_does_not_say_it_is_refused(variables: dict[str, str], why: str) -> None:
    with pytest.raises(RequestError, match=why):
        environment.node_of_host(variables)


def test_what_is_only_wanted_or_not_is_an_option_without_a_value(request_of_two: LaunchRequest) -> None:
    plain, asked = (agent_command(replace(request_of_two, compiles=wanted), "10.0.0.1:5") for wanted in (False, True))
    assert "--compile" not in plain.words
    assert [word for word in asked.words if word not in plain.words] == ["--compile"]
