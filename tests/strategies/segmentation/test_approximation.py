"""What is answered where the ideals are too many: valid pipelines, true bounds, and improvements that improve."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from maniple.process.error import RequestError
from maniple.strategies.pipeline.coarse_graph import CoarseGraph
from maniple.strategies.pipeline.cost_graph import CostGraph, CostNode
from maniple.strategies.pipeline.problem import Segmentation, SegmentationProblem
from maniple.strategies.pipeline.stage_costs import Assumptions, Level
from maniple.strategies.segmentation.pipeline_space import NodeCosts, Space
from maniple.strategies.segmentation.refinement import lines, refine
from maniple.strategies.segmentation.segment import load_compiled, segment
from maniple.strategies.segmentation.throughput import best_of

Fixture = Callable[..., Any]


def check_pipeline(graph: CostGraph, found: Segmentation, devices: int) -> None:
    home = {node: place for place, stage in enumerate(found.stages) for node in stage.nodes}
    assert sorted(home) == list(range(len(graph.nodes)))
    assert all(home[a] <= home[b] for a, b in graph.edges)
    assert sum(stage.replicas for stage in found.stages) <= devices
    assert found.bottleneck_s == max(stage.load_s for stage in found.stages)


@pytest.mark.parametrize("levels", [(Level(3, 700.0),), (Level(3),), (Level(2, 2000.0), Level(2, 700.0))])
def test_too_many_ideals(levels: tuple[Level, ...], make_graph: Fixture) -> None:
    proven = 0
    for seed in range(60):
        graph = make_graph(seed)
        devices = 3 if len(levels) == 1 else 4
        exact = segment(SegmentationProblem(graph, levels, True))
        found = segment(SegmentationProblem(graph, levels, True, states=4))
        check_pipeline(graph, found, devices)
        assert found.bottleneck_s >= exact.bottleneck_s * (1 - 1e-9)
        assert found.lower_bound_s <= exact.bottleneck_s * (1 + 1e-9)
        assert found.gap >= found.bottleneck_s / max(exact.bottleneck_s, 1e-30) - 1 - 1e-9
        if found.exact:
            assert found.bottleneck_s == pytest.approx(exact.bottleneck_s, rel=1e-9)
            proven += 1
    # A pipeline that meets the bound is proven the best without its ideals.
    assert proven > 5


def test_too_many_ideals_for_a_memory_limit_and_for_latency(make_graph: Fixture) -> None:
    for seed in range(40):
        graph = make_graph(seed)
        given = Assumptions(order="1f1b", micro_batches=4)
        free = segment(SegmentationProblem(graph, (Level(3, 700.0),), True, assumptions=given))
        limit = max(stage.memory_bytes for stage in free.stages) * 1.2 + 1
        for goal in ("throughput", "latency"):
            problem = SegmentationProblem(graph, (Level(3, 700.0),), True, limit, goal, given)  # type: ignore[arg-type]
            exact = segment(problem)
            found = segment(SegmentationProblem(graph, problem.levels, True, limit, problem.goal, given, states=3))
            check_pipeline(graph, found, 3)
            assert max(stage.memory_bytes for stage in found.stages) <= limit
            assert found.lower_bound_s <= exact.value_s * (1 + 1e-9) <= found.value_s * (1 + 2e-9)


def test_improvement_around_the_cuts() -> None:
    """A wide graph, whose lines are far from its best cuts."""
    rng = random.Random(5)
    nodes = [CostNode(f"n{i}", "", rng.randint(1, 50) * 1e-3, 0.0, rng.randint(1, 400), 0) for i in range(60)]
    edges = [(f"n{i}", f"n{j}") for i in range(60) for j in range(i + 1, 60) if rng.random() < 0.08]
    graph = CostGraph.of("wide", nodes, edges)
    problem = SegmentationProblem(graph, (Level(4, 8_000.0),))
    costs = NodeCosts.of(problem)
    starts = [best_of(Space.line(problem, costs, CoarseGraph.of(graph, line)), None) for line in lines(graph)]
    start = min((s for s in starts if s is not None), key=lambda pipeline: pipeline[1])
    better = refine(problem, costs, start, best_of, 20_000)
    assert better[1] < start[1]
    found = segment(problem)
    check_pipeline(graph, found, 4)
    assert not found.exact
    assert found.bottleneck_s <= costs.clock.seconds(start[1])
    assert found == segment(problem)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"levels": ()}, "at least one level"),
        ({"levels": (Level(3),)}, "at most as many stages as nodes, 2, got 3"),
        ({"goal": "speed"}, "objective 'speed' is no choice"),
        ({"states": 1}, "at least 2 ideals"),
        ({"memory_bytes": 0.0}, "more than 0 bytes"),
        ({"memory_bytes": float("nan")}, "more than 0 bytes"),
        ({"memory_bytes": 20.0}, "'b' alone holds 34 bytes, got a limit of 20"),
    ],
)
def test_problems_that_are_none(change: dict[str, Any], expected: str) -> None:
    nodes = [CostNode("a", "", 1.0, 1.0, 4, 2, 4), CostNode("b", "", 1.0, 1.0, 4, 10, 4)]
    asked: dict[str, Any] = {"graph": CostGraph.of("g", nodes, [("a", "b")]), "levels": (Level(2),)}
    with pytest.raises(RequestError, match=expected):
        SegmentationProblem(**(asked | change))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Level(0), "at least 1 device"),
        (lambda: Level(1, 0.0), "more than 0 bytes per second"),
        (lambda: Level(1, float("nan")), "more than 0 bytes per second"),
        (lambda: Assumptions(transfers="never"), "transfers: 'never' is no choice"),  # type: ignore[arg-type]
        (lambda: Assumptions(synchronization="never"), "synchronization: 'never' is no choice"),  # type: ignore[arg-type]
        (lambda: Assumptions(order="2f2b"), "order: '2f2b' is no choice"),  # type: ignore[arg-type]
        (lambda: Assumptions(crossings=-1.0), "crossings: expected a finite number >= 0"),
        (lambda: Assumptions(optimizer=float("nan")), "optimizer: expected a finite number >= 0"),
        (lambda: Assumptions(compression=0.0), "compression: expected a finite number > 0"),
        (lambda: Assumptions(micro_batches=0), "at least 1"),
    ],
)
def test_assumptions_that_are_none(make: Callable[[], object], expected: str) -> None:
    with pytest.raises(RequestError, match=expected):
        make()


def test_latency_needs_a_flush_and_one_level() -> None:
    graph = CostGraph.of("g", [CostNode(n, "", 1.0, 1.0, 1, 1) for n in "abcd"], [("a", "b")])
    with pytest.raises(RequestError, match="ends with a flush, got 'pipedream'"):
        segment(SegmentationProblem(graph, (Level(2),), goal="latency"))
    given = Assumptions(order="1f1b", micro_batches=2)
    with pytest.raises(RequestError, match="one level"):
        segment(SegmentationProblem(graph, (Level(2, 1.0), Level(2, 1.0)), goal="latency", assumptions=given))


def test_devices_are_numbered_group_by_group() -> None:
    """Two servers of two devices: a pipeline of two on each, twice; then a replicated server."""
    nodes = [CostNode(n, "", s, 0.0, 1, 0) for n, s in zip("abcd", (1.0, 1.0, 1.0, 1.0), strict=True)]
    graph = CostGraph.of("line", nodes, [("a", "b"), ("b", "c"), ("c", "d")])
    levels = (Level(2, 1e9), Level(2, 1e9))
    found = segment(SegmentationProblem(graph, levels))
    assert [stage.devices for stage in found.stages] == [(0,), (1,), (2,), (3,)]
    pair = [CostNode("a", "", 2.0, 0.0, 1, 10**6), CostNode("b", "", 1.0, 0.0, 1, 0)]
    heavy = CostGraph.of("two", pair, [("a", "b")])
    spread = segment(SegmentationProblem(heavy, (Level(3, 1e9),), True))
    assert [stage.devices for stage in spread.stages] in ([(0, 1), (2,)], [(0, 1, 2)])


@pytest.mark.parametrize("block", range(3))
def test_no_device_has_two_stages(block: int, make_graph: Fixture) -> None:
    for seed in range(20 * block, 20 * block + 20):
        levels = (Level(2, 2000.0), Level(3, 700.0))
        found = segment(SegmentationProblem(make_graph(seed), levels, True))
        used = [device for stage in found.stages for device in stage.devices]
        assert len(set(used)) == len(used)
        assert set(used) <= set(range(6))


def test_very_slow_links_still_count_in_integers() -> None:
    nodes = [CostNode(n, "", 1.0, 1.0, 10**9, 10**9) for n in "ab"]
    found = segment(SegmentationProblem(CostGraph.of("g", nodes, [("a", "b")]), (Level(2, 1e-3),), True))
    assert [stage.replicas for stage in found.stages] == [1]
    assert found.bottleneck_s == pytest.approx(4.0)


def test_the_compiled_searches_load() -> None:
    load_compiled()
