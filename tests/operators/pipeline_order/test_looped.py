"""Orders of chains that go round: the tables of the docstring, the bubble and what is in flight."""

from __future__ import annotations

import pipeline_clock
import pytest
from drawn_tables import drawn

from maniple.operators.pipeline_order import looped
from maniple.operators.pipeline_order.drawing import table
from maniple.operators.pipeline_order.looped import breadth_first, interleaved, rounds
from maniple.operators.pipeline_order.named_order import OrderFunction
from maniple.operators.pipeline_order.stage_graph import StageGraph

F, B = 2, 5


@pytest.mark.parametrize(("name", "order"), [("interleaved_1f1b", interleaved), ("looped_bfs", breadth_first)])
def test_the_table_of_the_docstring_is_what_runs(name: str, order: OrderFunction) -> None:
    graph = StageGraph.looped(2, 2)
    assert table(order(graph, 4), graph).splitlines() == drawn(looped.__doc__, name)


@pytest.mark.parametrize("order", [interleaved, breadth_first])
@pytest.mark.parametrize("v", [1, 2, 3])
@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_the_bubble_is_a_chunks_wait(p: int, v: int, order: OrderFunction) -> None:
    """With at least a micro-batch for each lane, and stages of 1/v of the length."""
    for m in (p, p + 1, 2 * p, 2 * p + 1, 3 * p + 2):
        lanes = [list(map(str, lane)) for lane in order(StageGraph.looped(p, v), m).lanes]
        assert pipeline_clock.bubble(lanes, {"F": F, "B": B}, p * v) == (p - 1) * (F + B), (p, v, m)


@pytest.mark.parametrize("v", [1, 2, 3])
@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_pairs_in_flight(p: int, v: int) -> None:
    for m in (1, p, p + 1, 2 * p, 2 * p + 1, 3 * p):
        graph = StageGraph.looped(p, v)
        ours = [list(map(str, lane)) for lane in interleaved(graph, m).lanes]
        first = rounds(p, m)[0]
        expected = [min(m * v, (v - 1) * first + 2 * (p - i) - 1) for i in range(p)]
        assert [pipeline_clock.held(lane) for lane in ours] == expected == list(interleaved(graph, m).lane_in_flight())
        if m % p == 0 and m >= 2 * p:
            # p (1 + (p - 1) / (p v)) whole micro-batches, which are v pairs each
            assert expected[0] * p * v == p * v * (p * v + p - 1)
        assert [pipeline_clock.held(list(map(str, lane))) for lane in breadth_first(graph, m).lanes] == [m * v] * p


def test_rounds_are_as_equal_as_can_be() -> None:
    assert rounds(4, 10) == [5, 5]
    assert rounds(4, 11) == [6, 5]
    assert rounds(4, 3) == [3]
    assert rounds(2, 8) == [2, 2, 2, 2]
    assert rounds(3, 11) == [4, 4, 3]
