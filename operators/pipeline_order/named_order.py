"""The orders that have a name, each with the stages that it is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from maniple.operators.pipeline_order import flush, folded, looped, zero_bubble
from maniple.operators.pipeline_order.pipeline_order import PipelineOrder
from maniple.operators.pipeline_order.stage_graph import StageGraph
from maniple.process.error import RequestError, nearest

__all__: list[str] = []

OrderFunction = Callable[[StageGraph, int], PipelineOrder]
"""An order of stages and a number of micro-batches."""

ORDERS: Final[Mapping[str, OrderFunction]] = {
    "sequential": flush.sequential,
    "gpipe": flush.gpipe,
    "1f1b": flush.one_forward_one_backward,
    "early_backward": flush.early_backward,
    "interleaved_1f1b": looped.interleaved,
    "looped_bfs": looped.breadth_first,
    "zb_h1": zero_bubble.zb_h1,
    "zb_h2": zero_bubble.zb_h2,
    "v_half": folded.v_half,
    "v_zb": folded.v_zb,
}
"""By name; the docstring of each has its table, its bubble and what is in flight."""

ASYNCHRONOUS: Final = "asynchronous"
"""The order without a flush: 1F1B, in which mini-batches follow each other; a rule of versions comes with it."""
EARLY: Final = "asynchronous_early"
"""The same with more micro-batches in flight, which hides transfers; for rules that add up the gradients of several."""
WITHOUT_FLUSH: Final = (ASYNCHRONOUS, EARLY)
"""The orders that a rule of versions comes with."""
ITS_RULES: Final = (
    "pipedream",
    "stash",
    "2bw",
    "spectrain",
    "xpipe",
    "pipemare",
    "latest",
    "vertical_sync",
    "nesterov",
)
"""What is asked for as an order and is, if anything, a rule of versions."""


def named_order(name: str, graph: StageGraph, micro_batches: int) -> PipelineOrder:
    """The order of a name.

    Args:
        name: of one of `ORDERS`.
        graph: the stages.
        micro_batches: how many.

    Raises:
        RequestError: there is no such order, or it is not for such stages.
    """
    if name in WITHOUT_FLUSH:
        return _asynchronous(name, graph, micro_batches)
    if name in ITS_RULES:
        raise RequestError(
            f"order {name!r} has no flush: batches are computed with weights of steps before; write order "
            f"{ASYNCHRONOUS!r} with the semantics weights=RULE, or one with a flush: {', '.join(sorted(ORDERS))}"
        )
    if name not in ORDERS:
        raise RequestError(f"order {name!r} is unknown{nearest(name, ORDERS)}")
    return ORDERS[name](graph, micro_batches)


def _asynchronous(name: str, graph: StageGraph, micro_batches: int) -> PipelineOrder:
    """The order without a flush: forward of each stage goes on while backward comes back, mini-batch after mini-batch.

    Lane i of p goes backward with the micro-batch that it went forward with p - 1 - i before; in which run, and with
    which weights, says the rule (`version_rule`). A mini-batch by itself is one micro-batch:

        lane 0    F0 .  F1 .  F2 B0 F3 B1 ...
        lane 1    .  F0 .  F1 B0 F2 B1 F3 ...
        lane 2    .  .  F0 B0 F1 B1 F2 B2 ...

    Early, with m micro-batches, it has min(p - 1 - i, m - p) more before.
    """
    more = max(0, micro_batches - graph.stages) if name == EARLY else 0
    leads = {stage: graph.heights[stage] + min(graph.heights[stage] - 1, more) for stage in graph.single(name)}
    return flush.alternating(graph, micro_batches, leads)
