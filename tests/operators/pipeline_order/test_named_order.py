"""Orders by name."""

from __future__ import annotations

import pytest

from maniple.operators.pipeline_order.named_order import ASYNCHRONOUS, ITS_RULES, ORDERS, named_order
from maniple.operators.pipeline_order.stage_graph import StageGraph
from maniple.process.error import RequestError


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(RequestError, match=r"order '1F1B' is unknown; did you mean '1f1b'\? choices: 1f1b, early_back"):
        named_order("1F1B", StageGraph.chain(2), 2)


@pytest.mark.parametrize("name", ITS_RULES)
def test_a_rule_of_versions_is_no_order(name: str) -> None:
    with pytest.raises(
        RequestError, match=rf"order '{name}' has no flush: .*order 'asynchronous' with the semantics wei"
    ):
        named_order(name, StageGraph.chain(2), 2)


def test_without_a_flush_a_run_has_each_pass_of_a_stage_once() -> None:
    assert [list(map(str, lane)) for lane in named_order(ASYNCHRONOUS, StageGraph.chain(3), 1).lanes] == [
        ["0F0", "0B0"],
        ["1F0", "1B0"],
        ["2F0", "2B0"],
    ]
    assert named_order(ASYNCHRONOUS, StageGraph.chain(3), 6).in_flight() == (3, 2, 1)
    with pytest.raises(RequestError, match="order 'asynchronous' has one stage in a lane"):
        named_order(ASYNCHRONOUS, StageGraph.looped(2, 2), 1)


@pytest.mark.parametrize("name", ORDERS)
def test_no_micro_batches_are_refused(name: str) -> None:
    graph = StageGraph.folded(2) if name.startswith("v_") else StageGraph.chain(2)
    with pytest.raises(RequestError, match=r"^order: expected at least 1 stage and 1 micro-batch, got \d and 0$"):
        named_order(name, graph, 0)
