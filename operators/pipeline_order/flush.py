"""Orders with a flush: one stage in a lane, and a mini-batch ends before the next begins.

Three stages, four micro-batches, backward as long as forward (``tests/operators/pipeline_order/test_flush.py``):

    sequential
        lane 0   F0 -- -- -- -- B0 F1 -- -- -- -- B1 F2 -- -- -- -- B2 F3 -- -- -- -- B3
        lane 1   -- F0 -- -- B0 -- -- F1 -- -- B1 -- -- F2 -- -- B2 -- -- F3 -- -- B3 --
        lane 2   -- -- F0 B0 -- -- -- -- F1 B1 -- -- -- -- F2 B2 -- -- -- -- F3 B3 -- --

    gpipe
        lane 0   F0 F1 F2 F3 -- -- -- -- B0 B1 B2 B3
        lane 1   -- F0 F1 F2 F3 -- -- B0 B1 B2 B3 --
        lane 2   -- -- F0 F1 F2 F3 B0 B1 B2 B3 -- --

    1f1b
        lane 0   F0 F1 F2 -- -- B0 F3 B1 -- B2 -- B3
        lane 1   -- F0 F1 -- B0 F2 B1 F3 B2 -- B3 --
        lane 2   -- -- F0 B0 F1 B1 F2 B2 F3 B3 -- --

    early_backward
        lane 0   F0 F1 F2 F3 -- B0 -- B1 -- B2 -- B3
        lane 1   -- F0 F1 F2 B0 F3 B1 -- B2 -- B3 --
        lane 2   -- -- F0 B0 F1 B1 F2 B2 F3 B3 -- --

Of stages beside each other, where a stage may read from several, what counts is how many stages the longest way from a
stage to the end has: its *height*, p - i in a chain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.operators.pipeline_order.action import Action
from maniple.operators.pipeline_order.pipeline_order import PipelineOrder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maniple.operators.pipeline_order.stage_graph import StageGraph

__all__: list[str] = []


def sequential(graph: StageGraph, micro_batches: int) -> PipelineOrder:
    """One micro-batch after the other: with one stage the accumulation of gradients, with several no pipeline at all.

    A bubble of m (p - 1) (F + B), and one micro-batch in flight.

    Args:
        graph: the stages, of which a lane may have several.
        micro_batches: how many.
    """
    parts = range(micro_batches)
    lanes = tuple(
        tuple(
            action
            for part in parts
            for action in (
                *(Action(stage, "F", part) for stage in lane),
                *(Action(stage, "B", part) for stage in reversed(lane)),
            )
        )
        for lane in graph.lanes
    )
    return PipelineOrder(lanes, graph.stages, micro_batches)


def gpipe(graph: StageGraph, micro_batches: int) -> PipelineOrder:
    """Forward of all micro-batches, then backward of all (Huang et al., GPipe, NeurIPS 2019, section 2.2).

    A bubble of (p - 1) (F + B), and m micro-batches in flight. Backward begins with the first micro-batch, as in
    torch.distributed.pipelining, so that gradients are added up as in every other order.

    Args:
        graph: the stages.
        micro_batches: how many.
    """
    return alternating(graph, micro_batches, dict.fromkeys(graph.single("gpipe"), micro_batches))


def one_forward_one_backward(graph: StageGraph, micro_batches: int) -> PipelineOrder:
    """A backward as soon as there is one, and forward between (Narayanan et al., PipeDream, SOSP 2019, section 3.2).

    With a flush, as PipeDream-Flush (Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, ICML 2021,
    section 3.2) and DAPPLE's policy PA have it: a bubble of (p - 1) (F + B), and min(m, p - i) micro-batches in flight.
    Stages beside each other by height, as GraphPipe runs them (Jeon et al., ASPLOS 2025).

    Args:
        graph: the stages.
        micro_batches: how many.
    """
    return alternating(graph, micro_batches, {stage: graph.heights[stage] for stage in graph.single("1f1b")})


def early_backward(graph: StageGraph, micro_batches: int) -> PipelineOrder:
    """1F1B with twice the lead, which hides transfers (Fan et al., DAPPLE, PPoPP 2021, policy PB).

    The same bubble, and min(m, 2 (p - i) - 1) micro-batches in flight. BaPipe calls it 1F1B-SO.

    Args:
        graph: the stages.
        micro_batches: how many.
    """
    leads = {stage: 2 * graph.heights[stage] - 1 for stage in graph.single("early_backward")}
    return alternating(graph, micro_batches, leads)


def alternating(graph: StageGraph, micro_batches: int, leads: dict[int, int]) -> PipelineOrder:
    """Forward of the first micro-batches, then backward and forward in turn.

    Args:
        graph: the stages.
        micro_batches: how many.
        leads: by stage how many are first; a lane each, in their order.
    """
    lanes = tuple(tuple(_stage_actions(stage, lead, micro_batches)) for stage, lead in leads.items())
    return PipelineOrder(lanes, graph.stages, micro_batches)


def _stage_actions(stage: int, lead: int, micro_batches: int) -> Iterator[Action]:
    yield from (Action(stage, "F", part) for part in range(min(lead, micro_batches)))
    for part in range(micro_batches):
        yield Action(stage, "B", part)
        if lead + part < micro_batches:
            yield Action(stage, "F", lead + part)
