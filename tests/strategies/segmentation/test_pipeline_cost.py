"""What a pipeline costs: bytes over cuts by brute force, and stages of one chain worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.strategies.pipeline.cost_graph import CostGraph, CostNode
from maniple.strategies.pipeline.problem import SegmentationProblem
from maniple.strategies.pipeline.stage_costs import Assumptions, Level
from maniple.strategies.segmentation.pipeline_cost import cut_bytes, stages
from maniple.strategies.segmentation.pipeline_space import Part


def chain(count: int, skips: list[tuple[int, int]]) -> CostGraph:
    """A chain of nodes with edges beside it; node i puts out 10 ** i bytes, so that sums tell who is in them."""
    nodes = [CostNode(f"n{place:02}", "", 1.0, 2.0, 10**place, 100, 7) for place in range(count)]
    edges = sorted({*((place, place + 1) for place in range(count - 1)), *skips})
    return CostGraph.of("chain", nodes, [(f"n{a:02}", f"n{b:02}") for a, b in edges])


@given(data=st.data(), count=st.integers(2, 6))
def test_a_tensor_crosses_each_cut_between_its_making_and_its_last_reading_once(
    data: st.DataObject, count: int
) -> None:
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda pair: pair[0] < pair[1])
    graph = chain(count, data.draw(st.lists(pairs, max_size=6)))
    ends = [*sorted(data.draw(st.sets(st.integers(1, count - 1)))), count]
    parts = [
        Part(tuple(range(start, end)), ((place, 1),))
        for place, (start, end) in enumerate(zip([0, *ends], ends, strict=False))
    ]
    expected = [
        sum(
            graph.nodes[node].activation_bytes
            for node in range(end)
            if any(target >= end for source, target in graph.edges if source == node)
        )
        for end in ends
    ]
    assert cut_bytes(graph, parts) == expected


def problem(assumed: Assumptions) -> SegmentationProblem:
    return SegmentationProblem(chain(3, []), (Level(3, 10.0),), True, None, "throughput", assumed)


PARTS = (Part((0, 1), ((0, 2),)), Part((2,), ((1, 1),)))
WORK = 2 * 3.0 / 2  # two nodes of three seconds, shared by two replicas


@pytest.mark.parametrize(
    ("assumed", "first"),
    [
        (Assumptions(synchronized=0.0), WORK),
        # 10 bytes cross, forward and backward, at 10 bytes a second on each of two links: 1 s, hidden or added.
        (Assumptions(synchronized=0.0, transfers="add"), WORK + 1.0),
        # Of 200 bytes of weights two replicas move 4 / 2 each, in every second mini-batch: 20 s, added or hidden.
        (Assumptions(), WORK + 20.0),
        (Assumptions(synchronization="overlap"), 20.0),
    ],
    ids=["work alone", "transfers added", "synchronisation added", "synchronisation overlapped"],
)
def test_the_load_of_a_stage_by_hand(assumed: Assumptions, first: float) -> None:
    one, other = stages(problem(assumed), PARTS)
    assert one.load_s == pytest.approx(first)
    assert (one.devices, other.devices) == ((0, 1), (2,))
    assert (one.compute_s, other.compute_s) == (6.0, 3.0)
    assert (one.sent_bytes, other.sent_bytes) == (10, 0)
