"""Orders of a chain that goes round all lanes several times, so that each lane has several stages, its *chunks*.

Two lanes, two chunks, four micro-batches (``tests/operators/pipeline_order/test_looped.py``):

    interleaved_1f1b
        lane 0   0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 --  2B2 --  2B3 0B2 0B3
        lane 1   --  1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3 --

    looped_bfs
        lane 0   0F0 0F1 0F2 0F3 2F0 2F1 2F2 2F3 --  --  2B0 2B1 2B2 2B3 0B0 0B1 0B2 0B3
        lane 1   --  1F0 1F1 1F2 1F3 3F0 3F1 3F2 3F3 3B0 3B1 3B2 3B3 1B0 1B1 1B2 1B3 --

A lane that waits for the first time waits for stages of 1/v of the length, so the bubble is (p - 1) (F + B) / v.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from maniple.operators.pipeline_order.action import Action
from maniple.operators.pipeline_order.pipeline_order import PipelineOrder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maniple.operators.pipeline_order.stage_graph import StageGraph

__all__: list[str] = []


def interleaved(graph: StageGraph, micro_batches: int) -> PipelineOrder:
    """1F1B with several stages in a lane (Narayanan et al., Efficient Large-Scale ..., SC 2021, section 2.2.2).

    Micro-batches go in rounds of p or a little more, each round through all chunks of a lane before the next
    begins. Any number will do, for rounds are as equal as they can be; where they are equal, the order is torch's.
    Lane i holds at most (v - 1) g + 2 (p - i) - 1 pairs of micro-batch and chunk, g the micro-batches of the first
    round: where p divides m, lane 0 holds p (1 + (p - 1) / (p v)) whole micro-batches.

    Args:
        graph: the stages.
        micro_batches: how many.
    """
    chunks, lanes = graph.chunks("interleaved_1f1b"), len(graph.lanes)
    first = rounds(lanes, micro_batches)[0] if micro_batches > 0 else 0
    found = []
    for number, lane in enumerate(graph.lanes):
        forward = list(round_by_round(lane, lanes, micro_batches))
        backward = list(round_by_round(lane[::-1], lanes, micro_batches))
        ahead = min((chunks - 1) * first + 2 * (lanes - 1 - number), len(forward))
        found.append(tuple(one_each(forward, backward, ahead)))
    return PipelineOrder(tuple(found), graph.stages, micro_batches)


def breadth_first(graph: StageGraph, micro_batches: int) -> PipelineOrder:
    """GPipe with several stages in a lane: all micro-batches through a chunk, then through the next.

    Lamy-Poirier, Breadth-First Pipeline Parallelism, MLSys 2023: a weight is used in one run of actions, so
    gathering it and exchanging its gradient can be hidden. All m v pairs are in flight.
    torch.distributed.pipelining goes backward through a chunk from the last micro-batch to the first; here it is
    from the first, as in every other order, so that gradients are added up in one order whatever the plan.

    Args:
        graph: the stages.
        micro_batches: how many.
    """
    graph.chunks("looped_bfs")
    parts = range(micro_batches)
    lanes = tuple(
        (
            *(Action(stage, "F", part) for stage in lane for part in parts),
            *(Action(stage, "B", part) for stage in reversed(lane) for part in parts),
        )
        for lane in graph.lanes
    )
    return PipelineOrder(lanes, graph.stages, micro_batches)


def rounds(lanes: int, micro_batches: int) -> list[int]:
    """How many micro-batches each round has: as many rounds as there are whole lanes full, as equal as can be.

    Args:
        lanes: how many there are; a round has at least as many micro-batches, if there are so many.
        micro_batches: how many.
    """
    count = max(1, micro_batches // lanes)
    low, more = divmod(micro_batches, count)
    return [low + (number < more) for number in range(count)]


def one_each(
    forward: list[tuple[int, int]], backward: list[tuple[int, int]], ahead: int, late: int | None = None
) -> Iterator[Action]:
    """Some forward actions, then one forward and one backward in turn, then what is left of backward.

    Args:
        forward: stage and micro-batch of each forward action.
        backward: of each backward action.
        ahead: how many forward actions come first.
        late: by how many backward actions the gradients of weights come after those of inputs; None: with them.
    """
    yield from (Action(stage, "F", part) for stage, part in forward[:ahead])
    for count, (stage, part) in enumerate(backward):
        if ahead + count < len(forward):
            again, other = forward[ahead + count]
            yield Action(again, "F", other)
        yield Action(stage, "B" if late is None else "I", part)
        if late is not None and count >= late:
            before, done = backward[count - late]
            yield Action(before, "W", done)
    if late is not None:
        yield from (Action(stage, "W", part) for stage, part in backward[max(0, len(backward) - late) :])


def round_by_round(stages: tuple[int, ...], lanes: int, micro_batches: int) -> Iterator[tuple[int, int]]:
    """Stages and micro-batches of a lane, round by round."""
    bounds = [0]
    for count in rounds(lanes, micro_batches):
        bounds.append(bounds[-1] + count)
    for low, high in pairwise(bounds):
        yield from ((stage, part) for stage in stages for part in range(low, high))
