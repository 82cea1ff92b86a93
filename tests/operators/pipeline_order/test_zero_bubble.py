"""Orders that split backward: the tables of the docstring, the bubble and what is in flight."""

from __future__ import annotations

import pipeline_clock
import pytest
from drawn_tables import drawn

from maniple.operators.pipeline_order import zero_bubble
from maniple.operators.pipeline_order.drawing import table
from maniple.operators.pipeline_order.named_order import OrderFunction
from maniple.operators.pipeline_order.pipeline_order import PipelineOrder
from maniple.operators.pipeline_order.stage_graph import StageGraph
from maniple.operators.pipeline_order.zero_bubble import zb_h1, zb_h2

TICKS = [(1, 1, 1), (4, 4, 4), (2, 2, 1), (2, 3, 1), (3, 2, 2), (5, 3, 3)]


def texts(order: PipelineOrder) -> list[list[str]]:
    return [list(map(str, lane)) for lane in order.lanes]


@pytest.mark.parametrize(("name", "order"), [("zb_h1", zb_h1), ("zb_h2", zb_h2)])
def test_the_table_of_the_docstring_is_what_runs(name: str, order: OrderFunction) -> None:
    graph = StageGraph.chain(3)
    assert table(order(graph, 5), graph).splitlines() == drawn(zero_bubble.__doc__, name)


@pytest.mark.parametrize("p", [1, 2, 3, 4, 6])
@pytest.mark.parametrize(("f", "i", "w"), TICKS)
def test_closed_forms_of_the_bubble(f: int, i: int, w: int, p: int) -> None:
    for m in (2 * p, 2 * p + 1, 3 * p + 2):
        graph, ticks = StageGraph.chain(p), {"F": f, "I": i, "W": w}
        assert pipeline_clock.bubble(texts(zb_h1(graph, m)), ticks, p) == (p - 1) * (f + i - w)
        assert pipeline_clock.bubble(texts(zb_h2(graph, m)), ticks, p) == (p - 1) * (f + i - 2 * w)


@pytest.mark.parametrize("m", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 6])
def test_every_stage_has_as_many_in_flight(p: int, m: int) -> None:
    for order, most in ((zb_h1(StageGraph.chain(p), m), p), (zb_h2(StageGraph.chain(p), m), 2 * p - 1)):
        assert [pipeline_clock.held(lane) for lane in texts(order)] == [min(m, most)] * p
        assert list(order.in_flight()) == [min(m, most)] * p
