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

ASYNCHRONOUS: Final = ("pipedream", "stash", "2bw", "spectrain", "xpipe", "pipemare")
"""Orders without a flush, which are not built."""


def named_order(name: str, graph: StageGraph, micro_batches: int) -> PipelineOrder:
    """The order of a name.

    Args:
        name: of one of `ORDERS`.
        graph: the stages.
        micro_batches: how many.

    Raises:
        RequestError: there is no such order, or it is not for such stages.
    """
    if name in ASYNCHRONOUS:
        raise RequestError(
            f"order {name!r} has no flush: micro-batches of a step would be computed with weights of steps before, and "
            f"such orders are not built; choices: {', '.join(sorted(ORDERS))}"
        )
    if name not in ORDERS:
        raise RequestError(f"order {name!r} is unknown{nearest(name, ORDERS)}")
    return ORDERS[name](graph, micro_batches)
