"""Kinds of memory: they add up to the peak, and are what a small perceptron's closed forms say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from maniple.operators.graph.graph import Graph
from maniple.operators.plan.plan import Plan
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.memory.memory_plan import ALIGNMENT
from maniple.strategies.interface.placement import complete, whole
from maniple.strategies.interface.registry import STRATEGIES
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.search.memory_fit import peak_operator
from maniple.strategies.simulation.kind import MemoryKind, peak_kinds, region_kind
from maniple.strategies.simulation.simulation import Simulation
from maniple.zoo import handwritten

pytestmark = pytest.mark.simulator


def planned(graph: Graph, machine: Machine, strategy: str, seed: int = 0) -> Plan:
    return STRATEGIES.lookup(strategy)().plan(Problem(graph, machine, seed=seed))


def perceptron(batch: int) -> Graph:
    graph = Graph("perceptron")
    x, y = graph.input("x", (batch, 5)), graph.input("y", (batch,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(graph.relu(graph.linear(x, 7)), 3), y))
    return graph


@pytest.mark.parametrize("machine", ["cpu:3", "cpu:2x2", "p100x4"])
@pytest.mark.parametrize("make", [perceptron, handwritten.mlp, handwritten.digits_cnn])
@pytest.mark.parametrize("seed", range(3))
def test_the_kinds_add_up_to_the_peak(machine: str, make: Callable[[int], Graph], seed: int) -> None:
    graph, where = make(12), Machine.preset(machine)
    simulation = Simulation(graph, where, planned(graph, where, "random", seed))
    found = simulation.predict()
    peaks = simulation.liveness().peaks(len(where.memories)).tolist()
    for memory in range(len(where.memories)):
        kinds = peak_kinds(simulation, memory)
        assert list(kinds) == list(MemoryKind)
        assert min(kinds.values()) >= 0
        assert sum(kinds.values()) == peaks[memory] == found.memory.peak(memory).bytes
        assert peak_operator(simulation, memory) in {node.name for node in graph.nodes}


def told(simulation: Simulation) -> list[tuple[int, ...]]:
    """Of each memory the bytes of each kind but scratch, checked here: a line less a byte for each instance."""
    found = [peak_kinds(simulation, memory) for memory in range(len(simulation.machine.memories))]
    assert all(kinds[MemoryKind.SCRATCH] % (ALIGNMENT - 1) == 0 for kinds in found)
    return [tuple(size for kind, size in kinds.items() if kind is not MemoryKind.SCRATCH) for kinds in found]


FIRST, SECOND = 4 * (7 * 5 + 7), 4 * (3 * 7 + 3)
"""Bytes of the layers' parameters."""


def test_a_perceptron_on_one_processor() -> None:
    """The peak is the way back through the relu: x, the relu's result and gradient, and the gradient before it."""
    graph, machine = perceptron(6), Machine.preset("cpu:1")
    simulation = Simulation(graph, machine, planned(graph, machine, "data_parallel"))
    activations = 4 * (6 * 5 + 3 * 6 * 7)
    assert told(simulation) == [(FIRST + SECOND, SECOND, FIRST + SECOND, activations, 0, 0)]
    assert peak_operator(simulation, 0) == "relu"


def test_data_parallel_over_two_memories() -> None:
    """The same of half the samples; a memory sums and updates 4 or 3 of 7 columns, and 2 or 1 of 3 biases.

    At the peak a memory has its contribution to the second layer's gradient, the part that it sums, and as much of the
    other's on its way to it. Of the first layer's 35 weights it updates 4 or 3 of 7 rows.
    """
    graph, machine = perceptron(8), Machine.preset("p100x2")
    simulation = Simulation(graph, machine, planned(graph, machine, "data_parallel"))
    activations = 4 * (4 * 5 + 3 * 4 * 7)
    shares = [4 * (3 * columns + biases) for columns, biases in ((4, 2), (3, 1))]
    states = [4 * (5 * rows + rows) + share for rows, share in zip((4, 3), shares, strict=True)]
    assert told(simulation) == [
        (FIRST + SECOND, SECOND + share, state, activations, 0, share)
        for share, state in zip(shares, states, strict=True)
    ]


def test_what_came_from_another_memory_is_exchange() -> None:
    """The second processor has the second layer: the relu's result comes there, and there its gradient and a loss are.

    Those were sent, and whether they have arrived is not known there. The first is fullest once it has used them.
    """
    graph, machine = perceptron(6), Machine.preset("p100x2")
    placed = tuple((node.name, whole(graph, node, int(node.id > 1))) for node in graph.nodes)
    simulation = Simulation(graph, machine, complete(Problem(graph, machine), "manual", placed))
    hidden, logits, loss = 4 * 6 * 7, 4 * 6 * 3, 4
    assert told(simulation) == [
        (FIRST, FIRST, FIRST, 4 * 6 * 5 + 2 * hidden, 0, 0),
        (SECOND, SECOND, SECOND, hidden + logits + loss, 0, hidden),
    ]


@pytest.mark.parametrize("turns", [False, True])
def test_indices_of_a_pool_are_saved(turns: bool) -> None:
    """A pool of 2 x 2 keeps, for each of its results, which of four it was, in eight bytes: of two halves as much."""
    graph = Graph("pooled")
    x, y = graph.input("x", (4, 2, 8, 8)), graph.input("y", (4,), dtype="int64")
    pooled = graph.max_pool2d(graph.relu(graph.conv2d(x, 2, 3, padding=1)), 2)
    graph.loss(graph.cross_entropy(graph.linear(graph.flatten(pooled), 3), y))
    machine, indices = Machine.preset("cpu:1"), 8 * 4 * 2 * 4 * 4
    plan = planned(graph, machine, "data_parallel")
    simulation = Simulation(graph, machine, plan.with_pipeline(micro_batches=2) if turns else plan)
    regions = simulation.parts()[1].items()
    kept = [rows.memory_bytes[0] for key, (rows, _) in regions if region_kind(key, graph) is MemoryKind.SAVED]
    # The loss keeps a number for each sample.
    assert sorted(kept) == sorted([indices // 2, 8] * 2 if turns else [indices, 16])
    if not turns:  # the peak of a step whose halves take turns is at the updates
        assert peak_kinds(simulation, 0)[MemoryKind.SAVED] >= indices
