"""Runs over several hosts: network namespaces joined by a link, whose frames the system counts."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from namespaces import Host, hosts, reason, switched

WHY = reason()
SCRIPTS = Path(__file__).resolve().parent / "scripts"
SCRIPT = str(SCRIPTS / "hosts.py")
STEPS = str(SCRIPTS / "steps.py")
HEAD = "10.77.0.1:29400"
NAMED_S = 10.0

# Of those that train: how agents and ranks begin as interpreters of their own is seen in the tests without this.
FORKED = pytest.mark.usefixtures("forked_launches")

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.timeout(150),
    pytest.mark.skipif(WHY is not None, reason=str(WHY)),
]


@pytest.fixture
def pair() -> Iterator[tuple[Host, Host]]:
    with hosts("t") as made:
        yield made


def begin(
    pair: tuple[Host, ...], key: Path, *program: str, ranks: int = 1, nodes: int = 0, **options: str
) -> list[subprocess.Popen[str]]:
    """Start the agents of a run on some hosts; of more, where others come later."""
    found = []
    for node, host in enumerate(pair):
        world = ["--nnodes", str(nodes or len(pair)), "--nproc-per-node", str(ranks)]
        place = [*world, "--node-rank", str(node), "--head", HEAD]
        more = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
        command = [sys.executable, "-m", "maniple.cli", "run", *place, "--key", str(key), "--cores", "1", *more]
        found.append(host.start(*command, *(program or (SCRIPT, "data_parallel", "4"))))
    return found


def ended(process: subprocess.Popen[str], seconds: float = 90) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, err


def pids(process: subprocess.Popen[str]) -> list[int]:
    """Wait for the line that says that all ranks train."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("pids "):
            return [int(word) for word in line.split()[1:]]
    raise AssertionError(f"the ranks never met: {process.communicate()[1]}")


def are_gone(numbers: list[int]) -> bool:
    """Whether none of some processes runs any more."""
    end = time.monotonic() + NAMED_S
    while time.monotonic() < end:
        if not any(_runs(number) for number in numbers):
            return True
        time.sleep(0.05)
    return False


def _runs(number: int) -> bool:
    """Whether a process is there and has not ended; one whose agent is killed may be left to this process to bury."""
    try:
        return "State:\tZ" not in Path(f"/proc/{number}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def on_one_host(ranks: int, *program: str, nodes: int = 2) -> dict[str, object]:
    command = [sys.executable, "-m", "maniple.cli", "run", "--nnodes", str(nodes), "--nproc-per-node", str(ranks)]
    run = subprocess.run([*command, "--cores", "1", *program], capture_output=True, text=True, timeout=90, check=False)
    assert run.returncode == 0, run.stderr
    assert f"{nodes} nodes are emulated on this host" in run.stderr
    found: dict[str, object] = json.loads(run.stdout.splitlines()[-1])
    return found


@FORKED
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_two_hosts_give_the_losses_and_bytes_of_one(pair: tuple[Host, Host], tmp_path: Path, ranks: int) -> None:
    before = [host.sent_bytes() for host in pair]
    leading, following = begin(pair, tmp_path / "key", ranks=ranks)
    status, out, err = ended(leading)
    assert (status, *ended(following)) == (0, 0, "", ""), err
    frames = sum(host.sent_bytes() - start for host, start in zip(pair, before, strict=True))
    told = json.loads(out.splitlines()[-1])
    expected = on_one_host(ranks, SCRIPT, "data_parallel", "4")
    assert told["hosts"] == ["alpha", "beta"]
    assert told["losses"] == expected["losses"]
    assert told["bytes"] == expected["bytes"]
    predicted = sum(step["predicted"] for step in told["bytes"])
    assert predicted == sum(step["measured"] for step in told["bytes"]) == sum(told["sent"])
    # Of the pairs of ranks of an all-reduce, so many are of two hosts: 1 of 1, 4 of 6, or 9 of 15.
    crossing = predicted * ranks // (2 * ranks - 1)
    # Headers of frames, acknowledgements, messages and the handshakes come on top: less than 6 % of so few bytes.
    assert crossing < frames < 1.06 * crossing + 20_000, (crossing, frames)
    assert not (tmp_path / "key").exists()


@FORKED
@pytest.mark.parametrize(("ranks", "transport"), [(1, "shared"), (2, "shared-gloo-collectives")])
def test_so_do_three_on_limited_links_whoever_makes_the_exchanges(tmp_path: Path, ranks: int, transport: str) -> None:
    """Gloo folds in an order of its own; what crosses the links is what the plan says, or in Gloo's ring as much."""
    with switched("l", ("alpha", "beta", "gamma")) as made:
        for host in made:
            host.limit("1gbit")
        before = [host.sent_bytes() for host in made]
        leading, *others = begin(made, tmp_path / "key", ranks=ranks, transport=transport)
        status, out, err = ended(leading)
        assert (status, *[ended(other) for other in others]) == (0, *[(0, "", "")] * 2), err
        frames = sum(host.sent_bytes() - start for host, start in zip(made, before, strict=True))
    told = json.loads(out.splitlines()[-1])
    expected = on_one_host(ranks, SCRIPT, "data_parallel", "4", nodes=3)
    if transport == "shared":
        assert told["losses"] == expected["losses"]
    assert told["losses"] == pytest.approx(expected["losses"], rel=1e-6)
    assert told["bytes"] == expected["bytes"]
    predicted = sum(step["predicted"] for step in told["bytes"])
    assert predicted == sum(step["measured"] for step in told["bytes"])
    assert frames < 1.06 * predicted + 60_000


@pytest.mark.parametrize("victim", ["rank", "agent"])
def test_what_is_killed_is_named_and_everything_ends(pair: tuple[Host, Host], tmp_path: Path, victim: str) -> None:
    leading, following = begin(pair, tmp_path / "key", STEPS, "wait")
    ranks = pids(leading)
    killed = {"rank": ranks[1], "agent": following.pid}[victim]
    os.kill(killed, signal.SIGKILL)
    start = time.monotonic()
    outcomes = [ended(process, 20) for process in (leading, following)]
    assert time.monotonic() - start < NAMED_S
    assert are_gone(ranks)
    (first, _, told), (second, _, heard) = outcomes
    if victim == "rank":
        assert (first, second) == (1, 1)
        assert "error: node 1 (rank 1) on host beta was killed by signal 9 (SIGKILL)" in told
        assert "error: node 1 (rank 1) on host beta was killed by signal 9 (SIGKILL)" in heard
    else:
        assert first == 1
        assert re.search(
            r"error: host beta \(node 1, ranks 1\) has not answered for \d s: it is down, .* agent was", told
        )


def test_a_host_that_is_cut_off_is_named_within_ten_seconds(pair: tuple[Host, Host], tmp_path: Path) -> None:
    leading, following = begin(pair, tmp_path / "key", STEPS, "wait")
    ranks = pids(leading)
    pair[1].cut()
    start = time.monotonic()
    status, _, told = ended(leading, 20)
    assert time.monotonic() - start < NAMED_S
    assert status == 1
    assert re.search(r"error: host beta \(node 1, ranks 1\) has not answered for \d s: it is down", told)
    status, _, heard = ended(following, 20)
    assert status == 1
    assert "the coordinator at 10.77.0.1:29400 has not answered" in heard
    assert are_gone(ranks)


def listening(pid: int) -> set[str]:
    """The addresses that anything in a process's network listens at."""
    found = set()
    for family, kind in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]:
            _, local, _, state = line.split()[:4]
            if state == "0A":
                words = re.findall("." * 8, local.partition(":")[0])
                told = b"".join(int(word, 16).to_bytes(4, sys.byteorder) for word in words)
                found.add(socket.inet_ntop(family, told).removeprefix("::ffff:"))
    return found


@pytest.mark.parametrize("node", [0, 1])
def test_an_interrupt_on_any_host_ends_all(pair: tuple[Host, Host], tmp_path: Path, node: int) -> None:
    started = begin(pair, tmp_path / "key", STEPS, "wait")
    ranks = pids(started[0])
    assert [listening(pid) for pid in ranks] == [{host.address} for host in pair]  # and nothing wider
    os.kill(started[node].pid, signal.SIGINT)
    outcomes = [ended(process, 20) for process in started]
    assert [status for status, _, _ in outcomes] == [130, 130], outcomes
    assert are_gone(ranks)


def test_a_host_with_another_key_is_told_so_and_the_run_is_untouched(pair: tuple[Host, Host], tmp_path: Path) -> None:
    (leading,) = begin(pair[:1], tmp_path / "key", STEPS, nodes=2)
    other = tmp_path / "other"
    other.write_text("0" * 32 + "\n")
    other.chmod(0o600)
    place = ["--cores", "1", "--nnodes", "2", "--node-rank", "1", "--head", HEAD, "--join-timeout"]
    run = [sys.executable, "-m", "maniple.cli", "run", *place]
    wrong = pair[1].start(*run, "2", "--key", str(other), STEPS)
    status, _, told = ended(wrong)
    assert status == 1
    assert "what answers at 10.77.0.1:29400 does not take the key of host beta (10.77.0.2)" in told
    right = pair[1].start(*run, "30", "--key", str(tmp_path / "key"), STEPS)
    assert [ended(process)[0] for process in (leading, right)] == [0, 0]


def test_the_key_of_a_killed_run_keeps_no_host_out_of_the_next(pair: tuple[Host, Host], tmp_path: Path) -> None:
    stale = tmp_path / "keys" / "10.77.0.1-29400.key"
    stale.parent.mkdir()
    stale.touch(0o600)
    stale.write_text("0" * 32 + "\n")
    run = [sys.executable, "-m", "maniple.cli", "run", "--cores", "1", "--nnodes", "2", "--head", HEAD, "--node-rank"]
    following = pair[1].start(*run, "1", "--log-dir", str(tmp_path / "logs"), STEPS, MANIPLE_CACHE=str(tmp_path))
    while not (tmp_path / "logs").exists():  # made once the stale key is read
        assert following.poll() is None
        time.sleep(0.01)
    leading = pair[0].start(*run, "0", STEPS, MANIPLE_CACHE=str(tmp_path))
    outcomes = [ended(process) for process in (leading, following)]
    assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    assert not stale.exists()


AHEAD = """
import time
for _name, _unit in (("time", 1), ("time_ns", 10**9)):
    setattr(time, _name, lambda real=getattr(time, _name), hour=3600 * _unit: real() + hour)
"""


@FORKED
def test_clocks_an_hour_apart_change_nothing_and_are_told_by_doctor(pair: tuple[Host, Host], tmp_path: Path) -> None:
    """Nothing that ranks agree on is by the clocks of hosts; who reads logs side by side is told."""
    (tmp_path / "ahead").mkdir()
    (tmp_path / "ahead" / "sitecustomize.py").write_text(AHEAD, encoding="utf-8")
    later = {"PYTHONPATH": ":".join([str(tmp_path / "ahead"), *filter(None, [os.environ.get("PYTHONPATH")])])}
    place = ["--nnodes", "2", "--head", HEAD, "--key", str(tmp_path / "key")]
    run = [sys.executable, "-m", "maniple.cli", "run", "--cores", "1", *place, "--node-rank"]
    processes = [pair[0].start(*run, "0", SCRIPT, "data_parallel", "4")]
    processes.append(pair[1].start(*run, "1", SCRIPT, "data_parallel", "4", **later))
    outcomes = [ended(process) for process in processes]
    assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    assert (
        json.loads(outcomes[0][1].splitlines()[-1])["losses"] == on_one_host(1, SCRIPT, "data_parallel", "4")["losses"]
    )
    look = [sys.executable, "-m", "maniple.cli", "doctor", *place, "--node-rank"]
    looks = [pair[0].start(*look, "0", "--json"), pair[1].start(*look, "1", **later)]
    (status, out, err), (_, _, _) = [ended(process) for process in looks]
    assert status == 0, err
    told = {one["name"]: one for one in json.loads(out)["findings"]}["clocks alpha - beta"]
    assert re.fullmatch(r"that of beta is 3(599|600)\.\d s ahead of that of alpha", told["value"])
    assert told["next"].startswith("set them by NTP")


def test_two_hosts_of_one_address_are_refused_by_name(pair: tuple[Host, Host], tmp_path: Path) -> None:
    leading, following = begin((pair[0], pair[0]), tmp_path / "key", STEPS)
    outcomes = [ended(process) for process in (leading, following)]
    assert [status for status, _, _ in outcomes] == [1, 1]
    assert "it has address 10.77.0.1, as host alpha (node 0); give each host one address" in outcomes[0][2]
    assert "it has address 10.77.0.1, as host alpha (node 0); give each host one address" in outcomes[1][2]


def test_an_interface_without_a_route_is_named(pair: tuple[Host, Host], tmp_path: Path) -> None:
    place = ["--nnodes", "2", "--node-rank", "1", "--head", HEAD, "--interface", "lo", "--key", str(tmp_path / "key")]
    status, _, err = ended(pair[1].start(sys.executable, "-m", "maniple.cli", "run", *place, STEPS))
    assert status == 1
    assert "interface lo (127.0.0.1) has no route to 10.77.0.1, which is reached from 10.77.0.2" in err


ONE_HOST_ONLY = """
from socket import gethostname
from maniple.runtime.devices.cuda_device import check_cuda
from maniple.runtime.devices.null_device import NullDevice

class Somewhere(NullDevice):
    def __init__(self, local, capacity):
        if gethostname() == "beta":
            check_cuda()
        super().__init__(local, capacity)
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="one host must have no GPU")
def test_one_host_of_two_without_a_gpu_is_named_with_what_can_be_done(pair: tuple[Host, Host], tmp_path: Path) -> None:
    """A device that the first host has: null there, and on the second what CUDA says where there is no GPU."""
    (tmp_path / "somewhere.py").write_text(ONE_HOST_ONLY)
    told = tmp_path / "somewhere-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: somewhere\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text("[maniple.devices]\nsomewhere = somewhere:Somewhere\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", path)
        runs = begin(pair, tmp_path / "key", device="somewhere")
    for status, _, said in map(ended, runs):
        assert status == 2, said
        assert "node 1 (rank 1) on host beta refused the request during `Trainer('digits_cnn'" in said
        assert "--device cuda: " in said
        assert "; or run on CPUs, or try the program with --device null\n" in said
