"""Two stages are the best of all prefixes and all shares of processors, and fit."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from maniple.operators.pipeline_order.version_rule import RULES
from maniple.strategies.flow.flow_plan import flow_assumptions
from maniple.strategies.flow.two_stages import two_stages
from maniple.strategies.pipeline.cost_graph import CostGraph, CostNode
from maniple.strategies.pipeline.problem import SegmentationProblem
from maniple.strategies.pipeline.stage_costs import Level, synchronization_s, work_s

if TYPE_CHECKING:
    from maniple.strategies.pipeline.stage_costs import Assumptions

TWO_BW = RULES["2bw"]


def row(times: list[int], memory: float | None = None, devices: int = 4, parts: int = 2) -> SegmentationProblem:
    """Nodes in a row, of so many milliseconds both ways, with a kilobyte of weights each."""
    nodes = [CostNode(f"n{at}", "", 1e-3 * ms, 1e-3 * ms, 8, 1000, 8) for at, ms in enumerate(times)]
    graph = CostGraph.in_order("row", nodes, list(pairwise(node.id for node in nodes)))
    given_ = flow_assumptions(TWO_BW, parts)
    return SegmentationProblem(graph, (Level(devices, 1e6),), True, memory, "throughput", given_)


def load_s(problem: SegmentationProblem, nodes: range, replicas: int) -> float:
    assumed: Assumptions = problem.assumptions
    own = [problem.graph.nodes[at] for at in nodes]
    together = sum(work_s(assumed, node.compute_s, node.start_s, replicas) for node in own)
    return together + synchronization_s(assumed, problem.levels[0], replicas, 1, sum(n.parameter_bytes for n in own))


@given(st.lists(st.integers(1, 40), min_size=2, max_size=7), st.integers(2, 5))
def test_it_is_the_best_of_all(times: list[int], devices: int) -> None:
    problem, count = row(times, devices=devices), len(times)
    every = [
        max(load_s(problem, range(end), own), load_s(problem, range(end, count), devices - own))
        for end in range(1, count)
        for own in range(1, devices)
    ]
    found = two_stages(problem)
    assert found is not None
    assert abs(found.bottleneck_s - min(every)) < 1e-9
    assert [stage.replicas for stage in found.stages] == [len(stage.devices) for stage in found.stages]
    assert sum(stage.replicas for stage in found.stages) == devices
    assert [node for stage in found.stages for node in stage.nodes] == list(range(count))


def test_the_best_that_fits_is_taken_and_none_where_nothing_does() -> None:
    free = two_stages(row([10, 1, 1, 1]))
    assert free is not None
    most = max(stage.memory_bytes for stage in free.stages)
    tight = two_stages(row([10, 1, 1, 1], memory=most - 1))
    assert tight is not None
    assert max(stage.memory_bytes for stage in tight.stages) < most
    assert tight.bottleneck_s > free.bottleneck_s
    assert two_stages(row([10, 1, 1, 1], memory=5000.0)) is None  # of a node alone it is enough


def test_of_one_processor_or_one_node_there_are_none() -> None:
    assert two_stages(row([1, 2], devices=1)) is None
    assert two_stages(row([1])) is None
