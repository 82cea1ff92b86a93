"""Networks: on any machine that a file may describe, a simulation has the times of the step that the runtime lowers."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest
from lowered_step import assert_as_lowered, planned

from maniple.models import model
from maniple.process.error import RequestError
from maniple.runtime.machine.machine import Machine
from maniple.runtime.machine.machine_part import Host, Link, Memory, Processor, Rate
from maniple.strategies.simulation.simulation import Simulation

pytestmark = pytest.mark.simulator


def drawn_rate(chance: Random) -> Rate:
    return Rate(chance.choice([0.0, 5e-7, 1.25e-6, 2e-6, 1e-4]), chance.choice([3e5, 1e9, 12e9, 4e12]))


def drawn_machine(chance: Random) -> Machine:
    """Ranks of one memory or more, CPUs beside GPUs, one-way links of all speeds, switches that may lead nowhere."""
    memories, processors = [Memory(0, 0, 0, 1 << 30, 1e10)], []
    for number in range(1, chance.randint(2, 5)):
        rank = memories[-1].rank + chance.randint(0, 1)
        memories.append(Memory(number, rank, chance.randint(memories[-1].host, 1), 1 << 30, chance.uniform(1e9, 1e12)))
    for memory in memories:
        gpu = chance.random() < 0.4
        for number in range(len(processors), len(processors) + (1 if gpu else chance.choice([1, 3]))):
            launch_s = chance.choice([0.0, 5e-6])
            processors.append(Processor(number, "gpu" if gpu else "cpu", memory.id, 1, 5e10, f"p{number}", launch_s))
    switches = ("a", "b", "c")
    ends = list(permutations([*range(len(memories)), *switches], 2))
    wired = chance.sample(ends, chance.randint(0, len(ends)))
    rates = {pair: drawn_rate(chance) for pair in wired}
    links = tuple(Link(*pair, rate.latency_s, rate.bandwidth) for pair, rate in rates.items())
    hosts = Host(0, "host0"), Host(1, "host1")
    rest = drawn_rate(chance), drawn_rate(chance)
    return Machine("drawn", hosts, tuple(memories), tuple(processors), links, *rest, switches)


@pytest.mark.parametrize("seed", range(10))
def test_any_machine_is_simulated_as_it_is_lowered_for(seed: int) -> None:
    chance = Random(seed)
    graph, machine = model("mlp", batch=12), drawn_machine(chance)
    simulation = Simulation(graph, machine, planned(graph, machine, "random", seed))
    assert_as_lowered(simulation)
    other = planned(graph, machine, "random", 1000 + seed)
    simulation.propose(dict(chance.sample(other.operators, 2)))
    assert_as_lowered(simulation)


def test_rates_in_other_units_are_refused() -> None:
    """A span that the tables cannot hold would wrap round: 12 for 12 GB/s."""
    graph, machine = model("mlp", batch=12), Machine.cpu(1, ranks=2)
    slow = Machine("slow", machine.hosts, machine.memories, machine.processors, (), None, Rate(1e-4, 12.0))
    with pytest.raises(RequestError, match=r"for more than 8796 s, got \d+ s; look at the machine's rates"):
        Simulation(graph, slow, planned(graph, slow, "data_parallel", 0))
