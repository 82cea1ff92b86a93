"""Networks: what a machine says of routes, links and carriers, as columns."""

from __future__ import annotations

import pytest
from naive_traffic import carrier_of

from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.network import ENGINE, LINE, Network


@pytest.mark.parametrize("name", ["cpu:1", "cpu:3x2", "p100x4", "k80x8", "h100x8"])
def test_columns_say_what_the_machine_says(name: str) -> None:
    machine = Machine.preset(name)
    network, count = Network.of(machine), len(machine.memories)
    starts, links, latencies, bandwidths, carriers, speeds, rising, hosts = network.wires
    for source in range(count):
        for target in range(count):
            pair = source * count + target
            passed = tuple(links[starts[pair] : starts[pair + 1]].tolist())
            assert passed == (() if source == target else machine.routes.route(source, target))
            assert rising[starts[pair] : starts[pair + 1]].tolist() == sorted(passed)
            assert [(latencies[link], bandwidths[link]) for link in passed] == list(map(machine.routes.rate, passed))
    found = list(zip(carriers.tolist(), speeds.tolist(), strict=True))
    assert found == [carrier_of(machine, memory) for memory in range(count)]
    assert hosts.tolist() == [memory.host for memory in machine.memories]
    assert network.processors == len(machine.processors)
    assert network.lanes > network.processors + max(links.tolist(), default=-1)


def test_gpus_have_engines_and_cpus_do_not() -> None:
    gpus, cpus = Network.of(Machine.preset("p100x4")), Network.of(Machine.preset("cpu:2x2"))
    assert set(gpus.wires[4].tolist()) == {ENGINE}
    assert cpus.wires[4].tolist() == [0, 2]
    assert (gpus.copies, gpus.line) == (False, 0)
    assert (cpus.copies, cpus.line) == (True, LINE)
