"""Orders that split backward: gradients of inputs at once, gradients of weights where a lane would wait.

Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, section 2. Three stages, five micro-batches, forward, gradients
of inputs and gradients of weights all as long (``tests/operators/pipeline_order/test_zero_bubble.py``):

    zb_h1
        lane 0   F0 F1 F2 -- -- I0 W0 F3 I1 W1 F4 I2 W2 I3 W3 I4 W4
        lane 1   -- F0 F1 -- I0 F2 I1 W0 F3 I2 W1 F4 I3 W2 I4 W3 W4
        lane 2   -- -- F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 F4 I4 W2 W3 W4

    zb_h2
        lane 0   F0 F1 F2 F3 F4 I0 W0 I1 W1 I2 W2 I3 W3 I4 W4 -- --
        lane 1   -- F0 F1 F2 I0 F3 I1 F4 I2 W0 I3 W1 I4 W2 W3 W4 --
        lane 2   -- -- F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 W1 W2 W3 W4
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.operators.pipeline_order.looped import one_each, round_by_round, rounds
from maniple.operators.pipeline_order.pipeline_order import PipelineOrder

if TYPE_CHECKING:
    from maniple.operators.pipeline_order.stage_graph import StageGraph

__all__: list[str] = []


def zb_h1(graph: StageGraph, micro_batches: int) -> PipelineOrder:
    """1F1B with gradients of weights later, the more so the later a stage; as much memory as 1F1B's first stage.

    A bubble of (p - 1) (F + I - W), if W is no longer than F and than I; every stage has min(m, p) micro-batches in
    flight. With several stages in a lane it is interleaved 1F1B with backward split, the order of torch's
    ScheduleInterleavedZeroBubble. Stages beside each other go by their height.

    Args:
        graph: the stages.
        micro_batches: how many.
    """
    if all(len(lane) == 1 for lane in graph.lanes):
        return _by_height(graph, micro_batches, 1)
    chunks, lanes = graph.chunks("zb_h1"), len(graph.lanes)
    first = rounds(lanes, micro_batches)[0] if micro_batches > 0 else 0
    found = []
    for number, lane in enumerate(graph.lanes):
        forward = list(round_by_round(lane, lanes, micro_batches))
        backward = list(round_by_round(lane[::-1], lanes, micro_batches))
        ahead = min((chunks - 1) * first + lanes - 1 - number, len(forward))
        found.append(tuple(one_each(forward, backward, ahead, number)))
    return PipelineOrder(tuple(found), graph.stages, micro_batches)


def zb_h2(graph: StageGraph, micro_batches: int) -> PipelineOrder:
    """Twice the lead of H1, so that nothing waits between a stage's first action and its last.

    A bubble of (p - 1) (F + I - 2 W), if W is no longer than F and than I: none where all three are as long. Every
    stage has min(m, 2 p - 1) micro-batches in flight. A stage ends later than the one before it by as much as it
    began later, so updates must not wait for each other: where gradients are clipped by their norm, the bubble is
    back.

    Args:
        graph: the stages.
        micro_batches: how many.
    """
    graph.single("zb_h2")
    return _by_height(graph, micro_batches, 2)


def _by_height(graph: StageGraph, micro_batches: int, lead: int) -> PipelineOrder:
    """One stage in a lane: how far forward leads, and how late gradients of weights come, both by height."""
    heights = graph.heights
    found = []
    for (stage,) in graph.lanes:
        parts = [(stage, part) for part in range(micro_batches)]
        ahead = min(lead * (heights[stage] - 1), micro_batches)
        found.append(tuple(one_each(parts, parts, ahead, lead * (max(heights) - heights[stage]))))
    return PipelineOrder(tuple(found), graph.stages, micro_batches)
