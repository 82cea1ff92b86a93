"""Networks: what a machine says of routes, links and carriers, as columns."""

from __future__ import annotations

import numpy as np
import pytest
from naive_plan import toured
from naive_traffic import carrier_of

from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.network import ENGINE, LINE, Network


@pytest.mark.parametrize("name", ["cpu:1", "cpu:3x2", "p100x4", "k80x8", "v100x12", "h100x8"])
def test_columns_say_what_the_machine_says(name: str) -> None:
    machine = Machine.preset(name)
    network, count = Network.of(machine), len(machine.memories)
    starts, links, latencies, bandwidths, carriers, speeds, rising, hosts, launches, tour, kinds, switched = (
        network.wires
    )
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
    firsts = [machine.processor(machine.processors_of(memory)[0]) for memory in range(count)]
    assert launches.tolist() == [processor.launch_s for processor in firsts]
    assert np.argsort(tour).tolist() == toured(machine)
    for source in range(count):
        for target in range(count):
            if source != target and switched[kinds[source] * (max(kinds) + 1) + kinds[target]]:
                route = machine.routes.route(source, target)
                for other in range(count):
                    if kinds[other] == kinds[source] and other != target:
                        assert machine.routes.route(other, target)[1:] == route[1:]
                    if kinds[other] == kinds[target] and other != source:
                        assert machine.routes.route(source, other)[:-1] == route[:-1]
    assert network.processors == len(machine.processors)
    assert network.lanes > network.processors + max(links.tolist(), default=-1)


def test_gpus_have_engines_and_cpus_do_not() -> None:
    gpus, cpus = Network.of(Machine.preset("p100x4")), Network.of(Machine.preset("cpu:2x2"))
    assert set(gpus.wires[4].tolist()) == {ENGINE}
    assert cpus.wires[4].tolist() == [0, 2]
    assert (gpus.copies, gpus.line) == (False, 0)
    assert (cpus.copies, cpus.line) == (True, LINE)
