"""Orders by name."""

from __future__ import annotations

import pytest

from maniple.operators.pipeline_order.named_order import ASYNCHRONOUS, ORDERS, named_order
from maniple.operators.pipeline_order.stage_graph import StageGraph
from maniple.process.error import RequestError


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(RequestError, match=r"order '1F1B' is unknown; did you mean '1f1b'\? choices: 1f1b, early_back"):
        named_order("1F1B", StageGraph.chain(2), 2)


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_orders_without_a_flush_are_refused_by_name(name: str) -> None:
    with pytest.raises(RequestError, match=rf"order '{name}' has no flush: .* not built; choices: 1f1b, "):
        named_order(name, StageGraph.chain(2), 2)


@pytest.mark.parametrize("name", ORDERS)
def test_no_micro_batches_are_refused(name: str) -> None:
    graph = StageGraph.folded(2) if name.startswith("v_") else StageGraph.chain(2)
    with pytest.raises(RequestError, match=r"^order: expected at least 1 stage and 1 micro-batch, got \d and 0$"):
        named_order(name, graph, 0)
