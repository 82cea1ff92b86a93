"""`maniple doctor` over two network namespaces that two links join, one of which is slow."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from namespaces import IP, Host, hosts, reason

from maniple.runtime.machine.machine import Machine

WHY = reason() or (None if shutil.which("tc", path="/sbin:/usr/sbin:/bin:/usr/bin") else "needs tc (iproute2)")
SLOW = 12.5e6
"""Bytes per second of the first link: 100 Mbit/s."""

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.timeout(120),
    pytest.mark.skipif(WHY is not None, reason=str(WHY)),
]


@pytest.fixture
def pair() -> Iterator[tuple[Host, Host]]:
    with hosts("d") as made:
        fast = [f"f{host.interface}" for host in made]
        peer = ["type", "veth", "peer", "name", fast[1], "netns", made[1].name]
        subprocess.run([IP, "link", "add", fast[0], "netns", made[0].name, *peer], check=True)
        for end, (host, name) in enumerate(zip(made, fast, strict=True), 1):
            for action in (["addr", "add", f"10.78.0.{end}/24", "dev", name], ["link", "set", name, "up"]):
                subprocess.run([IP, "-n", host.name, *action], check=True)
            limit = ["tbf", "rate", "100mbit", "burst", "32kbit", "latency", "50ms"]
            within = [IP, "netns", "exec", host.name]
            subprocess.run([*within, "tc", "qdisc", "add", "dev", host.interface, "root", *limit], check=True)
        yield made


def test_the_slow_interface_is_named_and_its_speed_is_that_of_the_machine(
    pair: tuple[Host, Host], tmp_path: Path
) -> None:
    file = tmp_path / "hosts.toml"
    look = [sys.executable, "-m", "maniple.cli", "doctor", "--nnodes", "2", "--head", "10.77.0.1:29400"]
    look += ["--key", str(tmp_path / "key")]
    leading = pair[0].start(*look, "--node-rank", "0", "--json", "-o", str(file))
    following = pair[1].start(*look, "--node-rank", "1")
    out, err = leading.communicate(timeout=90)
    assert following.communicate(timeout=30)[0] == ""
    assert (leading.returncode, following.returncode) == (1, 0), err
    told = {one["name"]: one for one in json.loads(out)["findings"]}
    wrong = told["interface alpha - beta"]
    assert not wrong["ok"]
    assert wrong["next"] == f"give --interface f{pair[0].interface} on alpha, f{pair[1].interface} on beta"
    assert told["alpha - beta"]["ok"]
    assert not [name for name in told if name.startswith("clocks")]
    machine = Machine.load(file)
    assert [host.name for host in machine.hosts] == ["alpha", "beta"]
    for link in machine.links:
        # The link lets no more through; where others use the computer, the two ends fill it less.
        assert 0.8 * SLOW < link.bandwidth < 1.05 * SLOW
        assert link.latency_s > 0
