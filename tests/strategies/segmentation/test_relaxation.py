"""The bound of two levels: never above the best pipeline of a small graph, and near it."""

from __future__ import annotations

from random import Random

import pytest

from maniple.strategies.pipeline.coarse_graph import CoarseGraph
from maniple.strategies.pipeline.cost_graph import CostGraph, CostNode
from maniple.strategies.pipeline.problem import SegmentationProblem
from maniple.strategies.pipeline.stage_costs import Assumptions, Level
from maniple.strategies.segmentation.pipeline_space import NodeCosts, Space
from maniple.strategies.segmentation.relaxation import Slots, groupings, two_level_bound
from maniple.strategies.segmentation.segment import segment


def drawn(seed: int) -> CostGraph:
    """Some operators in a random order of need."""
    chance = Random(seed)
    count = chance.randrange(4, 9)
    nodes = [
        CostNode(str(n), "", chance.random(), chance.random(), chance.randrange(900), chance.randrange(2000))
        for n in range(count)
    ]
    edges = [(str(a), str(b)) for a in range(count) for b in range(a + 1, count) if b == a + 1 or chance.random() < 0.2]
    kept = [edge for edge in edges if chance.random() < 0.8]
    return CostGraph.of("drawn", nodes, kept)


@pytest.mark.parametrize("transfers", ["overlap", "add"])
@pytest.mark.parametrize("synchronization", ["overlap", "add"])
@pytest.mark.parametrize("replicate", [True, False])
def test_no_pipeline_of_a_small_graph_is_below_the_bound(replicate: bool, synchronization: str, transfers: str) -> None:
    shares = []
    for seed in range(12):
        given = Assumptions(transfers=transfers, synchronization=synchronization)  # type: ignore[arg-type]
        graph = drawn(seed)
        levels = (Level(2, 4000.0), Level(2, 900.0))
        problem = SegmentationProblem(graph, levels, replicate, assumptions=given)
        best = segment(problem)
        assert best.exact
        costs = NodeCosts.of(problem)
        space = Space.enumerate_ideals(problem, costs, CoarseGraph.whole(graph), 10_000)
        assert space is not None
        least = costs.clock.ticks(best.value_s)
        bound = two_level_bound(space, 0, 2 * least)
        assert bound <= least + len(graph.nodes)
        shares.append(bound / least)
    if (transfers, synchronization) == ("overlap", "add"):
        assert sum(shares) / len(shares) > 0.9


def test_the_ways_to_deal_groups() -> None:
    assert sorted(groupings(3)) == [(1, 1, 1), (1, 2), (2, 1), (3,)]


def test_the_slots_of_two_stages_of_two_and_one_groups() -> None:
    """
    groups (2, 1)    slot     0     1     2     3
    of 2 devices     stages   1 2   1     1 2   1     replicas
    """
    slots = Slots.of((2, 1), 2, 2)
    assert slots.count == 4
    assert slots.begin.tolist() == [0, 0, 1, 2, 2, 3]
    assert slots.replicas.tolist() == [1, 2, 1, 1, 2, 1]
    assert slots.outer.tolist() == [2, 2, 2, 1, 1, 1]
    assert slots.last.tolist() == [2, 2, 2, 4, 4, 4]
