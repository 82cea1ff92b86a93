"""Pipelines in time: drawn tables, closed forms, and the closed form that the latency search minimises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from maniple.process.error import RequestError
from maniple.strategies.pipeline.cost_graph import CostGraph, CostNode
from maniple.strategies.pipeline.pipeline_timing import StageTimes, actions, pipeline_s
from maniple.strategies.pipeline.problem import SegmentationProblem
from maniple.strategies.pipeline.stage_costs import Assumptions, Level
from maniple.strategies.segmentation.order_search import VARIATIONS, explore, stage_times
from maniple.strategies.segmentation.segment import segment

Fixture = Callable[..., Any]


@pytest.mark.parametrize(
    ("order", "table"),
    [
        (
            "1f1b",
            """
            F0 F1 F2 B0 F3 B1 B2 B3
            F0 F1 B0 F2 B1 F3 B2 B3
            F0 B0 F1 B1 F2 B2 F3 B3
            """,
        ),
        (
            "gpipe",
            """
            F0 F1 F2 F3 B0 B1 B2 B3
            F0 F1 F2 F3 B0 B1 B2 B3
            F0 F1 F2 F3 B0 B1 B2 B3
            """,
        ),
        (
            "1f1b-so",
            """
            F0 F1 F2 F3 B0 B1 B2 B3
            F0 F1 F2 B0 F3 B1 B2 B3
            F0 B0 F1 B1 F2 B2 F3 B3
            """,
        ),
    ],
)
def test_orders_of_three_stages_and_four_micro_batches(order: Any, table: str) -> None:
    rows = [" ".join(f"{kind}{n}" for kind, n in actions(order, 3, stage, 4)) for stage in range(3)]
    assert rows == [row.strip() for row in table.strip().splitlines()]


@pytest.mark.parametrize("order", ["1f1b", "gpipe", "1f1b-so"])
@pytest.mark.parametrize(("stages", "count"), [(1, 1), (1, 5), (2, 1), (3, 4), (4, 8), (5, 3)])
def test_balanced_stages_take_the_closed_form(order: Any, stages: int, count: int) -> None:
    times = [StageTimes(1.0, 2.0)] * stages
    assert pipeline_s(times, order, count) == (count + stages - 1) * 3.0


def test_both_passes_at_once_keep_the_pace_and_fill_for_longer() -> None:
    times = [StageTimes(1.0, 2.0)] * 3
    # One micro-batch every F + B, after three stages forward and three backward at that pace.
    assert pipeline_s(times, "fbp", 8) == (8 - 1 + 2 * 3) * 3.0


def test_transfers_that_add_and_that_overlap() -> None:
    times = [StageTimes(1.0, 1.0, 0.5), StageTimes(1.0, 1.0)]
    # One micro-batch: three passes of 1 and their transfers, paid at both ends where they add.
    assert pipeline_s(times, "1f1b", 1, "overlap") == 5.0
    assert pipeline_s(times, "1f1b", 1, "add") == 6.0
    # Many: a stage that adds is busy for 3 per micro-batch.
    assert pipeline_s(times, "1f1b", 50, "add") == 3.0 * 51
    # GPipe overlaps them altogether.
    assert pipeline_s(times, "gpipe", 50, "overlap") == 2.0 * 51 + 1.0


def test_the_latency_formula_against_events(make_graph: Fixture) -> None:
    """Without transfers GPipe's formula is what happens, and 1F1B's is never less than what happens."""
    met = 0
    for seed in range(60):
        graph = make_graph(seed)
        devices = min(3, len(graph.nodes))
        for order in ("gpipe", "1f1b"):
            given = Assumptions(order=order, micro_batches=5)  # type: ignore[arg-type]
            problem = SegmentationProblem(graph, (Level(devices),), goal="latency", assumptions=given)
            found = segment(problem)
            happens = pipeline_s(stage_times(problem, found), order, 5)  # type: ignore[arg-type]
            if order == "gpipe":
                assert happens == pytest.approx(found.value_s, rel=1e-9, abs=1e-12)
            else:
                assert happens <= found.value_s + 1e-9
                met += happens >= found.value_s - 1e-9
    assert met > 20


# -- orders ----------------------------------------------------------------------------------------------------------


def line(*layers: tuple[float, int, int]) -> CostGraph:
    nodes = [CostNode(f"n{i}", "", s / 2, s / 2, b, w, b) for i, (s, b, w) in enumerate(layers)]
    return CostGraph.of("line", nodes, [(f"n{i}", f"n{i + 1}") for i in range(len(layers) - 1)])


def names(candidates: Any) -> set[str]:
    return {candidate.variation.name for candidate in candidates}


def test_every_order_is_explored() -> None:
    graph = line(*[(1.0, 100, 1)] * 8)
    found = explore(graph, Level(4, 1e3))
    assert names(found) == {"1f1b-sno", "1f1b-so", "gpipe", "gpipe-o"}
    assert names(explore(graph, Level(4, 1e3), asynchronous=True)) == {v.name for v in VARIATIONS}
    assert [c.step_s for c in found] == sorted(c.step_s for c in found)
    assert {c.micro_batches for c in found} == {1, 2, 4, 8, 16}
    assert found[0].step_s < sum(node.compute_s for node in graph.nodes) / 3


def test_memory_decides_the_order() -> None:
    graph = line(*[(1.0, 1000, 1)] * 4)
    level = Level(4, 1e6)
    free = explore(graph, level, micro_batches=(8,))
    assert free[0].variation.order != "1f1b"
    # The first of three 1F1B stages holds 3 of 8 micro-batches, any of GPipe's all 8.
    tight = explore(graph, level, micro_batches=(8,), memory_bytes=800)
    assert {c.variation.order for c in tight} <= {"1f1b", "1f1b-so"}
    assert max(s.memory_bytes for c in tight for s in c.segmentation.stages) <= 800
    with pytest.raises(RequestError, match="memory"):
        explore(graph, level, micro_batches=(8,), memory_bytes=10)


def test_so_needs_transfers_that_hide_behind_passes() -> None:
    graph = line(*[(1.0, 1000, 1)] * 4)
    # Two stages of two layers: passes of 1/8 s; transfers of 1/8 s, and of a little more.
    assert "1f1b-so" in names(explore(graph, Level(2, 1000.0), micro_batches=(8,)))
    slow = explore(graph, Level(2, 990.0), micro_batches=(8,))
    assert "1f1b-so" not in names(slow)
    assert {len(c.segmentation.stages) for c in slow if c.variation.name == "gpipe-o"} == {2}


def test_no_micro_batches_to_try() -> None:
    with pytest.raises(RequestError, match="at least one number"):
        explore(line((1.0, 1, 1)), Level(1), micro_batches=())
