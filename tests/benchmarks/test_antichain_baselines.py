"""The baselines that antichain segmentation is compared with: one layer line cut by hand, and none beats the search."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from antichain_baselines import MEASURES, baseline

from maniple.strategies.pipeline.cost_graph import CostGraph, CostNode
from maniple.strategies.pipeline.problem import SegmentationProblem
from maniple.strategies.pipeline.stage_costs import Level
from maniple.strategies.segmentation.segment import segment


def line(*layers: tuple[float, int, int]) -> CostGraph:
    """Layers one after another: seconds, parameter bytes, and bytes of the activation."""
    nodes = [CostNode(f"n{i}", "", s / 2, s / 2, b, w, b) for i, (s, w, b) in enumerate(layers)]
    return CostGraph.of("line", nodes, [(f"n{i}", f"n{i + 1}") for i in range(len(layers) - 1)])


def test_the_baselines() -> None:
    graph = line((8.0, 1, 1), (1.0, 1, 10), (1.0, 1, 1), (1.0, 30, 1), (1.0, 1, 1), (1.0, 1, 1))
    problem = SegmentationProblem(graph, (Level(2),))
    cuts = {m: [len(stage.nodes) for stage in baseline(problem, m).stages] for m in MEASURES}
    assert cuts == {"layers": [3, 3], "memory": [3, 3], "compute": [1, 5]}
    assert baseline(problem, "layers").bottleneck_s == 10.0
    assert baseline(problem, "compute").bottleneck_s == segment(problem).bottleneck_s == 8.0
    assert baseline(problem, "layers").balance == pytest.approx(10 / 6.5)


def drawn(seed: int) -> CostGraph:
    """A graph of up to 9 operators with any number of sources, sinks and skips."""
    chance = random.Random(seed)
    count, density = chance.randint(1, 9), chance.choice((0.1, 0.4, 0.8))
    nodes = [
        CostNode(f"n{place}", "", *(chance.randint(0, 50) * 1e-3 for _ in range(2)), chance.randint(0, 30), 7, 9)
        for place in range(count)
    ]
    edges = [(f"n{a}", f"n{b}") for a, b in combinations(range(count), 2) if chance.random() < density]
    return CostGraph.of(f"drawn {seed}", nodes, edges)


def test_no_baseline_beats_the_search() -> None:
    for seed in range(60):
        graph = drawn(seed)
        problem = SegmentationProblem(graph, (Level(min(3, len(graph.nodes)), 700.0),))
        for measure in MEASURES:
            assert baseline(problem, measure).bottleneck_s >= segment(problem).bottleneck_s * (1 - 1e-9)
