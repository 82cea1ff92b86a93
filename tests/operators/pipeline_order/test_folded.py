"""Orders of a V: the tables of the docstring, the bubble and what is in flight."""

from __future__ import annotations

import pipeline_clock
import pytest
from drawn_tables import drawn

from maniple.operators.pipeline_order import folded
from maniple.operators.pipeline_order.drawing import table
from maniple.operators.pipeline_order.folded import v_half, v_zb
from maniple.operators.pipeline_order.named_order import OrderFunction
from maniple.operators.pipeline_order.pipeline_order import PipelineOrder
from maniple.operators.pipeline_order.stage_graph import StageGraph

ONE = {"F": 1, "I": 1, "W": 1}


def texts(order: PipelineOrder) -> list[list[str]]:
    return [list(map(str, lane)) for lane in order.lanes]


@pytest.mark.parametrize(("name", "order"), [("v_zb", v_zb), ("v_half", v_half)])
def test_the_table_of_the_docstring_is_what_runs(name: str, order: OrderFunction) -> None:
    graph = StageGraph.folded(2)
    assert table(order(graph, 4), graph).splitlines() == drawn(folded.__doc__, name)


@pytest.mark.parametrize("p", range(1, 9))
def test_v_zb_waits_for_nothing_and_holds_what_1f1b_holds(p: int) -> None:
    for m in (2 * p - 1, 2 * p, 3 * p + 1):
        lanes = texts(v_zb(StageGraph.folded(p), m))
        assert pipeline_clock.bubble(lanes, ONE, 2 * p) == 0, (p, m)
        assert [pipeline_clock.held(lane) for lane in lanes] == [2 * p] * p, (p, m)


@pytest.mark.parametrize("p", range(1, 9))
def test_v_half_holds_half_of_it(p: int) -> None:
    """(p + 2) // 2 whole micro-batches, a bubble of about p / 2 m of a step (the paper's table 1)."""
    for m in (2 * p, 2 * p + 1, 4 * p):
        lanes = texts(v_half(StageGraph.folded(p), m))
        waits = {1: 0, 2: 1}.get(p, 3 * p - 4 if p % 2 else 3 * p - 7)
        assert pipeline_clock.bubble(lanes, ONE, 2 * p) == waits, (p, m)
        assert [pipeline_clock.held(lane) for lane in lanes] == [2 * ((p + 2) // 2)] * p, (p, m)


def test_blocks_repeated_never_fall_on_each_other() -> None:
    for p in range(1, 33):
        for block in folded.half_block(p):
            assert len({tick % 6 for tick in block}) == 4
            assert list(block) == sorted(block)
