"""Orders with a flush: the tables of the docstring, and the closed forms in ticks."""

from __future__ import annotations

import pipeline_clock
import pytest
from drawn_tables import drawn

from maniple.operators.pipeline_order import flush
from maniple.operators.pipeline_order.drawing import table
from maniple.operators.pipeline_order.flush import early_backward, gpipe, one_forward_one_backward, sequential
from maniple.operators.pipeline_order.pipeline_order import PipelineOrder
from maniple.operators.pipeline_order.stage_graph import StageGraph
from maniple.process.error import RequestError

BY_NAME = {
    "sequential": sequential,
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "early_backward": early_backward,
}
SIZES = [(p, m) for p in (1, 2, 3, 4, 7) for m in (1, 2, 3, 5, 8, 13)]
TICKS = {"F": 2, "B": 5}


def texts(order: PipelineOrder) -> list[list[str]]:
    return [list(map(str, lane)) for lane in order.lanes]


@pytest.mark.parametrize("name", BY_NAME)
def test_the_table_of_the_docstring_is_what_runs(name: str) -> None:
    graph = StageGraph.chain(3)
    assert table(BY_NAME[name](graph, 4), graph).splitlines() == drawn(flush.__doc__, name)


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_closed_forms_of_the_bubble(p: int, m: int) -> None:
    f, b = TICKS["F"], TICKS["B"]

    def bubble(name: str) -> int:
        return pipeline_clock.bubble(texts(BY_NAME[name](StageGraph.chain(p), m)), TICKS, p)

    assert bubble("sequential") == m * (p - 1) * (f + b)
    assert bubble("gpipe") == bubble("1f1b") == bubble("early_backward") == (p - 1) * (f + b)


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_micro_batches_in_flight(p: int, m: int) -> None:
    most = {
        "sequential": [1] * p,
        "gpipe": [m] * p,
        "1f1b": [min(m, p - i) for i in range(p)],
        "early_backward": [min(m, 2 * (p - i) - 1) for i in range(p)],
    }
    for name, expected in most.items():
        order = BY_NAME[name](StageGraph.chain(p), m)
        assert [pipeline_clock.held(lane) for lane in texts(order)] == expected, name
        assert list(order.in_flight()) == list(order.lane_in_flight()) == expected, name


def test_one_stage_accumulates_whatever_the_order() -> None:
    graph = StageGraph.chain(1)
    for name in ("sequential", "1f1b", "early_backward"):
        assert texts(BY_NAME[name](graph, 3)) == [["0F0", "0B0", "0F1", "0B1", "0F2", "0B2"]], name


def test_stages_beside_each_other_lead_by_their_height() -> None:
    """
        0 - 1 - 2 \
                   4
            3 --- /
    """
    graph = StageGraph(((0,), (1,), (2,), (3,), (4,)), ((), (0,), (1,), (), (2, 3)))
    assert graph.heights == (4, 3, 2, 2, 1)
    assert one_forward_one_backward(graph, 9).in_flight() == (4, 3, 2, 2, 1)
    assert table(one_forward_one_backward(graph, 3), graph).splitlines() == [
        "lane 0   F0 F1 F2 -- -- -- -- B0 -- B1 -- B2",
        "lane 1   -- F0 F1 F2 -- -- B0 -- B1 -- B2 --",
        "lane 2   -- -- F0 F1 -- B0 F2 B1 -- B2 -- --",
        "lane 3   F0 F1 -- -- -- B0 F2 B1 -- B2 -- --",
        "lane 4   -- -- -- F0 B0 F1 B1 F2 B2 -- -- --",
    ]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "early_backward"])
def test_several_stages_in_a_lane_are_of_other_orders(name: str) -> None:
    with pytest.raises(RequestError, match=rf"order '{name}' has one stage in a lane; lane 0 has stages 0, 2: .*v_zb"):
        BY_NAME[name](StageGraph.looped(2, 2), 4)


def test_accumulation_over_several_stages_in_a_lane() -> None:
    order = sequential(StageGraph.folded(2), 2)
    assert texts(order) == [
        ["0F0", "3F0", "3B0", "0B0", "0F1", "3F1", "3B1", "0B1"],
        ["1F0", "2F0", "2B0", "1B0", "1F1", "2F1", "2B1", "1B1"],
    ]
    order.merged(StageGraph.folded(2))
