"""What `maniple doctor --hosts` says of hosts, and the machine that it writes."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from maniple.host_report import build_machine, findings
from maniple.host_survey import rounds
from maniple.runtime.machine.machine import Machine


def host(number: int, **versions: str) -> dict[str, Any]:
    told = {"python": "3.11.7", "maniple": "0.1", "torch": "2.13.0", "numba": "0.68", "pyzmq": "27.3", **versions}
    interfaces = [("eth0", f"10.0.0.{number}"), ("ib0", f"10.1.0.{number}")]
    name = "abcdef"[number - 1]
    return {
        "host": name, "address": f"10.0.0.{number}", "interfaces": interfaces, "cores": 8, "memory_bytes": 2**34,
        "versions": told,
    }  # fmt: skip


def way(one: int, other: int, *, used: bool = True, rate: float = 1e8, ahead_s: float = 0.0) -> dict[str, Any]:
    net = 0 if used else 1
    return {
        "from": "abcdef"[one], "to": "abcdef"[other], "pair": [one, other], "used": used,
        "address": f"10.{net}.0.{other + 1}", "leaves": f"10.{net}.0.{one + 1}",
        "latency_s": 2e-5, "there": rate, "back": 2 * rate, "both": 1.5 * rate, "ahead_s": ahead_s,
    }  # fmt: skip


@pytest.mark.parametrize("count", range(2, 12))
def test_rounds_have_every_pair_once_and_no_host_twice(count: int) -> None:
    found = rounds(count)
    assert sorted(tuple(sorted(pair)) for pairs in found for pair in pairs) == list(combinations(range(count), 2))
    assert all(len({host for pair in pairs for host in pair}) == 2 * len(pairs) for pairs in found)
    assert len(found) == (count - 1 if count % 2 == 0 else count)


def test_the_rounds_of_four_hosts_are_those_that_are_drawn() -> None:
    assert rounds(4) == [[(0, 3), (1, 2)], [(0, 2), (3, 1)], [(0, 1), (2, 3)]]


def test_sound_hosts_have_no_next_step() -> None:
    found = findings({"hosts": [host(1), host(2)], "ways": [way(0, 1)]})
    assert all(one.ok and not one.next for one in found)
    assert "20 us, 100.0 MB/s there, 200.0 MB/s back, 150.0 MB/s each way at once, by eth0" in [
        one.value for one in found
    ]


def test_the_wrong_interface_is_named_with_the_right_one() -> None:
    ways = [way(0, 1), way(0, 1, used=False, rate=1e9)]
    bad = [one for one in findings({"hosts": [host(1), host(2)], "ways": ways}) if not one.ok]
    assert [(one.name, one.value, one.next) for one in bad] == [
        ("interface a - b", "eth0 would be used, and ib0 carries 1.00 GB/s", "give --interface ib0")
    ]
    slow = [way(0, 1), way(0, 1, used=False, rate=1.2e8)]
    assert all(one.ok for one in findings({"hosts": [host(1), host(2)], "ways": slow}))


def test_an_address_that_is_not_reached_is_named_with_one_that_is() -> None:
    broken = {**way(0, 1), "error": "No route to host"}
    for key in ("there", "leaves"):
        del broken[key]
    (bad,) = (
        one for one in findings({"hosts": [host(1), host(2)], "ways": [broken, way(0, 1, used=False)]}) if not one.ok
    )
    assert bad.value == "10.0.0.2 (eth0) of b is not reached: No route to host"
    assert bad.next == "ib0 is reached: give --interface ib0"


@pytest.mark.parametrize(
    ("ahead_s", "said"),
    [(3600.0, "that of b is 3600.0 s ahead of that of a"), (-7.5, "that of a is 7.5 s ahead of that of b")],
)
def test_clocks_that_differ_are_told(ahead_s: float, said: str) -> None:
    found = findings({"hosts": [host(1), host(2)], "ways": [way(0, 1, ahead_s=ahead_s)]})
    assert said in [one.value for one in found]


def test_versions_that_differ_are_named_by_host_and_patches_of_python_do_not() -> None:
    found = findings({"hosts": [host(1), host(2, torch="2.12.0", python="3.11.9")], "ways": [way(0, 1)]})
    bad = [(one.name, one.value) for one in found if not one.ok]
    assert bad == [("torch", "2.13.0 on a, 2.12.0 on b")]


def test_the_machine_has_the_links_that_were_measured(tmp_path: Path) -> None:
    survey = {
        "hosts": [host(1), host(2), host(3)],
        "ways": [way(0, 1), way(0, 2, rate=5e8), way(2, 1), way(0, 1, used=False)],
    }
    build_machine(survey).save(tmp_path / "hosts.toml")
    machine = Machine.load(tmp_path / "hosts.toml")
    assert [one.name for one in machine.hosts] == ["a", "b", "c"]
    assert {(one.source, one.target): one.bandwidth for one in machine.links} == {
        (0, 1): 1e8, (1, 0): 1.5e8, (0, 2): 5e8, (2, 0): 7.5e8, (2, 1): 1e8, (1, 2): 1.5e8
    }  # fmt: skip
    assert {one.latency_s for one in machine.links} == {2e-5}
