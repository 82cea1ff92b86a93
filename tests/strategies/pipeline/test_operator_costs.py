"""What operators are counted to take of some micro-batches is what the simulator has one processor compute."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from maniple.operators.graph.graph import Graph
from maniple.operators.operator.operator import Initial
from maniple.process.error import RequestError
from maniple.runtime.machine.machine import Machine
from maniple.strategies.interface.placement import complete, whole
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.pipeline.fleet import Fleet
from maniple.strategies.pipeline.operator_costs import cost_graph, costs_by_class, operator_times, times_of_parts
from maniple.strategies.simulation.simulation import Simulation

MACHINE = Machine.preset("p100x4")
LAUNCH_S = MACHINE.processor(0).launch_s


def residual(batch: int, blocks: int) -> Graph:
    """Blocks with a skip, and at the end what three operators read; two of them share a weight."""
    g = Graph("residual")
    h = g.relu(g.linear(g.input("x", (batch, 256)), 512))
    for _ in range(blocks):
        h = g.relu(g.add(h, g.relu(g.linear(h, 512))))
    tied = g.parameter("tied", (512, 512), "float32", Initial("normal", 0.5))
    h = g.add(g.add(g.relu(h), g.linear(h, 512, weight=tied)), g.linear(h, 512, weight=tied))
    g.loss(g.cross_entropy(g.linear(h, 3), g.input("y", (batch,), dtype="int64")))
    return g


def computed_s(graph: Graph, parts: int) -> float:
    """Seconds that the simulator has a processor compute alone, without what passes values in and out."""
    placed = tuple((node.name, whole(graph, node, 0)) for node in graph.nodes)
    plan = complete(Problem(graph, MACHINE), "alone", placed)
    plan = plan.with_pipeline(order="gpipe", micro_batches=parts) if parts > 1 else plan
    spans = [span for span in Simulation(graph, MACHINE, plan).timeline().spans if span.category in {"task", "fold"}]
    return sum(s.end_ns - s.start_ns for s in spans if ".input" not in s.name and ".fetch" not in s.name) / 1e9


def counted_s(graph: Graph, parts: int) -> float:
    """Seconds that operators are counted to take."""
    every = times_of_parts(graph, MACHINE, parts).values()
    starts_s = sum(one.forward_start_s + one.backward_start_s for one in every)
    return sum(one.forward_s + one.backward_s for one in every) + (parts - 1) * starts_s


@pytest.mark.simulator
@pytest.mark.parametrize(("batch", "parts"), [(64, 1), (64, 2), (64, 8), (30, 4)])
@pytest.mark.parametrize("blocks", [0, 2])
def test_what_is_counted_is_what_is_computed(batch: int, parts: int, blocks: int) -> None:
    graph = residual(batch, blocks)
    assert abs(counted_s(graph, parts) - computed_s(graph, parts)) <= 2 * LAUNCH_S


def test_what_several_read_is_folded_where_it_was_made() -> None:
    """The block's result has three readers, so four passes over a tensor more than its backward by itself."""
    graph = residual(4096, 1)
    alone, folded = operator_times(graph, MACHINE)["relu_2"], times_of_parts(graph, MACHINE, 1)["relu_2"]
    bandwidth = MACHINE.memories[0].bandwidth
    assert folded.forward_s == alone.forward_s
    assert folded.backward_s - alone.backward_s >= LAUNCH_S + 4 * 4096 * 512 * 4 / bandwidth


@pytest.mark.parametrize("parts", [2, 8])
def test_what_nodes_of_the_graph_of_costs_take_adds_up_to_it(parts: int) -> None:
    graph = residual(64, 1)
    costs = cost_graph(graph, MACHINE, parts=parts)
    total = sum(node.compute_s + (parts - 1) * node.start_s for node in costs.nodes)
    assert np.isclose(total, counted_s(graph, parts))
    assert all(node.start_s >= 0 for node in costs.nodes)


def test_where_micro_batches_cannot_go_one_by_one_each_adds_a_launch() -> None:
    g = Graph("exact statistics")
    h = g.batch_norm(g.linear(g.input("x", (8, 4)), 4))
    g.loss(g.cross_entropy(g.linear(g.relu(h), 3), g.input("y", (8,), dtype="int64")))
    with pytest.raises(RequestError, match="waits for"):
        cost_graph(g, MACHINE, parts=2)
    (found,) = costs_by_class(g, MACHINE, Fleet.of(MACHINE), parts=2)
    assert found == replace(cost_graph(g, MACHINE), uncounted=found.uncounted)
    assert found.uncounted.startswith("batch_norm: statistics over the whole batch")
