"""Orders drawn: the tables of the docstrings."""

from __future__ import annotations

from maniple.operators.pipeline_order.drawing import row_texts, table
from maniple.operators.pipeline_order.flush import one_forward_one_backward, sequential
from maniple.operators.pipeline_order.stage_graph import StageGraph


def test_a_lane_with_one_stage_does_not_name_it() -> None:
    graph = StageGraph.chain(2)
    assert table(one_forward_one_backward(graph, 3), graph).splitlines() == [
        "lane 0   F0 F1 -- B0 F2 B1 -- B2",
        "lane 1   -- F0 B0 F1 B1 F2 B2 --",
    ]


def test_a_lane_with_two_stages_names_them() -> None:
    graph = StageGraph.folded(2)
    assert table(sequential(graph, 1), graph).splitlines() == [
        "lane 0   0F0 --  --  3F0 3B0 --  --  0B0",
        "lane 1   --  1F0 2F0 --  --  2B0 1B0 --",
    ]


def test_rows_are_as_wide_as_their_widest_cell() -> None:
    assert row_texts("stage", [["F10", ""], *([["B"]] * 10)])[::10] == ["stage 0    F10 --", "stage 10   B"]
