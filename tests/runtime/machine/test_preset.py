"""Presets of GPU machines: hosts, wires and rates."""

from __future__ import annotations

from pathlib import Path

import pytest

from maniple.process.error import RequestError
from maniple.runtime.machine.machine import Machine
from maniple.runtime.machine.preset import GPUS


def names(machine: Machine, source: int, target: int) -> list[str]:
    return [machine.routes.name(link) for link in machine.routes.route(source, target)]


@pytest.mark.parametrize("gpu", sorted(GPUS))
@pytest.mark.parametrize("count", [1, 3, 16, 20])
def test_any_count_gives_a_machine_whose_memories_all_reach_each_other(gpu: str, count: int, tmp_path: Path) -> None:
    machine = Machine.preset(f"{gpu}x{count}")
    per_host = GPUS[gpu].per_host
    assert len(machine.processors) == len(machine.memories) == count
    assert len(machine.hosts) == -(-count // per_host)
    for source in range(count):
        for target in range(count):
            if source != target:
                route = machine.routes.route(source, target)
                links = [machine.routes.links[number] for number in route]
                assert [link.source for link in links[1:]] == [link.target for link in links[:-1]]
                assert (links[0].source, links[-1].target) == (source, target)
                across = machine.memories[source].host != machine.memories[target].host
                assert any("network" in (link.source, link.target) for link in links) == across
    machine.save(tmp_path / "machine.toml")
    assert Machine.load(tmp_path / "machine.toml") == machine


def test_gpus_of_a_k80_card_share_its_switch_and_all_share_the_way_out() -> None:
    machine = Machine.preset("k80x8")
    assert names(machine, 0, 1) == ["0 -> card0.0", "card0.0 -> 1"]
    assert names(machine, 0, 2) == ["0 -> card0.0", "card0.0 -> pcie0", "pcie0 -> card0.1", "card0.1 -> 2"]
    assert set(names(machine, 0, 4)) & set(names(machine, 3, 7)) == {"pcie0 -> network", "network -> pcie1"}
    assert machine.link(0, 4).bandwidth == 6.8e9


def test_nvlink_joins_any_two_p100_of_a_host() -> None:
    machine = Machine.preset("p100x8")
    assert names(machine, 0, 3) == ["0 -> 3"]
    assert names(machine, 1, 6) == ["1 -> pcie0", "pcie0 -> network", "network -> pcie1", "pcie1 -> 6"]


def test_two_v100_without_an_nvlink_go_over_pcie() -> None:
    machine = Machine.preset("v100x8")
    assert machine.link(0, 4).bandwidth == 40e9
    assert names(machine, 0, 5) == ["0 -> pcie0.0", "pcie0.0 -> cpu0", "cpu0 -> pcie0.2", "pcie0.2 -> 5"]
    # Six NVLinks of 20 GB/s leave every GPU.
    for gpu in range(8):
        wide = [link.bandwidth for link in machine.links if link.source == gpu and isinstance(link.target, int)]
        assert sum(wide) == 120e9


@pytest.mark.parametrize("gpu", sorted(GPUS))
def test_rates_are_within_what_hardware_of_the_last_decade_has(gpu: str) -> None:
    kind = GPUS[gpu]
    assert 1e12 < kind.flops_per_s < 1e14
    assert 10e9 < kind.memory_bytes < 200e9
    assert 200e9 < kind.memory_bandwidth < 10e12


def test_an_unknown_gpu_lists_the_known() -> None:
    with pytest.raises(RequestError, match="there is no GPU 'p10'; known: a100, b200"):
        Machine.preset("p10x4")
